// Package ui is the dashboard: a cluster as a map of nodes, its queue, its evictions and its
// events, live in a browser; explanations of why a pod is where it is, and forecasts.
//
// Package live follows the cluster, package model derives what is shown, and this package serves
// it. The browser gets the state once and then the changes, as server-sent events with IDs, so that
// it continues where it was after a lost connection. Packages explain and whatif answer questions
// from a fresh snapshot of the cluster, one at a time. Nothing is ever written to the cluster.
//
// The page itself (folder page) is plain ES modules, embedded as they are. Whatever comes from the
// cluster reaches the document as text only, and the Content-Security-Policy has the browser
// enforce it.
package ui
