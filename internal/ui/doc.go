// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package ui implements the dashboard. It shows a live cluster in a browser: a map of its nodes,
// its queue, evictions and events, explanations of pod placements, and forecasts.
//
// Package changefeed follows the cluster, package model derives the shown state, and this package
// serves it. The browser gets the state once and then the changes as server-sent events. Their IDs
// let it continue at the same point after a lost connection. The dashboard never writes to the
// cluster.
//
// Explanations and forecasts are questions of the query service (api/berth/v1alpha1). Package
// queryserver answers them by a fresh snapshot of the cluster, or by a state of the recording, one
// request at a time.
//
// The page itself (folder page) is plain ES modules, embedded unchanged. Data from the cluster
// reaches the document as text only, enforced in the browser by the Content-Security-Policy.
package ui
