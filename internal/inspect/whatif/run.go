// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berth-k8s/berth/internal/inspect/provision"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// Step is an operation, with its wording in the request. Exactly one of Operation, Choose and
// Catalog is set.
type Step struct {
	Words string
	*simulate.Operation
	// Choose, if not 0, replaces the operation. It is the number of nodes to drain: the nodes that
	// are cheapest to lose.
	Choose int
	Drain  *simulate.Drain
	// Catalog, if set, replaces the operation. It lists the nodes that can be bought for pods still
	// pending after the preceding steps. The step must be the last.
	Catalog *provision.Catalog
	// Scored makes the scheduler place all pods on the nodes of the plan by its scores.
	Scored bool
	// Replace allows removing existing nodes, or exchanging them for cheaper ones.
	Replace bool
	// Spot, if set, is the largest share of spot capacity in the total CPU.
	Spot *float64
}

// Options limit the forecast. The zero value advances until the cluster is quiet, within limits.
type Options struct {
	// For is the time to advance. 0 means until no more events are pending, but at most a day, or
	// an hour while only node health is still active.
	For    time.Duration
	Source simulate.Source
	// Progress, if set, receives the progress of the forecast: first with the operations, and then,
	// if the baseline is eventful, without them. until is the end of the forecast; 0 means the end
	// of all events.
	Progress func(elapsed, until time.Duration, without bool)
	// Planning, if set, receives the progress of a plan of nodes.
	Planning func(words string)
}

// longest is the default horizon of a forecast, because a cluster may never settle. patience is the
// horizon while only node health is active, which may take a day to taint the unready nodes of a
// large cluster.
const (
	longest  = 24 * time.Hour
	patience = time.Hour
)

// Run applies the steps to the world and returns their outcome. It compares the outcome with the
// same period without the steps, so that events that happen anyway are listed separately. For the
// same reason it tries pending pods first. It consumes the world.
//
//	world    settle -> steps -> time passes ------> outcome
//	twin     settle ----------> the same time ----> baseline
//	Leaving = in the world only; Anyway = in both; Spared = in the twin only
func Run(w *simulate.World, steps []Step, o Options) (*Forecast, error) {
	if o.Progress != nil {
		w.Watch(func(elapsed time.Duration) { o.Progress(elapsed, o.For, false) })
	}
	barren := o.For == 0 && len(steps) == 1 && steps[0].Catalog != nil && w.Barren()
	if !barren { // in a barren world, pods are first tried on the nodes of the plan
		w.MakeMissing(simulate.MostPods)
		w.Settle()
	}
	// An already failing node is part of the state rather than an effect of the steps.
	w.BeginHealth()
	// An allowance may be used up before the first step.
	if err := w.Err(); err != nil {
		return nil, err
	}
	var without *simulate.World // nil if nothing would happen without the steps
	if !barren && !w.Uneventful() {
		var err error
		if without, err = w.Twin(); err != nil {
			return nil, err
		}
		without.MakeMissing(simulate.MostPods)
		without.Settle()
		without.BeginHealth()
	}
	f := &Forecast{
		APIVersion: simulate.APIVersion, Kind: Kind, Source: o.Source,
		Leaving: []Leaving{}, Pending: []Waiting{}, Placed: []Placed{}, Budgets: []Budget{}, Operations: []string{},
	}
	// The state before the first step: decisions so far are not an effect of the steps.
	waited := pendingPods(w)
	decided, departed := len(w.Pods()), len(w.Departures())
	f.Utilisation.Before = utilisationOf(w)
	var drains []*simulate.Drained
	var held []simulate.Blocked // pods that could not be evicted
	var catalog *provision.Catalog
	for _, s := range steps {
		f.Operations = append(f.Operations, s.Words)
		if s.Catalog != nil {
			catalog = s.Catalog
			continue
		}
		// Choosing also drains, so it is a step with its own results.
		if s.Choose > 0 {
			chosen, drained, err := w.Choose(s.Choose, s.Drain)
			if err != nil {
				return nil, err
			}
			f.Chosen, drains = append(f.Chosen, chosen...), append(drains, drained...)
			continue
		}
		done, err := w.Do(s.Operation)
		if err != nil {
			return nil, err
		}
		f.Notes = append(f.Notes, done.Notes...)
		if done.Drain != nil {
			drains = append(drains, done.Drain)
		}
		held = append(held, f.addEvictions(done.Evicted)...)
		// Keep pointers, because drains and rebalances complete only after time has passed.
		if done.Moved != nil {
			f.Rebalances = append(f.Rebalances, done.Moved)
		}
		if done.Fill != nil {
			f.Fills = append(f.Fills, *done.Fill)
		}
	}
	// Choosing nodes and draining them has already advanced the time.
	lasted := w.Elapsed()
	if f.Settled = barren; !barren {
		lasted = f.advanceTime(w, o.For)
	}
	if err := w.Err(); err != nil {
		return nil, err
	}
	if catalog != nil {
		var err error
		last := steps[len(steps)-1]
		planning := provision.Options{Progress: o.Planning, Spot: last.Spot}
		if f.Provision, err = provision.Make(w, catalog, planning); err != nil {
			return nil, err
		}
		passed := w.Elapsed()
		// Evaluate the plan in separate worlds, each with the same steps applied.
		open := func() (*simulate.World, error) { return again(w, steps, passed) }
		// The plan by itself places pods as computed; the scheduler's scores may spread them.
		if last.Scored {
			scoring, err := open()
			if err != nil {
				return nil, err
			}
			if err := f.Provision.Score(scoring, planning); err != nil {
				return nil, err
			}
		}
		if last.Replace {
			if err := f.Provision.Replace(open, planning); err != nil {
				return nil, err
			}
		}
	}
	// Without a given time, use the duration of the events.
	f.For = simulate.Seconds(cmp.Or(o.For, lasted))
	if o.For == 0 && !f.Settled {
		f.Notes = append(f.Notes, fmt.Sprintf("the forecast ends after %s, when things still happen: --for looks further", textOf(f.For)))
	}
	// Do this last, because both worlds must advance by the same time, which is only known now.
	var base *baseline
	if without != nil {
		before, placed, until := len(without.Departures()), len(without.Pods()), max(lasted, o.For)
		if o.Progress != nil {
			without.Watch(func(elapsed time.Duration) { o.Progress(elapsed, until, true) })
		}
		without.Advance(until)
		if err := without.Err(); err != nil {
			return nil, err
		}
		base = baselineOf(without, waited, before, placed)
		f.Utilisation.Without = base.full
	}
	f.compareWith(w, base, departed, drains, held)
	f.listOutcome(w, base, waited, decided)
	f.findRoom()
	// Fold last, because the code above needs the individual departures.
	f.Leaving, f.Later = foldRecurring(f.Leaving, f.Later)
	f.Anyway, _ = foldRecurring(f.Anyway, w.Outlook())
	f.Utilisation.After = utilisationOf(w)
	return f, nil
}

