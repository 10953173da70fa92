package simulate

import (
	"cmp"
	"container/heap"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/controller/eviction"
)

// hold records the NoExecute taints of a node. A taint without a time counts from when the list of
// taints was last written, according to the API server's managed fields; without these, from the
// beginning, or from now if the taint is new.
func (w *World) hold(node *v1.Node) {
	before := w.held[node.Name]
	var held []eviction.Held
	witness := eviction.NodeOf(node).Witness
	for i := range node.Spec.Taints {
		taint := node.Spec.Taints[i]
		if taint.Effect != v1.TaintEffectNoExecute {
			continue
		}
		since := w.clock.time()
		if !taint.TimeAdded.IsZero() {
			since = taint.TimeAdded.Time
		} else if i := slices.IndexFunc(before, func(h eviction.Held) bool { return h.ID() == taint.ToString() }); i >= 0 {
			since = before[i].Since
		} else if w.clock.now == 0 && !witness.IsZero() && witness.Before(since) {
			since = witness
		}
		held = append(held, eviction.Held{Taint: taint, Since: since})
	}
	if len(held) == 0 {
		delete(w.held, node.Name)
		return
	}
	w.held[node.Name] = held
}

// watch records when the pod has to leave its node, on which it has been since the given time.
func (w *World) watch(p *pod, since time.Time) {
	held := w.held[p.NodeName]
	if len(held) == 0 || p.Terminating {
		p.due = eviction.Due{}
		return
	}
	due := eviction.Deadline(p.object.Spec.Tolerations, since, held)
	if due == p.due {
		return
	}
	if p.due = due; !due.Stays() {
		heap.Push(&w.leaving, leaving{p, due})
	}
}

// after is when an eviction is due, from the beginning. One that was due before is due at the
// beginning.
func (w *World) after(p *pod) time.Duration { return max(p.due.At.Sub(w.clock.start), 0) }

// next returns the pod that has to leave first, or nil.
func (w *World) next() *pod {
	for len(w.leaving) > 0 {
		if first := w.leaving[0]; first.counts() {
			return first.pod
		}
		heap.Pop(&w.leaving)
	}
	return nil
}

// nextEviction is when the next pods are evicted.
func (w *World) nextEviction() (time.Duration, bool) {
	p := w.next()
	if p == nil {
		return 0, false
	}
	at := max(w.after(p), w.clock.now)
	if at == w.evictedAt {
		// A pod has returned to a node where it may not stay. Time must advance: controllers need a
		// second at least.
		at += time.Second
	}
	return at, true
}

// evictDue removes the pods whose time has come.
func (w *World) evictDue() {
	if at, ok := w.nextEviction(); !ok || at > w.clock.now {
		return
	}
	w.evictedAt = w.clock.now
	for p := w.next(); p != nil && w.after(p) <= w.clock.now; p = w.next() {
		heap.Pop(&w.leaving)
		w.report.said.Evictions = append(w.report.said.Evictions, evictionOf(p, w.clock.now))
		w.depart(p, ByTaint, p.due.Taint.ToString())
	}
}

func evictionOf(p *pod, after time.Duration) Eviction {
	return Eviction{Namespace: p.Namespace(), Name: p.Name, Node: p.NodeName, After: Seconds(after), Taint: p.due.Taint.ToString()}
}

// outlook adds the evictions that are still to come to those that have happened.
func (w *World) outlook() {
	for _, l := range w.leaving {
		if l.counts() {
			w.report.said.Evictions = append(w.report.said.Evictions, evictionOf(l.pod, w.after(l.pod)))
		}
	}
	slices.SortStableFunc(w.report.said.Evictions, func(a, b Eviction) int {
		return cmp.Or(cmp.Compare(a.After, b.After), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

// leaving is a pod that has to leave its node, and when. It is outdated once the pod has gone or
// its due time has changed.
type leaving struct {
	*pod
	of eviction.Due
}

// counts reports whether it is not outdated.
func (l leaving) counts() bool { return !l.gone && l.pod.due == l.of }

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
