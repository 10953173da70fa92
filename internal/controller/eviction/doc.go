// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package eviction decides which pods are evicted because of a NoExecute taint, and when, and
// carries out the evictions.
//
// Core is a state machine without client, goroutine or clock: Events carry watched objects and API
// responses into it, Actions carry requests out, and time is an argument. From the NoExecute taints
// of a pod's node and devices, and from the tolerations, Core computes one deadline per pod. It
// recomputes the deadline at every change, so the queue is never stale. Every attempt to evict a
// due pod first reads the node or the devices live, verifies the state of the pod, and then deletes
// the pod by UID. Attempts are repeated, with growing pauses, until the pod has been deleted or
// replaced by another pod, or may stay.
//
// Package evictioncontroller runs Core against an API server. The tests run it against an API that
// fails in every way, in virtual time. Packages simulate and explain use Deadline.
package eviction
