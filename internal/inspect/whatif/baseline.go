// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"cmp"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// baseline records the events of the same period without the operations. A nil baseline represents
// an uneventful cluster; all methods accept it. Matching consumes the baseline, so that each of its
// departures matches at most one departure of the forecast.
type baseline struct {
	// left has the times of departures, by identity. Several replacements of one workload can share
	// a key. hasDeparture removes matched times.
	left map[departure][]simulate.Seconds
	// first is the first departure of each pod, by its name.
	first map[simulate.Name]*simulate.Departure
	// due has the evictions still pending at the end. late counts these evictions by controller,
	// node and taint.
	due  map[departure]bool
	late map[departure]int
	// pending has the pods without a node both at the beginning and at the end. homeless counts the
	// other pods without a node at the end, by controller.
	pending  map[simulate.Name]bool
	homeless map[rules.Owner]int
	placed   map[simulate.Name]bool

	// outlook lists the evictions pending at the end, order lists the departures in order of time,
	// and full is the utilisation at the end.
	outlook []simulate.Eviction
	order   []*simulate.Departure
	full    *Utilisation
}

// departure identifies a departure in the worlds with and without the operations. Names of
// replacements differ between the worlds, so a replacement is identified by its controller.
type departure struct {
	pod, owner, node string
	by               rules.Owner // instead of owner, for a pending eviction
	cause            simulate.Cause
	detail           string
}

// departureOf returns the identity of a departure. It omits the name of a replacement that leaves
// again.
func departureOf(d *simulate.Departure) departure {
	key := departure{cause: d.Cause, detail: d.Detail, owner: d.Namespace + "/" + d.Owner, node: d.Node}
	if !d.Again {
		key.pod = d.Namespace + "/" + d.Name
	}
	return key
}

// dueOf returns the identity of a pending eviction of a pod present in both worlds.
func dueOf(e *simulate.Eviction) departure {
	return departure{pod: e.Namespace + "/" + e.Name, node: e.Node, cause: simulate.ByTaint, detail: e.Taint}
}

// lateOf returns the identity of a replacement's pending eviction, by its controller.
func lateOf(w *simulate.World, e *simulate.Eviction) departure {
	key := departure{node: e.Node, cause: simulate.ByTaint, detail: e.Taint}
	if p, ok := w.Find(e.Namespace, e.Name); ok {
		key.by = rules.OwnerOf(p.Object)
	}
	return key
}

// laterEvictions returns the pending evictions caused only by the operations. It matches pods
// present in both worlds by name, and the remaining pods by controller, node and taint.
func (b *baseline) laterEvictions(w *simulate.World) (list []simulate.Eviction) {
	if b == nil {
		return w.Outlook()
	}
	var others []simulate.Eviction
	for _, e := range w.Outlook() {
		// Match pods of both worlds first, so that only replacements remain.
		switch {
		case b.due[dueOf(&e)]:
			b.late[lateOf(w, &e)]--
		case b.first[simulate.Name{Namespace: e.Namespace, Name: e.Name}] == nil:
			others = append(others, e)
		}
	}

	// Replacements are interchangeable: only the number per workload and node matters.
	for _, e := range others {
		if key := lateOf(w, &e); key.by != (rules.Owner{}) && b.late[key] > 0 {
			b.late[key]--
		} else {
			list = append(list, e)
		}
	}
	return list
}

// baselineOf summarises the events of a world without operations. waited are the pods pending at
// the beginning; departed and decided are the numbers of departures and decisions by then.
func baselineOf(w *simulate.World, waited map[simulate.Name]string, departed, decided int) *baseline {
	b := &baseline{
		left: map[departure][]simulate.Seconds{}, first: map[simulate.Name]*simulate.Departure{},
		due: map[departure]bool{}, late: map[departure]int{},
		pending: map[simulate.Name]bool{}, homeless: map[rules.Owner]int{}, placed: map[simulate.Name]bool{},
		outlook: w.Outlook(), order: w.Departures()[departed:],
	}

	for _, d := range b.order {
		b.left[departureOf(d)] = append(b.left[departureOf(d)], d.After)
		if name := (simulate.Name{Namespace: d.Namespace, Name: d.Name}); b.first[name] == nil {
			b.first[name] = d
		}
	}

	for i := range b.outlook {
		b.due[dueOf(&b.outlook[i])] = true
		b.late[lateOf(w, &b.outlook[i])]++
	}

	for _, p := range w.Pods()[decided:] {
		if p.Node != "" {
			b.placed[simulate.Name{Namespace: p.Namespace, Name: p.Name}] = true
		}
	}

	for _, p := range w.Each() {
		if p.Pod != nil && p.Pod.NodeName == "" {
			name := simulate.Name{Namespace: p.Object.Namespace, Name: p.Object.Name}
			if _, before := waited[name]; before {
				b.pending[name] = true
			} else {
				b.homeless[rules.OwnerOf(p.Object)]++
			}
		}
	}

	u := utilisationOf(w)
	b.full = &u
	return b
}

