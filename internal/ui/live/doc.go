// Package live keeps package model's cluster up to date from the watches of an API server, and
// keeps a log of what changed, which any number of readers read at their own speed.
//
// It only reads: get, list and watch of nodes, pods and events. Lists come in pages, watches resume
// where they broke off, and no object is kept. What changed within a tenth of a second becomes one
// Frame. The log is bounded: a reader that comes back too late, or is too slow, gets the whole
// state instead. No reader can delay the watches or another reader.
package live
