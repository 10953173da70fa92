package simulate

import (
	"cmp"
	"container/heap"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/eviction"
)

// taints notes the NoExecute taints of a node. One without a time was added at the beginning.
func (w *world) taints(node *v1.Node) {
	for i := range node.Spec.Taints {
		taint := node.Spec.Taints[i]
		if taint.Effect != v1.TaintEffectNoExecute {
			continue
		}
		since := w.start
		if !taint.TimeAdded.IsZero() {
			since = taint.TimeAdded.Time
		}
		w.held[node.Name] = append(w.held[node.Name], eviction.Held{Taint: taint, Since: since})
	}
}

// watch notes when the pod has to leave the node that it is on since the time given.
func (w *world) watch(p *pod, since time.Time) {
	held := w.held[p.NodeName]
	if len(held) == 0 || p.Terminating {
		return
	}
	if p.due = eviction.Deadline(p.object.Spec.Tolerations, since, held); !p.due.Stays() {
		heap.Push(&w.leaving, p)
	}
}

// after is when, from the beginning, an eviction is due. What was due before is due at the beginning.
func (w *world) after(p *pod) time.Duration { return max(p.due.At.Sub(w.start), 0) }

// pass lets time pass: evictions come due, controllers make the pods again that went, and these and all that wait are tried.
func (w *world) pass() {
	w.settle()
	evicted := time.Duration(-1) // when pods were last evicted
	for w.next() != nil {
		at := max(w.after(w.next()), w.now)
		if at == evicted {
			// A pod came back to where it may not stay. Time must go on: a second is what controllers need at least.
			at += time.Second
		}
		if at > w.options.For {
			break
		}
		w.now, evicted = at, at
		for p := w.next(); p != nil && w.after(p) <= at; p = w.next() {
			heap.Pop(&w.leaving)
			w.evict(p)
		}
		w.settle()
	}
	w.now = w.options.For
}

// next returns the pod that has to leave first, or nil.
func (w *world) next() *pod {
	for len(w.leaving) > 0 {
		if p := w.leaving[0]; !p.gone {
			return p
		}
		heap.Pop(&w.leaving)
	}
	return nil
}

func (w *world) evict(p *pod) {
	w.said.Evictions = append(w.said.Evictions, evictionOf(p, w.now))
	w.remove(p.Pod)
	w.replace(p)
}

func evictionOf(p *pod, after time.Duration) Eviction {
	return Eviction{Namespace: p.Namespace(), Name: p.Name, Node: p.NodeName, After: Seconds(after), Taint: p.due.Taint.ToString()}
}

// outlook lists the evictions that are still to come behind those that have happened.
func (w *world) outlook() {
	for _, p := range w.leaving {
		if !p.gone {
			w.said.Evictions = append(w.said.Evictions, evictionOf(p, w.after(p)))
		}
	}
	slices.SortStableFunc(w.said.Evictions, func(a, b Eviction) int {
		return cmp.Or(cmp.Compare(a.After, b.After), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

// departures are the pods that have to leave, by when: a heap.
type departures []*pod

func (d departures) Len() int { return len(d) }

func (d departures) Less(i, j int) bool {
	return cmp.Or(d[i].due.At.Compare(d[j].due.At), cmp.Compare(d[i].number, d[j].number)) < 0
}

func (d departures) Swap(i, j int) { d[i], d[j] = d[j], d[i] }

// Push and Pop are for package heap.
func (d *departures) Push(x any) { *d = append(*d, x.(*pod)) }

// Pop takes the last one.
func (d *departures) Pop() any {
	last := (*d)[len(*d)-1]
	*d = (*d)[:len(*d)-1]
	return last
}