// hasDeparture reports whether the departure also happens without the operations: no later, or as
// an eviction that is still pending at the end. Each of the baseline's departures is matched once.
// A pod that leaves earlier because of the operations counts as leaving because of them.
func (b *baseline) hasDeparture(d *simulate.Departure) bool {
	if b == nil {
		return false
	}
	key := departureOf(d)
	for i, after := range b.left[key] {
		// A replacement leaves repeatedly, in both worlds, at slightly different times.
		if after <= d.After || d.Again {
			b.left[key] = slices.Delete(b.left[key], i, i+1)
			return true
		}
	}
	// Without the operations, the same eviction is still pending at the end.
	return b.due[dueOf(&simulate.Eviction{Namespace: d.Namespace, Name: d.Name, Node: d.Node, Taint: d.Detail})] &&
		d.Cause == simulate.ByTaint
}

// otherwiseLeaves returns how the pod leaves without the operations, or nil if it stays. It is
// called for departures that hasDeparture did not match, because they are earlier or have another
// cause.
func (b *baseline) otherwiseLeaves(d *simulate.Departure) *Otherwise {
	if b == nil || d.Again {
		return nil
	}
	if first := b.first[simulate.Name{Namespace: d.Namespace, Name: d.Name}]; first != nil && first.Node == d.Node {
		return &Otherwise{After: first.After, Cause: first.Cause, Detail: first.Detail}
	}
	for i := range b.outlook {
		if e := &b.outlook[i]; e.Namespace == d.Namespace && e.Name == d.Name && e.Node == d.Node {
			return &Otherwise{After: e.After, Cause: simulate.ByTaint, Detail: e.Taint}
		}
	}
	return nil
}

// isPending reports whether the pod itself, or another replacement of its workload, is also pending
// without the operations. before is set if the pod was pending at the beginning.
func (b *baseline) isPending(p simulate.Found, before bool) bool {
	if b == nil {
		return before
	}
	if before {
		return b.pending[simulate.Name{Namespace: p.Object.Namespace, Name: p.Object.Name}]
	}
	owner := rules.OwnerOf(p.Object)
	// Each pending replacement of the baseline matches one here.
	b.homeless[owner]--
	return owner != (rules.Owner{}) && b.homeless[owner] >= 0
}

// sparedPods returns the pods that stay only because of the operations, for example because a taint
// is removed in time. They are ordered by the time of their departure without the operations.
func (b *baseline) sparedPods(w *simulate.World, departures []*simulate.Departure) (list []Leaving) {
	if b == nil {
		return nil
	}
	leaves := map[simulate.Name]bool{}
	for _, d := range departures {
		leaves[simulate.Name{Namespace: d.Namespace, Name: d.Name}] = true
	}

	for _, e := range w.Outlook() {
		leaves[simulate.Name{Namespace: e.Namespace, Name: e.Name}] = true
	}
	for _, d := range b.order {
		if found, ok := w.Find(d.Namespace, d.Name); !d.Again && ok && found.Pod != nil &&
			!leaves[simulate.Name{Namespace: d.Namespace, Name: d.Name}] {
			list = append(list, leavingOf(d))
		}
	}

	for _, e := range b.outlook {
		if found, ok := w.Find(e.Namespace, e.Name); ok && found.Pod != nil &&
			!leaves[simulate.Name{Namespace: e.Namespace, Name: e.Name}] {
			list = append(list, Leaving{Namespace: e.Namespace, Name: e.Name, Node: e.Node, After: e.After,
				Cause: simulate.ByTaint, Detail: e.Taint})
		}
	}

	slices.SortStableFunc(list, func(a, b Leaving) int { return cmp.Compare(a.After, b.After) })
	return list
}
