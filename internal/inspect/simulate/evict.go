package simulate

import (
	"cmp"
	"container/heap"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/controller/eviction"
)

// evictions are those that NoExecute taints cause: what kube-controller-manager's taint
// eviction controller does, by the same rules as Berth's own (package eviction).
//
// A pod that has to leave its node is in leaving with the due time that it has; entries with
// another one are outdated. They stay in the heap until they are at its top, because a heap
// cannot be searched.
type evictions struct {
	clock *clock
	// held has the NoExecute taints of the nodes that have any. Most have none, and their
	// pods cost nothing here.
	held    map[string][]eviction.Held // the NoExecute taints of the nodes that have any
	leaving departures
	last    time.Duration // when pods were last evicted; -1 if none was
}

// recordTaints records the NoExecute taints of a node. One without a time counts from now, if it
// was not there before. It reports whether the node has or had any: its pods have to be watched
// anew.
func (e *evictions) recordTaints(node *v1.Node) bool {
	before := e.held[node.Name]
	return e.hold(node, func(taint *v1.Taint) time.Time {
		for _, h := range before {
			if h.ID() == taint.ToString() {
				return h.Since
			}
		}
		return time.Time{}
	})
}

// recordFound is recordTaints of a node that enters the world: what its object says of the age of
// its taints counts.
func (e *evictions) recordFound(node *v1.Node) {
	e.hold(node, eviction.NodeOf(node).TaintedSince)
}

// hold is recordTaints. begun returns since when the node has a taint that carries no time; zero:
// from now.
func (e *evictions) hold(node *v1.Node, begun func(taint *v1.Taint) time.Time) bool {
	had := len(e.held[node.Name]) > 0
	var held []eviction.Held
	for i := range node.Spec.Taints {
		taint := node.Spec.Taints[i]
		if taint.Effect != v1.TaintEffectNoExecute {
			continue
		}
		since := e.clock.time()
		if !taint.TimeAdded.IsZero() {
			since = taint.TimeAdded.Time
		} else if known := begun(&taint); !known.IsZero() && known.Before(since) {
			since = known
		}
		held = append(held, eviction.Held{Taint: taint, Since: since})
	}

	if len(held) == 0 {
		delete(e.held, node.Name)
	} else {
		e.held[node.Name] = held
	}
	return had || len(held) > 0
}

// watchPod records when the pod has to leave its node, on which it has been since the given
// time. It is called again whenever the taints of the node change, and may then call the
// eviction off. A pod that is being deleted leaves anyway.
func (e *evictions) watchPod(p *pod, since time.Time) {
	held := e.held[p.NodeName]
	if len(held) == 0 || p.Terminating {
		p.due = eviction.Due{}
		return
	}
	due := eviction.Deadline(p.object.Spec.Tolerations, since, held)
	if due == p.due {
		return
	}
	if p.due = due; !due.Stays() {
		heap.Push(&e.leaving, leaving{p, due})
	}
}

// evictionTime is when an eviction is due, from the beginning. One that was due before is due at
// the beginning.
func (e *evictions) evictionTime(p *pod) time.Duration { return max(p.due.At.Sub(e.clock.start), 0) }

// nextPod returns the pod that has to leave first, or nil. Outdated entries that come before
// it are dropped.
func (e *evictions) nextPod() *pod {
	for len(e.leaving) > 0 {
		if first := e.leaving[0]; first.isCurrent() {
			return first.pod
		}
		heap.Pop(&e.leaving)
	}
	return nil
}

// nextDue is when the next pods are evicted. ok is false if none has to leave.
func (e *evictions) nextDue() (time.Duration, bool) {
	p := e.nextPod()
	if p == nil {
		return 0, false
	}
	at := max(e.evictionTime(p), e.clock.now)
	if at == e.last {
		// A pod has returned to a node where it may not stay. Time must advance: controllers need a
		// second at least.
		at += time.Second
	}
	return at, true
}

// evictDue calls evict for each pod whose time has come, the earliest first. Replacements
// that evict makes are pending, and are placed only after evictDue has returned.
func (e *evictions) evictDue(evict func(p *pod)) {
	if at, ok := e.nextDue(); !ok || at > e.clock.now {
		return
	}
	e.last = e.clock.now
	for p := e.nextPod(); p != nil && e.evictionTime(p) <= e.clock.now; p = e.nextPod() {
		// Before evict, which may push others.
		heap.Pop(&e.leaving)
		evict(p)
	}
}

// toCome lists the evictions that have not happened yet, in no order.
func (e *evictions) toCome() (list []Eviction) {
	for _, l := range e.leaving {
		if l.isCurrent() {
			list = append(list, evictionOf(l.pod, e.evictionTime(l.pod)))
		}
	}
	return list
}

// onlyAgain reports whether all evictions to come are of pods that have returned to a node where
// they may not stay.
func (e *evictions) onlyAgain() bool {
	return !slices.ContainsFunc(e.leaving, func(l leaving) bool { return l.isCurrent() && !l.again })
}

// evictionOf is an eviction as the answer lists it.
func evictionOf(p *pod, after time.Duration) Eviction {
	return Eviction{Namespace: p.Namespace(), Name: p.Name, Node: p.NodeName, After: Seconds(after), Taint: p.due.Taint.ToString()}
}

// compare orders what is due first, and otherwise by name.
func (e Eviction) compare(o Eviction) int {
	return cmp.Or(cmp.Compare(e.After, o.After), cmp.Compare(e.Namespace, o.Namespace), cmp.Compare(e.Name, o.Name))
}

// leaving is a pod that has to leave its node, and when. It is outdated once the pod has gone or
// its due time has changed.
type leaving struct {
	*pod
	of eviction.Due
}

// isCurrent reports whether it is not outdated.
func (l leaving) isCurrent() bool { return !l.gone && l.pod.due == l.of }

// departures are the pods that have to leave, by when: a heap.
type departures []leaving

func (d departures) Len() int { return len(d) }

func (d departures) Less(i, j int) bool {
	return cmp.Or(d[i].of.At.Compare(d[j].of.At), cmp.Compare(d[i].number, d[j].number)) < 0
}

func (d departures) Swap(i, j int) { d[i], d[j] = d[j], d[i] }

// Push and Pop are for package heap.
func (d *departures) Push(x any) { *d = append(*d, x.(leaving)) }

// Pop takes the last one.
func (d *departures) Pop() any {
	last := (*d)[len(*d)-1]
	*d = (*d)[:len(*d)-1]
	return last
}
