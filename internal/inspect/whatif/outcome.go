// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"cmp"
	"slices"
	"strings"

	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// before is the state before the first step. Its pending pods, decisions and departures are no
// effect of the steps.
type before struct {
	waited            map[simulate.Name]string // see pendingPods
	decided, departed int                      // numbers of decisions and departures
}

// applied holds the results of the steps that the forecast summarizes at its end.
type applied struct {
	drains []*simulate.Drained
	held   []simulate.Blocked // pods that could not be evicted
}

// compareWith separates the pods that leave because of the operations from the pods that also leave
// without them. departed is the number of departures before the first step.
func (f *Forecast) compareWith(w *simulate.World, base *baseline, departed int, done applied) {
	for _, d := range w.Departures()[:departed] { // victims of currently pending pods
		f.Anyway = append(f.Anyway, leavingOf(d))
	}
	departures := w.Departures()[departed:]
	f.Spared = base.sparedPods(w, departures)
	var caused []*simulate.Departure
	for _, d := range departures {
		l := leavingOf(d)
		if base.hasDeparture(d) {
			f.Anyway = append(f.Anyway, l)
			continue
		}
		l.Otherwise = base.otherwiseLeaves(d)
		caused = append(caused, d)
		f.Leaving = append(f.Leaving, l)
	}
	f.Later = base.laterEvictions(w)
	for _, d := range done.drains {
		f.Drains = append(f.Drains, Drain{
			Nodes: d.Nodes, Refused: d.Refused, Ignored: d.Ignored, Terminating: d.Terminating, Blocked: d.Blocked, Waited: d.Waited,
		})
	}
	f.sumBudgets(done.held, done.drains, caused)
}

// pendingPods returns the pods without a node, with their reasons for pending. It excludes
// completed pods.
func pendingPods(w *simulate.World) map[simulate.Name]string {
	list := map[simulate.Name]string{}
	for _, p := range w.Each() {
		if p.Pod != nil && p.Pod.NodeName == "" {
			list[simulate.Name{Namespace: p.Object.Namespace, Name: p.Object.Name}] = cmp.Or(p.Refused, p.Message)
		}
	}
	return list
}

// leavingOf converts a departure for the forecast.
func leavingOf(d *simulate.Departure) Leaving {
	l := Leaving{
		Namespace: d.Namespace, Name: d.Name, Node: d.Node, After: d.After, Cause: d.Cause, Detail: d.Detail,
		Controller: d.Owner, Fate: d.Fate, Reason: d.Reason,
		Again: d.Again,
	}
	if name, node, message, ok := d.Next(); ok {
		l.Next = &Next{Name: name.Name, After: d.Made, Node: node, Message: message}
		if node != "" {
			l.Next.Message = ""
		}
	}
	return l
}

// listOutcome lists the newly placed pods and the pending pods. Replacements of departed pods are
// listed with their predecessors.
func (f *Forecast) listOutcome(w *simulate.World, base *baseline, was before) {
	// Replacements are reported with the pods that they replace, because their names occur in no
	// manifest.
	returned := map[simulate.Name]bool{}
	for _, l := range slices.Concat(f.Leaving, f.Anyway) {
		if l.Next != nil {
			returned[simulate.Name{Namespace: l.Namespace, Name: l.Next.Name}] = true
		}
	}

	for _, p := range w.Pods()[was.decided:] {
		name := simulate.Name{Namespace: p.Namespace, Name: p.Name}
		if _, before := was.waited[name]; p.Node != "" && !returned[name] {
			f.Placed = append(f.Placed, Placed{
				Namespace: p.Namespace, Name: p.Name, Node: p.Node, After: p.After, Before: before,
				Anyway: base != nil && base.placed[name],
			})
		}
	}

	for _, p := range w.Each() {
		if p.Pod == nil || p.Pod.NodeName != "" {
			continue
		}
		_, before := was.waited[simulate.Name{Namespace: p.Object.Namespace, Name: p.Object.Name}]
		f.Pending = append(f.Pending, Waiting{
			Namespace: p.Object.Namespace, Name: p.Object.Name, Group: p.Group, Message: cmp.Or(p.Refused, p.Message), Before: before,
			Anyway: base.isPending(p, before),
		})
	}
}

// sumBudgets lists the affected disruption budgets: budgets that held pods back, and budgets
// violated by pods that left nonetheless.
func (f *Forecast) sumBudgets(held []simulate.Blocked, drains []*simulate.Drained, departures []*simulate.Departure) {
	hit := map[simulate.Name]*Budget{}
	at := func(namespace, name string) *Budget {
		key := simulate.Name{Namespace: namespace, Name: name}
		if hit[key] == nil {
			hit[key] = &Budget{Namespace: namespace, Name: name, Pods: []string{}}
		}
		return hit[key]
	}

	for _, d := range drains {
		held = append(append(held, d.Blocked...), d.Waited...)
	}
	for _, b := range held {
		budget := at(b.Namespace, b.Budget)
		budget.Blocks = true
		budget.Pods = append(budget.Pods, b.Name)
	}

	for _, d := range departures {
		for _, name := range d.Broken {
			budget := at(d.Namespace, name)
			if budget.Broken = true; !d.Again {
				budget.Pods = append(budget.Pods, d.Name)
			}
		}
	}

	for _, b := range hit {
		f.Budgets = append(f.Budgets, *b)
	}
	slices.SortFunc(f.Budgets, func(a, b Budget) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
}
