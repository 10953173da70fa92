// Package stage is what tests of the page, and its pictures, are played on: a browser, a cluster of
// berth up, and a crowd, which is an API server in memory with thousands of nodes and tens of
// thousands of pods, whose names need not be such that a real one takes them.
package stage
