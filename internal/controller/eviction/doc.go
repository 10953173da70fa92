// Package eviction decides which pods a NoExecute taint removes, and when, and
// sees each removal through.
//
// Core is a state machine without client, goroutine or clock: what a watch
// shows and what the API answers goes in as Events, what is to be done comes
// out as Actions, and time is an argument. From the NoExecute taints of a pod's
// node and the pod's tolerations it computes one deadline, anew at every
// change, so nothing that was queued can be stale. A pod that is due is read
// live, with its node, before every try; it is deleted by UID; and it is tried
// again, further and further apart, until it is gone, is another pod, or need
// not go any more. Nothing else ends an entry.
//
// The package live runs Core against an API server; the package faultapi runs
// it against an API that fails in every way, in virtual time; simulate and
// explain ask Deadline.
package eviction
