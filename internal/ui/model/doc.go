// Package model turns what watches show of a cluster into what the page shows: nodes and how full
// they are, the pending pods and why they wait, the pods that have to leave and when, and events.
//
// It keeps a few hundred bytes per pod and no API object. Deadlines are those of package eviction,
// whose core gets the same objects, and whose actions are ignored. What was shown last is
// remembered row by row: Changes returns only what differs, and State returns everything, for a new
// reader, as of the last Changes.
//
// A Cluster belongs to one goroutine at a time; it has no client, and time is an argument.
package model
