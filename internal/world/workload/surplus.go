// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"cmp"
	"math/bits"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Phase is the progress of a pod.
type Phase int

// The phases, in order of removal.
const (
	Pending Phase = iota
	Unknown
	Running
)

// Replica is a pod of a workload from its controller's point of view. Callers fill it in from an
// API object, or from a simulated state.
type Replica struct {
	Object *v1.Pod
	UID    types.UID
	Node   string // empty if it has no node
	// Phase and Ready are reported by the kubelet.
	Phase          Phase
	Ready          bool
	Since, Created time.Time // Since is the time when it became ready, if it is ready
}

// CompareSurplus orders the pods of a workload like the ReplicaSet controller: pods to be removed
// first are at the front. together counts the pods of the workload by node; for a Deployment, it
// counts the pods of all its ReplicaSets. The order is upstream's ActivePodsWithRanks:
//
//	no node, before a node
//	Pending, before Unknown, before Running
//	not ready, before ready
//	a lower pod-deletion-cost
//	on a node with more of the workload's pods
//	ready for a shorter time; without a difference there, more restarts, then younger
//	the UID, so that the order is total
func CompareSurplus(a, b *Replica, together map[string]int, now time.Time) int {
	order := cmp.Or(
		rules.FalseFirst(a.Node != "", b.Node != ""), cmp.Compare(a.Phase, b.Phase), rules.FalseFirst(a.Ready, b.Ready),
		cmp.Compare(rules.DeletionCost(a.Object), rules.DeletionCost(b.Object)), cmp.Compare(together[b.Node], together[a.Node]),
	)
	// Like upstream, ignore restarts and ages in this case.
	if order == 0 && a.Ready && !a.Since.Equal(b.Since) {
		return cmp.Or(compareAge(now, a.Since, b.Since), cmp.Compare(a.UID, b.UID))
	}
	return cmp.Or(order, compareRestarts(a.Object, b.Object), compareAge(now, a.Created, b.Created), cmp.Compare(a.UID, b.UID))
}

// compareRestarts orders pods with more container restarts first. If these are equal, restarts of
// sidecars count.
func compareRestarts(a, b *v1.Pod) int {
	containers, sidecars := restartCounts(a)
	others, theirs := restartCounts(b)
	return cmp.Or(cmp.Compare(others, containers), cmp.Compare(theirs, sidecars))
}

// restartCounts returns the restarts of the pod's most restarted container, and of its most
// restarted sidecar.
func restartCounts(p *v1.Pod) (containers, sidecars int32) {
	for i := range p.Status.ContainerStatuses {
		containers = max(containers, p.Status.ContainerStatuses[i].RestartCount)
	}
	for i := range p.Status.InitContainerStatuses {
		status := &p.Status.InitContainerStatuses[i]
		if slices.ContainsFunc(p.Spec.InitContainers, func(c v1.Container) bool { return c.Name == status.Name && rules.IsSidecar(&c) }) {
			sidecars = max(sidecars, status.RestartCount)
		}
	}
	return containers, sidecars
}

// compareAge orders the younger pod first. Ages are compared on a logarithmic scale. The ReplicaSet
// controller considers pods of about the same age equal, so that it does not remove exactly the
// newest pods. Ages of 40 and 60 minutes may be equal; ages of 1 and 3 days are not.
func compareAge(now, x, y time.Time) int {
	return cmp.Compare(ageMagnitude(now.Sub(x)), ageMagnitude(now.Sub(y)))
}

// ageMagnitude returns the logarithm of an age to the base 2, in nanoseconds; -1 for the future.
func ageMagnitude(age time.Duration) int {
	if age <= 0 {
		return -1
	}
	return bits.Len64(uint64(age)) - 1
}
