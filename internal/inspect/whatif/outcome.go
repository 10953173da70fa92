// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berth-k8s/berth/internal/answer"
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
	f.Anyway = answer.Mapped(w.Departures()[:departed], leavingOf) // victims of currently pending pods
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
	f.Drains = answer.Mapped(done.drains, func(d *simulate.Drained) Drain { return Drain(*d) })
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
		if b.Budget == "" { // held by the eviction guard
			continue
		}
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

// addEvictions records the results of the Eviction API, and returns the pods that could not be
// evicted, in the form of pods held during a drain.
func (f *Forecast) addEvictions(list []simulate.Evicted) (held []simulate.Blocked) {
	f.Evictions = append(f.Evictions, list...)
	for _, e := range list {
		// A refused eviction counts like a pod held in a drain.
		if e.Refused != "" {
			held = append(held, simulate.Blocked{Namespace: e.Namespace, Name: e.Name, Node: e.Node, Budget: e.Budget, Message: e.Refused})
		}
	}
	return held
}

// findRoom finds the pods placed on the nodes of evicted pods. Leaving and Placed must be set.
func (f *Forecast) findRoom() {
	came := map[string][]string{}
	for _, l := range f.Leaving {
		if l.Next != nil {
			came[l.Next.Node] = append(came[l.Next.Node], l.Namespace+"/"+l.Next.Name)
		}
	}
	for _, p := range f.placedByThis() {
		came[p.Node] = append(came[p.Node], p.Namespace+"/"+p.Name)
	}
	for i := range f.Evictions {
		// Arrivals cannot be attributed to one of several evicted pods, so list all arrivals for
		// each.
		if e := &f.Evictions[i]; e.Refused == "" {
			e.Room = came[e.Node]
		}
	}
}

// printEvictions prints for each eviction the decisive budget and the pods taking the room.
func (p printer) printEvictions(list []simulate.Evicted) {
	for _, e := range list {
		if e.Refused != "" {
			p.Warning("\n%s/%s stays on %s: %s.", e.Namespace, e.Name, e.Node, e.Refused)
			continue
		}
		// The budget covering the pod, if any, and the pods taking its room.
		because, room := "no disruption budget holds it back", "stays free"
		if e.Budget != "" {
			because = "the disruption budget " + e.Budget + " allows it, and then " + answer.Count(int(e.Left), "more disruption")
		}
		if len(e.Room) > 0 {
			room = "goes to " + answer.List(len(e.Room), func(i int) string { return e.Room[i] })
		}
		p.Line("\n%s/%s: %s. Its room on %s %s.", e.Namespace, e.Name, because, e.Node, room)
	}
}

// returning is a listed pod that repeatedly returns, under new names, to a node it may not stay on.
type returning struct {
	at   int              // index in the list
	last simulate.Seconds // time of the last departure of the pod or of its replacements
}

// foldRecurring lists a pod only once if it repeatedly returns to a node it may not stay on, with
// the duration of each stay. later lists the pending evictions; rest omits the evictions of
// returned pods. Neither list is modified. For example, a pod that tolerates its node's taint for
// 300s:
//
//	web-1 leaves after 300s, comes back as web-2
//	web-2 leaves after 600s, comes back as web-3    -> one line: web-1, every 300s
//	web-3 is due after 900s
func foldRecurring(list []Leaving, later []simulate.Eviction) (once []Leaving, rest []simulate.Eviction) {
	once, rest = list[:0:0], later[:0:0]  // keeps an empty list non-nil for JSON
	back := map[simulate.Name]returning{} // replacements by name
	follow := func(l *Leaving, r returning) {
		if l.Next != nil {
			back[simulate.Name{Namespace: l.Namespace, Name: l.Next.Name}] = r
		}
	}
	stays := func(r returning, until simulate.Seconds) {
		once[r.at].Every = cmp.Or(once[r.at].Every, until-r.last)
	}

	for i := range list {
		l := &list[i]
		r, known := back[simulate.Name{Namespace: l.Namespace, Name: l.Name}]
		if !l.Again || !known {
			once = append(once, *l)
			follow(l, returning{len(once) - 1, l.After})
			continue
		}
		stays(r, l.After)
		follow(l, returning{r.at, l.After})
	}
	for _, e := range later {
		if r, known := back[simulate.Name{Namespace: e.Namespace, Name: e.Name}]; known {
			stays(r, e.After)
		} else {
			rest = append(rest, e)
		}
	}
	return once, rest
}

// atOnce is the delay until a pod that may not stay at all is evicted: the second that package
// simulate allows controllers to react.
const atOnce = simulate.Seconds(time.Second)

// recursText describes the interval at which a pod leaves a node it may not stay on, or returns "".
// It continues thenText.
func (l *Leaving) recursText() string {
	switch {
	case l.Every == 0:
		return ""
	case l.Every <= atOnce:
		return ", where it may not stay either: it is evicted again immediately, each time"
	}
	return fmt.Sprintf(", where it may not stay either: it is evicted again every %s", textOf(l.Every))
}
