// Package model turns what watches show of a cluster into what the page shows: nodes and how full
// they are, the pods that wait and why, the pods that have to leave and when, and events.
//
// It keeps a few hundred bytes a pod and no API object. Deadlines are those of package eviction,
// whose core is fed with the same objects and never asked to act. What was shown last is remembered
// row by row, so that Changes tells only what differs, and State tells all of it to one who comes
// new, as of the last Changes.
//
// A Cluster belongs to one goroutine at a time; it has no client, and time is an argument.
package model
