// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package evictionguard defines how the webhook and the controller guard evictions together.
//
// The first eviction of a guarded pod is refused with 429, and the webhook records it in the pod's
// annotation RequestedAnnotation. The controller then adds a replica to the pod's workload, waits
// until it is ready, and restores the scale so that exactly this pod leaves. Meanwhile it reports
// the progress in StatusAnnotation. Evictors retry after 429, and finally find the pod gone.
//
// All state is in the pod, so either process may be killed at any time. A pod is held for at most a
// deadline, whatever its annotations contain: anyone who may write the pod can write them. Only
// where the operator lets annotations deny evictions can they also keep a pod.
package evictionguard
