// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/world/virtual"
)

// TestNoGangStarves verifies that a gang, or a tree of gangs, with a reservation starts within the
// limit of its reservation, and that no small pod waits longer than the backlog and the reservation
// explain. It simulates an hour in which small pods arrive at a full cluster, somewhat faster than
// the cluster can run them. A gang of 100 pods arrives after ten minutes. Without a reservation, it
// does not start.
func TestNoGangStarves(t *testing.T) {
	for _, groups := range []int{1, 4} {
		t.Run(fmt.Sprintf("groups=%d", groups), func(t *testing.T) { checkStarvation(t, groups) })
	}
}

func checkStarvation(t *testing.T, groups int) {
	without := stream(t, plugins.Reservations{}, groups)
	if without.gang != 0 {
		t.Errorf("the gang starts after %s without a reservation: this shows nothing", without.gang)
	}
	bounds := plugins.Reservations{After: 10 * time.Minute, For: 30 * time.Minute, Share: 0.7}
	with := stream(t, bounds, groups)
	if most := bounds.After + bounds.For; with.gang == 0 || with.gang > most {
		t.Errorf("the gang starts after %s, and should within %s", with.gang, most)
	}
	if most := without.longest + bounds.For; with.longest > most {
		t.Errorf("a small pod waits for %s; %s is as long as the backlog and the reservation explain", with.longest, most)
	}
	for _, s := range []streamed{without, with} {
		t.Logf("the gang starts after %s; %d small pods begin, the longest wait is %s", s.gang, s.begun, s.longest)
	}
}

// streamed is the result of a stream of small pods and a gang.
type streamed struct {
	gang    time.Duration // time from the creation of the gang until all its pods are bound; 0: not bound
	begun   int           // number of bound small pods
	longest time.Duration // longest wait of a bound small pod
}

// reservingWorld returns a world whose only profile reserves capacity for pod groups.
func reservingWorld(seed uint64, bounds plugins.Reservations) *world {
	w := newWorld(seed, false, func() []Profile {
		p := Profile{Profile: plugins.Default()}
		p.Reservations = bounds
		return []Profile{p}
	})
	w.options.Groups = groups.Gates{Generic: true, Composite: true}
	w.gangs.gates, w.kinds = w.options.Groups, append(w.kinds, CompositePodGroups, PodGroups)
	w.start()
	w.settling = true
	return w
}

// putGangs creates a gang, or a tree of several gangs with the same number of pods.
func (w *world) putGangs(name string, count, pods int) (names []string) {
	if count == 1 {
		w.putGroup(gangOf(name, pods))
		return []string{name}
	}
	root := compositeOf(name, count)
	w.gangs.composites[name] = root
	w.watches[CompositePodGroups] = append(w.watches[CompositePodGroups], Seen{CompositePodGroups, root})
	for i := range count {
		g := gangOf(fmt.Sprintf("%s-%d", name, i), pods/count)
		g.Spec.ParentCompositePodGroupName = &name
		w.putGroup(g)
		names = append(names, g.Name)
	}
	return names
}

// stream adds 36 pods a minute to 160 CPUs, each taking one CPU for 2 to 8 minutes. Time passes in
// steps of 5 s. The gang of 100 pods is a tree if it consists of several groups.
func stream(t *testing.T, bounds plugins.Reservations, count int) (s streamed) {
	w := reservingWorld(7, bounds)
	for i := range 10 {
		w.putNode(aNode(fmt.Sprintf("n%d", i), "16"))
	}
	ends, came := map[string]time.Time{}, map[string]time.Time{}
	create := func(name, group string) {
		p := aPod(name, "1")
		p.CreationTimestamp.Time = w.now
		if came[name] = w.now; group != "" {
			p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: &group}
		}
		w.put(p)
	}
	for second := 0; second < 3600; second += 5 {
		w.now = begin.Add(time.Duration(second) * time.Second)
		for i := 0; i < 3 || second == 0 && i < 160; i++ {
			create(fmt.Sprintf("small-%d-%d", second, i), "")
		}
		if second == 600 {
			names := w.putGangs("gang", count, 100)
			for i := range 100 {
				create(fmt.Sprintf("gang-%d", i), names[i%count])
			}
		}
		for _, uid := range sorted(w.pods) {
			if p := w.pods[uid]; p.Spec.NodeName != "" && groups.NameOf(p) == "" && !w.now.Before(ends[p.Name]) {
				w.remove(p)
			}
		}
		w.drain()
		for _, uid := range sorted(w.pods) {
			p := w.pods[uid]
			if p.Spec.NodeName == "" || groups.NameOf(p) != "" || !ends[p.Name].IsZero() {
				continue
			}
			s.begun++
			s.longest = max(s.longest, w.now.Sub(came[p.Name]))
			ends[p.Name] = w.now.Add(2*time.Minute + time.Duration(w.rng.IntN(360))*time.Second)
		}
		bound := 0
		for _, p := range w.pods {
			if groups.NameOf(p) != "" && p.Spec.NodeName != "" {
				bound++
			}
		}
		if s.gang == 0 && bound == 100 {
			s.gang = w.now.Sub(begin.Add(10 * time.Minute))
		} else if bound > 0 && bound < 100 {
			w.breaks("%d pods of the gang are bound", bound)
		}
		w.journal = nil
	}
	for _, broken := range w.broken {
		t.Error(broken)
	}
	return s
}

// drain delivers and completes everything, and lets the core work until it is idle.
func (w *world) drain() {
	for busy := true; busy; {
		busy = false
		for _, kind := range append(slices.Clone(w.kinds), answers) {
			for w.deliver(kind) {
				busy = true
			}
		}
		for _, ticket := range slices.Clone(w.tickets) {
			if w.under[ticket] != nil {
				w.carryOut(ticket, virtual.None)
				busy = true
			}
		}
		if !busy && !w.core.Wake(w.now).After(w.now) {
			w.tell(Tick{})
			busy = true
		}
	}
}
