// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package model turns the objects of a cluster's watches into the content of the page: nodes and
// their use, pending pods and the reasons, pods that must leave and their deadlines, and events.
//
// It keeps a few hundred bytes per pod and no API object. Package eviction computes deadlines: its
// core gets the same objects, and its actions are ignored. The last shown state is stored row by
// row. Changes returns only the differences; State returns the whole state as of the last Changes,
// for a new reader.
//
// A Cluster belongs to one goroutine at a time; it uses no client, and time is an argument.
package model
