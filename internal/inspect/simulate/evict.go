// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"cmp"
	"container/heap"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/controller/eviction"
)

// evictions tracks evictions caused by NoExecute taints. It simulates kube-controller-manager's
// taint eviction controller, with the same rules as Berth's own controller (package eviction).
//
// A pod scheduled for eviction has an entry in leaving with its current due time; entries with
// another due time are outdated. An outdated entry stays in the heap until it reaches the top,
// because a heap cannot be searched.
type evictions struct {
	clock *clock
	// held maps nodes to their NoExecute taints. Nodes without such taints are absent, so their
	// pods cost nothing here.
	held    map[string][]eviction.Held
	leaving departures
	last    time.Duration // time of the latest evictions; -1 before the first
}

// recordTaints records the NoExecute taints of a node. A new taint without a time counts from now.
// It reports whether the node has or had NoExecute taints; if so, the caller must call watchPod for
// its pods.
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

// recordFound is recordTaints for a node entering the world: it trusts the object's times for the
// age of the taints.
func (e *evictions) recordFound(node *v1.Node) {
	e.hold(node, eviction.NodeOf(node).TaintedSince)
}

// hold implements recordTaints and recordFound. begun returns the start of a taint without a time;
// zero means now.
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

// watchPod schedules the eviction of a pod, given its arrival time on the node. It is called
// whenever the node's taints change, and may cancel the eviction. A terminating pod needs no
// eviction.
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

// evictionTime returns the due time of an eviction since the start, at least zero.
func (e *evictions) evictionTime(p *pod) time.Duration { return max(p.due.At.Sub(e.clock.start), 0) }

// nextPod returns the pod with the earliest eviction, or nil. It drops outdated entries ahead of
// it.
func (e *evictions) nextPod() *pod {
	for len(e.leaving) > 0 {
		if first := e.leaving[0]; first.isCurrent() {
			return first.pod
		}
		heap.Pop(&e.leaving)
	}
	return nil
}

// nextDue returns the time of the next eviction; ok is false if there is none.
func (e *evictions) nextDue() (time.Duration, bool) {
	p := e.nextPod()
	if p == nil {
		return 0, false
	}
	at := max(e.evictionTime(p), e.clock.now)
	if at == e.last {
		// The pod's replacement landed on a node with the same taint. Time must advance, since
		// controllers need at least a second.
		at += time.Second
	}
	return at, true
}

// evictDue calls evict for each due pod, earliest first. Replacements created by evict are pending
// and are placed only after evictDue has returned.
func (e *evictions) evictDue(evict func(p *pod)) {
	if at, ok := e.nextDue(); !ok || at > e.clock.now {
		return
	}
	e.last = e.clock.now
	for p := e.nextPod(); p != nil && e.evictionTime(p) <= e.clock.now; p = e.nextPod() {
		// Pop before evict, which may push more entries.
		heap.Pop(&e.leaving)
		evict(p)
	}
}

// toCome lists the outstanding evictions, in no particular order.
func (e *evictions) toCome() (list []Eviction) {
	for _, l := range e.leaving {
		if l.isCurrent() {
			list = append(list, evictionOf(l.pod, e.evictionTime(l.pod)))
		}
	}
	return list
}

// onlyAgain reports whether all outstanding evictions concern replacements of evicted pods that
// landed on a tainted node again.
func (e *evictions) onlyAgain() bool {
	return !slices.ContainsFunc(e.leaving, func(l leaving) bool { return l.isCurrent() && !l.again })
}

// evictionOf returns the eviction as listed in the result.
func evictionOf(p *pod, after time.Duration) Eviction {
	return Eviction{Namespace: p.Namespace(), Name: p.Name, Node: p.NodeName, After: Seconds(after), Taint: p.due.Taint.ToString()}
}

// compare orders by due time, then by name.
func (e Eviction) compare(o Eviction) int {
	return cmp.Or(cmp.Compare(e.After, o.After), cmp.Compare(e.Namespace, o.Namespace), cmp.Compare(e.Name, o.Name))
}

// leaving schedules the eviction of a pod. It is outdated once the pod has left or its due time has
// changed.
type leaving struct {
	*pod
	due eviction.Due
}

// isCurrent reports whether the entry is not outdated.
func (l leaving) isCurrent() bool { return !l.gone && l.pod.due == l.due }

// departures is a heap of scheduled evictions, by due time.
type departures []leaving

func (d departures) Len() int { return len(d) }

func (d departures) Less(i, j int) bool {
	return cmp.Or(d[i].due.At.Compare(d[j].due.At), cmp.Compare(d[i].number, d[j].number)) < 0
}

func (d departures) Swap(i, j int) { d[i], d[j] = d[j], d[i] }

// Push implements heap.Interface.
func (d *departures) Push(x any) { *d = append(*d, x.(leaving)) }

// Pop implements heap.Interface.
func (d *departures) Pop() any {
	last := (*d)[len(*d)-1]
	*d = (*d)[:len(*d)-1]
	return last
}
