// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package extender is a client of HTTP extenders: separate processes that filter and score nodes
// for a pod, spare pods from preemption, or bind, as configured in a KubeSchedulerConfiguration. An
// [Extender] calls one configured extender, in the wire format of
// k8s.io/kube-scheduler/extender/v1.
//
// One request to an extender covers many nodes. It contains whole nodes or, if the extender keeps
// its own view of the cluster (nodeCacheCapable), their names. If an ignorable extender fails, the
// scheduler continues without it; the caller implements that.
package extender
