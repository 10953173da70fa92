// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"cmp"
	"fmt"
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
	// Provision configures the plan; Options.Planning is its Progress.
	Provision provision.Options
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
	without, err := settle(w, barren)
	if err != nil {
		return nil, err
	}

	f := &Forecast{
		APIVersion: simulate.APIVersion, Kind: Kind, Source: o.Source,
		Leaving: []Leaving{}, Pending: []Waiting{}, Placed: []Placed{}, Budgets: []Budget{}, Operations: []string{},
	}
	f.Utilisation.Before = utilisationOf(w)
	before := before{waited: pendingPods(w), decided: len(w.Pods()), departed: len(w.Departures())}
	done, err := f.applySteps(w, steps)
	if err != nil {
		return nil, err
	}
	// Choosing nodes and draining them has already advanced the time.
	lasted := w.Elapsed()
	if f.Settled = barren; !barren {
		lasted = f.advanceTime(w, o.For)
	}
	if err := w.Err(); err != nil {
		return nil, err
	}
	if err := f.planNodes(w, steps, o); err != nil {
		return nil, err
	}
	// Without a given time, use the duration of the events.
	f.For = simulate.Seconds(cmp.Or(o.For, lasted))
	if o.For == 0 && !f.Settled {
		f.Notes = append(f.Notes, fmt.Sprintf("the forecast ends after %s, when things still happen: --for looks further", textOf(f.For)))
	}

	// Do this last, because both worlds must advance by the same time, which is only known now.
	base, err := f.advanceTwin(without, before.waited, max(lasted, o.For), o.Progress)
	if err != nil {
		return nil, err
	}
	f.compareWith(w, base, before.departed, done)
	f.listOutcome(w, base, before)
	f.findRoom()
	// Fold last, because the code above needs the individual departures.
	f.Leaving, f.Later = foldRecurring(f.Leaving, f.Later)
	f.Anyway, _ = foldRecurring(f.Anyway, w.Outlook())
	f.Utilisation.After = utilisationOf(w)
	return f, nil
}

// settle brings the world into the state before the steps: pending pods are tried first and, in a
// barren world, on the nodes of the plan only. It returns a twin for the baseline, or nil if
// nothing would happen without the steps.
func settle(w *simulate.World, barren bool) (without *simulate.World, err error) {
	if !barren {
		w.MakeMissing(simulate.MostPods)
		w.Settle()
	}
	// An already failing node is part of the state rather than an effect of the steps.
	w.BeginHealth()
	// An allowance may be used up before the first step.
	if err := w.Err(); err != nil || barren || w.Uneventful() {
		return nil, err
	}
	return settledTwin(w)
}

// applySteps applies the steps to the world, except for the plan of nodes.
func (f *Forecast) applySteps(w *simulate.World, steps []Step) (done applied, err error) {
	for _, s := range steps {
		f.Operations = append(f.Operations, s.Words)
		chosen, drained, did, err := s.apply(w)
		if err != nil {
			return done, err
		}
		f.Chosen, done.drains = append(f.Chosen, chosen...), append(done.drains, drained...)
		if did == nil {
			continue
		}
		f.Notes = append(f.Notes, did.Notes...)
		if did.Drain != nil {
			done.drains = append(done.drains, did.Drain)
		}
		done.held = append(done.held, f.addEvictions(did.Evicted)...)
		// Keep pointers, because drains and rebalances complete only after time has passed.
		if did.Moved != nil {
			f.Rebalances = append(f.Rebalances, did.Moved)
		}
		if did.Fill != nil {
			f.Fills = append(f.Fills, *did.Fill)
		}
	}
	return done, nil
}

// apply applies a step to the world. Choosing nodes also drains them, and so has separate results.
// A plan that replaces nodes only keeps room.
func (s *Step) apply(w *simulate.World) (chosen []simulate.Cost, drained []*simulate.Drained, done *simulate.Done, err error) {
	switch {
	case s.Catalog != nil && s.Replace:
		done, err = s.Provision.KeepRoom(w)
	case s.Catalog != nil:
	case s.Choose > 0:
		chosen, drained, err = w.Choose(s.Choose, s.Drain)
	default:
		done, err = w.Do(s.Operation)
	}
	return chosen, drained, done, err
}

// planNodes makes the plan of nodes if the last step has a catalog. It evaluates the plan in
// separate worlds, each with the same steps applied.
func (f *Forecast) planNodes(w *simulate.World, steps []Step, o Options) (err error) {
	if len(steps) == 0 || steps[len(steps)-1].Catalog == nil {
		return nil
	}
	last := steps[len(steps)-1]
	planning := last.Provision
	planning.Progress = o.Planning
	if f.Provision, err = provision.Make(w, last.Catalog, planning); err != nil {
		return err
	}
	passed := w.Elapsed()
	open := func() (*simulate.World, error) { return again(w, steps, passed) }
	// The plan by itself places pods as computed; the scheduler's scores may spread them.
	if last.Scored {
		scoring, err := open()
		if err != nil {
			return err
		}
		if err := f.Provision.Score(scoring, planning); err != nil {
			return err
		}
	}
	if last.Replace {
		return f.Provision.Replace(open, planning)
	}
	return nil
}

// advanceTwin advances the world without the steps to the end of the forecast, and returns the
// baseline. It returns nil if there is no such world.
func (f *Forecast) advanceTwin(without *simulate.World, waited map[simulate.Name]string, until time.Duration,
	progress func(elapsed, until time.Duration, without bool),
) (*baseline, error) {
	if without == nil {
		return nil, nil
	}
	before, placed := len(without.Departures()), len(without.Pods())
	if progress != nil {
		without.Watch(func(elapsed time.Duration) { progress(elapsed, until, true) })
	}
	without.Advance(until)
	if err := without.Err(); err != nil {
		return nil, err
	}
	base := baselineOf(without, waited, before, placed)
	f.Utilisation.Without = base.full
	return base, nil
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
	again, err := settledTwin(w)
	if err != nil {
		return nil, err
	}
	for _, s := range steps {
		if _, _, _, err := s.apply(again); err != nil {
			return nil, err
		}
	}
	again.Advance(elapsed)
	return again, nil
}

// settledTwin returns a world in the state before the steps, in which pending pods have been tried.
func settledTwin(w *simulate.World) (*simulate.World, error) {
	twin, err := w.Twin()
	if err != nil {
		return nil, err
	}
	twin.MakeMissing(simulate.MostPods)
	twin.Settle()
	twin.BeginHealth()
	return twin, nil
}
