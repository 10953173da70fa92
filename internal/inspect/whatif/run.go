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

// Step is an operation, and the words in which it was requested. Either Operation, Choose
// or Catalog is set.
type Step struct {
	Words string
	*simulate.Operation
	// Choose, if not 0, is how many nodes to drain instead of an operation: those that cost least
	// to lose.
	Choose int
	Drain  *simulate.Drain
	// Catalog, if set, is what nodes may be bought from for the pods that are pending after the
	// operations before it, instead of an operation. It is the last step.
	Catalog *provision.Catalog
	// Scored is set if the scheduler is to place all pods on the nodes of the plan by its scores.
	Scored bool
	// Replace is set if nodes that there are may go, or be exchanged for cheaper ones.
	Replace bool
	// Spot, if set, is the largest share of all CPU that spot capacity may have.
	Spot *float64
}

// Options say how far to look. The zero value looks until the cluster is quiet, within
// limits.
type Options struct {
	// For is how much time passes; 0 means until nothing more is to happen, but no longer than a
	// day, or an hour while node health is still at work.
	For    time.Duration
	Source simulate.Source
	// Progress, if set, is called with how far the forecast is: first with the operations, and
	// then, where things happen anyway, without them. until is when it ends; 0 is when nothing more
	// happens.
	Progress func(elapsed, until time.Duration, without bool)
	// Planning, if set, is called with how far a plan of nodes is.
	Planning func(words string)
}

// longest is how far a forecast looks by default: a cluster may never settle. Node health
// may taint the unready nodes of a large cluster for a day; for that a forecast waits for
// patience only.
const (
	longest  = 24 * time.Hour
	patience = time.Hour
)

// Run carries out the steps in the world and returns their outcome, compared with the
// same time without them, so that what happens anyway is listed separately. Pending pods
// are tried first, for the same reason. The world is used up by that.
//
//	world    settle -> steps -> time passes ------> outcome
//	twin     settle ----------> the same time ----> baseline
//	Leaving = in the world only; Anyway = in both; Spared = in the twin only
func Run(w *simulate.World, steps []Step, o Options) (*Forecast, error) {
	if o.Progress != nil {
		w.Watch(func(elapsed time.Duration) { o.Progress(elapsed, o.For, false) })
	}
	barren := o.For == 0 && len(steps) == 1 && steps[0].Catalog != nil && w.Barren()
	if !barren { // there, the first attempts are those on the nodes that are planned
		w.MakeMissing()
		w.Settle()
	}
	// A node that is failing already is part of the state, not an effect of the
	// steps.
	w.BeginHealth()
	// An allowance may be used up before the first step.
	if err := w.Err(); err != nil {
		return nil, err
	}
	var without *simulate.World // nil: nothing happens there
	if !barren && !w.Uneventful() {
		var err error
		if without, err = w.Twin(); err != nil {
			return nil, err
		}
		without.MakeMissing()
		without.Settle()
		without.BeginHealth()
	}
	f := &Forecast{
		APIVersion: simulate.APIVersion, Kind: Kind, Source: o.Source,
		Leaving: []Leaving{}, Pending: []Waiting{}, Placed: []Placed{}, Budgets: []Budget{}, Operations: []string{},
	}
	// The state before the first step: what has been decided up to here is not an effect
	// of the steps.
	waited := pendingPods(w)
	decided, departed := len(w.Pods()), len(w.Departures())
	f.Utilisation.Before = utilisationOf(w)
	var drains []*simulate.Drained
	var held []simulate.Blocked // by budgets, when they were to be evicted
	var catalog *provision.Catalog
	for _, s := range steps {
		f.Operations = append(f.Operations, s.Words)
		if s.Catalog != nil {
			catalog = s.Catalog
			continue
		}
		// Choosing also drains, so it is a step with results of its own.
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
		// Drains and rebalances are complete only when time has passed: pointers are
		// kept.
		if done.Moved != nil {
			f.Rebalances = append(f.Rebalances, done.Moved)
		}
		if done.Fill != nil {
			f.Fills = append(f.Fills, *done.Fill)
		}
	}
	// Choosing nodes and draining them has let time pass already.
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
		// A plan is judged in worlds of its own, in which the steps have been done as
		// well.
		open := func() (*simulate.World, error) { return again(w, steps, passed) }
		// The plan by itself places pods as it was computed; the scheduler's scores
		// may spread them.
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
	// Without a given time, it is as long as things took.
	f.For = simulate.Seconds(cmp.Or(o.For, lasted))
	if o.For == 0 && !f.Settled {
		f.Notes = append(f.Notes, fmt.Sprintf("the forecast ends after %s, when things still happen: --for looks further", textOf(f.For)))
	}
	// Last, because only now it is known how much time has passed. Both must have the
	// same.
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
	// After everything that needs the single departures.
	f.Leaving, f.Later = foldRecurring(f.Leaving, f.Later)
	f.Anyway, _ = foldRecurring(f.Anyway, w.Outlook())
	f.Utilisation.After = utilisationOf(w)
	return f, nil
}

