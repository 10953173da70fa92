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

// Phase is how far a pod has come.
type Phase int

// The phases, in the order in which their pods are removed.
const (
	Pending Phase = iota
	Unknown
	Running
)

// Replica is a pod of a workload as its controller sees it.
type Replica struct {
	Object         *v1.Pod
	UID            types.UID
	Node           string // empty: none
	Phase          Phase
	Ready          bool
	Since, Created time.Time // since when it is ready, if it is
}

// CompareSurplus orders the pods of a workload as the ReplicaSet controller does: those that it
// removes first stand at the front. together counts the pods of the workload by node, for a
// Deployment those of all its ReplicaSets.
func CompareSurplus(a, b *Replica, together map[string]int, now time.Time) int {
	order := cmp.Or(
		trueFirst(a.Node == "", b.Node == ""), cmp.Compare(a.Phase, b.Phase), trueFirst(!a.Ready, !b.Ready),
		cmp.Compare(rules.DeletionCost(a.Object), rules.DeletionCost(b.Object)), cmp.Compare(together[b.Node], together[a.Node]),
	)
	if order == 0 && a.Ready && !a.Since.Equal(b.Since) {
		return cmp.Or(compareAge(now, a.Since, b.Since), cmp.Compare(a.UID, b.UID))
	}
	return cmp.Or(order, compareRestarts(a.Object, b.Object), compareAge(now, a.Created, b.Created), cmp.Compare(a.UID, b.UID))
}

// trueFirst orders true before false.
func trueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// compareRestarts orders pods whose containers were restarted more often first; sidecars count if
// the others are equal.
func compareRestarts(a, b *v1.Pod) int {
	containers, sidecars := restartCounts(a)
	others, theirs := restartCounts(b)
	return cmp.Or(cmp.Compare(others, containers), cmp.Compare(theirs, sidecars))
}

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

// compareAge orders what is younger first. Ages are compared on a logarithmic scale: to the
// ReplicaSet controller, pods of about the same age are equal, so that not all of the newest go.
func compareAge(now, x, y time.Time) int {
	return cmp.Compare(ageMagnitude(now.Sub(x)), ageMagnitude(now.Sub(y)))
}

func ageMagnitude(age time.Duration) int {
	if age <= 0 {
		return -1
	}
	return bits.Len64(uint64(age)) - 1
}
