// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package eviction decides which pods a NoExecute taint evicts, and when, and carries each eviction
// through.
//
// Core is a state machine without client, goroutine or clock: Events carry watched objects and API
// responses into it, Actions carry requests out, and time is an argument. From the NoExecute taints
// of a pod's node and the pod's tolerations it computes one deadline, recomputed at every change,
// so the queue is never stale. A due pod is read live, together with its node, before every
// attempt. It is deleted by UID. Attempts are repeated, with growing pauses, until the pod has been
// deleted or replaced by another pod, or may stay. An entry never ends for any other reason.
//
// Package evictioncontroller runs Core against an API server. Package evictiontest runs it against
// an API that fails in every way, in virtual time. Packages simulate and explain use Deadline.
package eviction
