// Package snapshot reads the objects of a live cluster, all that decisions depend on, for the
// commands that ask questions: explain, what-if, record.
//
// It only reads: get, list and watch, never secrets, and whatever else is sent through its
// connection is refused before it leaves the process. Lists are paged and in protobuf. A kind that
// may not be read, or that the API server does not have, is left out and named, unless nothing can
// be said without it.
package snapshot
