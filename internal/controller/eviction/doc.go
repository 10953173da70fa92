// Package eviction decides which pods a NoExecute taint evicts, and when, and carries each eviction
// through.
//
// Core is a state machine without client, goroutine or clock: what a watch shows and what the API
// answers goes in as Events, requests come out as Actions, and time is an argument. From the
// NoExecute taints of a pod's node and the pod's tolerations it computes one deadline, again at
// every change, so nothing that was queued can be stale. A pod that is due is read live, together
// with its node, before every attempt. It is deleted by UID. And it is retried, with growing
// pauses, until it is gone, has been replaced by another pod, or may stay. Nothing else ends an
// entry.
//
// Package live runs Core against an API server. Package faultapi runs it against an API that fails
// in every way, in virtual time. Packages simulate and explain use Deadline.
package eviction
