package decide

import "github.com/berth-k8s/berth/internal/engine/cluster"

// mostEffort bounds what one attempt may cost beyond one look at every node, in judgements of a
// node that costs a tenth of a microsecond: the goroutine that decides is everybody's, and must not
// be held for longer than that by one pod. It lets a pod preempt on 5,000 nodes with 100 victims
// each.
const mostEffort = 1 << 20

// errTooLong is what comes of an attempt that has used up its effort.
type errTooLong struct{ what string }

func (e *errTooLong) Error() string {
	return e.what + " takes too long with this many nodes and pods; the pod is tried again after its back-off"
}

// Unschedulable tells that this is said of the pod, and is no failure of the scheduler.
func (e *errTooLong) Unschedulable() bool { return true }

// ErrTooLong is what comes of a preemption that found no node before its effort was used up. What
// was found out is kept where it can be; the next attempt goes on from there.
var ErrTooLong error = &errTooLong{"finding pods to preempt"}

var errGuestsTooLong error = &errTooLong{"judging nodes that other pods are nominated to"}

// effort is what is left of it; nil is without bound.
type effort struct{ left int }

// spend takes from what is left; it returns false if nothing is.
func (e *effort) spend(judgements int) bool {
	if e == nil {
		return true
	}
	e.left -= judgements
	return e.left > 0
}

func (e *effort) over() bool { return e != nil && e.left <= 0 }

// heaviness is how many judgements of a usual pod one of this pod costs: most filters look at what
// the pod lists, item by item.
func heaviness(p *cluster.Pod) int {
	ports, spec := 0, p.Spec()
	for i := range spec.Containers {
		ports += len(spec.Containers[i].Ports)
	}
	return 1 + ports/8 + 2*len(spec.Volumes) + 8*len(spec.ResourceClaims)
}

// plainly is what it costs to prepare all filters anew for the cluster as it is: those that count
// pods by domain look at every node, for each of their terms, and at the pods there.
func plainly(c *cluster.Cluster, p *cluster.Pod) int {
	spec := p.Spec()
	terms := 1 + len(spec.TopologySpreadConstraints)
	if a := spec.Affinity; a != nil && a.PodAffinity != nil {
		terms += len(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
	}
	if a := spec.Affinity; a != nil && a.PodAntiAffinity != nil {
		terms += len(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
	}
	return heaviness(p) + terms*(c.Len()+c.Pods())/4
}
