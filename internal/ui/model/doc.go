// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package model turns the objects of a cluster's watches into the content of the page: nodes and
// their use, the pending pods and why they wait, the pods that must leave and when, and events.
//
// It keeps a few hundred bytes per pod and no API object. Deadlines are computed by package
// eviction: its core gets the same objects, and its actions are ignored. The last shown state is
// remembered row by row: Changes returns only the differences, and State returns everything, for a
// new reader, as of the last Changes.
//
// A Cluster belongs to one goroutine at a time; it uses no client, and time is an argument.
package model