// advanceTime advances the world by the given time, or with 0 as defined by Options.For, and
// returns the end. It stops after an hour if only node health is then active.
func (f *Forecast) advanceTime(w *simulate.World, exactly time.Duration) time.Duration {
	most := w.Elapsed() + cmp.Or(exactly, longest)
	until := w.Elapsed() + cmp.Or(exactly, patience)
	for {
		f.Settled = w.AdvanceUntilQuiet(until)
		switch {
		case f.Settled:
			return w.Elapsed()
		// The world stopped, the time is over, or only taints are pending.
		case w.Err() != nil || until >= most || w.OnlyTaints():
			return until
		}
		// Events other than taints are pending, such as a drain: check again after a while.
		until = min(until+patience/4, most)
	}
}

// again returns a world with the steps applied again and the given time elapsed. It is in the same
// state as w, because the random seed is the same.
func again(w *simulate.World, steps []Step, elapsed time.Duration) (*simulate.World, error) {
	again, err := w.Twin()
	if err != nil {
		return nil, err
	}

	again.MakeMissing(simulate.MostPods)
	again.Settle()
	again.BeginHealth()
	for _, s := range steps {
		switch {
		case s.Catalog != nil:
		case s.Choose > 0:
			_, _, err = again.Choose(s.Choose, s.Drain)
		default:
			_, err = again.Do(s.Operation)
		}
		if err != nil {
			return nil, err
		}
	}
	again.Advance(elapsed)
	return again, nil
}

// compareWith separates the pods that leave because of the operations from the pods that also leave
// without them. departed is the number of departures before the first step.
func (f *Forecast) compareWith(w *simulate.World, base *baseline, departed int, drains []*simulate.Drained, held []simulate.Blocked) {
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
	for _, d := range drains {
		f.Drains = append(f.Drains, Drain{
			Nodes: d.Nodes, Refused: d.Refused, Ignored: d.Ignored, Terminating: d.Terminating, Blocked: d.Blocked, Waited: d.Waited,
		})
	}
	f.sumBudgets(held, drains, caused)
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

// listOutcome lists the newly placed pods and the pending pods. decided is the number of decisions
// before the first step. Replacements of departed pods are listed with their predecessors.
func (f *Forecast) listOutcome(w *simulate.World, base *baseline, waited map[simulate.Name]string, decided int) {
	// Replacements are reported with the pods that they replace, because their names occur in no
	// manifest.
	returned := map[simulate.Name]bool{}
	for _, l := range slices.Concat(f.Leaving, f.Anyway) {
		if l.Next != nil {
			returned[simulate.Name{Namespace: l.Namespace, Name: l.Next.Name}] = true
		}
	}

	for _, p := range w.Pods()[decided:] {
		name := simulate.Name{Namespace: p.Namespace, Name: p.Name}
		if _, before := waited[name]; p.Node != "" && !returned[name] {
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
		_, before := waited[simulate.Name{Namespace: p.Object.Namespace, Name: p.Object.Name}]
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