// advanceTime lets so much time pass; with 0, as much as Options.For says. It returns how
// much it was. While only node health is at work, it does not go on after the first hour.
func (f *Forecast) advanceTime(w *simulate.World, exactly time.Duration) time.Duration {
	most := w.Elapsed() + cmp.Or(exactly, longest)
	until := w.Elapsed() + cmp.Or(exactly, patience)
	for {
		f.Settled = w.AdvanceUntilQuiet(until)
		switch {
		case f.Settled:
			return w.Elapsed()
		// The world stopped, the time is over, or only taints are to come.
		case w.Err() != nil || until >= most || w.OnlyTaints():
			return until
		}
		// Something other than taints is under way, such as a drain: look again after a
		// while.
		until = min(until+patience/4, most)
	}
}

// again returns a world in which the steps are done again, and so much time has passed.
// It is in the same state as the first: chance comes from the same seed.
func again(w *simulate.World, steps []Step, elapsed time.Duration) (*simulate.World, error) {
	again, err := w.Twin()
	if err != nil {
		return nil, err
	}

	again.MakeMissing()
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

// compareWith separates the pods that leave because of the operations from those that
// leave without them, too. departed is how many had left before the first step.
func (f *Forecast) compareWith(w *simulate.World, base *baseline, departed int, drains []*simulate.Drained, held []simulate.Blocked) {
	for _, d := range w.Departures()[:departed] { // victims of pods that are pending now
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

// pendingPods returns the pods without a node, and why each is pending. Pods that have
// ended are none.
func pendingPods(w *simulate.World) map[simulate.Name]string {
	list := map[simulate.Name]string{}
	for _, p := range w.Each() {
		if p.Pod != nil && p.Pod.NodeName == "" {
			list[simulate.Name{Namespace: p.Object.Namespace, Name: p.Object.Name}] = cmp.Or(p.Refused, p.Message)
		}
	}
	return list
}

// leavingOf is a departure as the forecast lists it.
func leavingOf(d *simulate.Departure) Leaving {
	l := Leaving{
		Namespace: d.Namespace, Name: d.Name, Node: d.Node, After: d.After, Cause: d.Cause, Detail: d.Detail,
		Controller: d.Owner, Fate: d.Fate, Reason: d.Reason,
		Again: d.Again,
	}
	if name, node, message, ok := d.Next(); ok {
		l.Next = &Next{Name: name.Name, Node: node, Message: message}
		if node != "" {
			l.Next.Message = ""
		}
	}
	return l
}

// listOutcome lists the pods that got a node, and those that are pending. decided is how
// many decisions there were before the first step. Replacements of pods that left are
// listed with these.
func (f *Forecast) listOutcome(w *simulate.World, base *baseline, waited map[simulate.Name]string, decided int) {
	// The names that replacements have here are in no manifest; they are told with the
	// pods that left.
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

// sumBudgets sums up which disruption budgets are hit: those that held pods back, and
// those that were violated by pods that left all the same.
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
