// Package live keeps package model's cluster up to date from the watches of an API server, and
// keeps a log of what changed, from which any number of readers take their part at their own speed.
//
// It only reads: get, list and watch of nodes, pods and events. Lists come in pages, watches are
// taken up again where they broke off, and no object is kept. What changed within a tenth of a
// second becomes one Frame. The log is bounded: who comes back after too long, or reads too slowly,
// gets the whole state instead. Nobody who reads can hold up the watches, or another reader.
package live
