// Package ui is the page: a cluster as a map of nodes, its queue, its evictions and its events,
// live in a browser; why a pod is where it is, and what would happen if.
//
// Package live follows the cluster and package model makes of it what is shown; this package serves
// it. The browser gets the state once and then what changes, as server-sent events with ids, so
// that it goes on where it was after a lost connection. Questions are put to packages explain and
// whatif over a fresh reading of the cluster, one at a time. Nothing is ever written to the
// cluster.
//
// The page itself (folder page) is plain ES modules, embedded as they are. Whatever comes from the
// cluster reaches the document as text only, and the Content-Security-Policy has the browser
// enforce it.
package ui
