// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"flag"
	"fmt"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

var gangRuns = flag.Int("gang-chaos", 60, "runs of TestChaosOfPodGroups")

// TestChaosOfPodGroups is TestChaos with pod groups among the pods: gangs and basic groups of all
// sizes, some confined to a zone, some preempted only as a whole. Pods are created before their
// group, gated, replaced or deleted. PodGroups are deleted and recreated. The test verifies that
// the binding of a gang begins only when all required pods have a node. In every third run, Berth
// reserves room for groups. No reservation exceeds the maximum duration. After a reservation that
// ended in vain, none begins for at least as long as it lasted. Once everything is calm, the plain
// evaluator, placing one pod after the other, cannot place any waiting group, and no gang is
// partially bound unless it lost a pod, a node or its PodGroup.
func TestChaosOfPodGroups(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // the test allocates much and retains little
	var reservations, together atomic.Int64
	runChaos(t, *gangRuns, func(seed uint64) (binds int, err error) { return gangRun(seed, &reservations, &together) })
	t.Logf("%d reservations, several at a time in %d runs", reservations.Load(), together.Load())
	if *gangRuns >= 100 && together.Load() == 0 {
		t.Error("room was never reserved for several groups")
	}
}

func gangRun(seed uint64, reservations, together *atomic.Int64) (binds int, err error) {
	c := &chaos{world: newWorld(seed, seed%10 == 0, func() []Profile {
		profile := Profile{Profile: plugins.Default()}
		if seed%4 == 0 {
			profile = profileWith(holdsAtPermit, reservesAtItsPoints())
		}
		if seed%3 == 0 {
			profile.Reservations = reservedInChaos
		}
		gentleInChaos(&profile, seed)
		return []Profile{profile}
	})}
	c.gangs.gates = groups.Gates{Generic: true, Topology: true}
	c.options.Groups = c.gangs.gates
	c.kinds = append(c.kinds, PodGroups)
	c.start()
	c.grown = map[string]int{}
	defer func() {
		if reservations.Add(int64(c.gangs.reservations)); c.gangs.together > 1 {
			together.Add(1)
		}
	}()
	for range 6 {
		c.addNode()
	}
	return c.live(func() {
		if c.rng.IntN(3) == 0 {
			c.somethingOfGroups()
		} else {
			c.something()
		}
	})
}

// reservedInChaos configures reservations. Its field After exceeds the maximum back-off; otherwise
// the reservations would keep the run from becoming calm.
var reservedInChaos = plugins.Reservations{After: 11 * time.Second, For: 15 * time.Second, Share: 0.5}

// checkReservations checks that each reservation has the configured maximum duration, and that none
// begins after another ended in vain until a pause at least as long as that one lasted.
func (w *world) checkReservations() {
	v := w.core.View()
	now := map[types.UID]*Reservation{}
	for _, r := range v.Reserved {
		now[r.Group] = r
		if was := w.gangs.reserved[r.Group]; was == nil || was.Since != r.Since {
			w.gangs.reservations++
			if g := v.Groups.ByUnitUID(r.Group); g != nil && g.Parent() != nil {
				w.gangs.ofRoots++
			}
			if r.Since.Before(w.gangs.rests) {
				w.breaks("a reservation begins before %s", w.gangs.rests.Sub(begin))
			}
		}
		if d := r.Until.Sub(r.Since); d != w.options.Profiles[0].Reservations.For {
			w.breaks("a reservation may stand for %s", d)
		}
	}
	for uid, was := range w.gangs.reserved {
		g := v.Groups.ByUnitUID(uid)
		placed := g != nil && v.Groups.Since[uid].IsZero()
		if rests := w.now.Add(w.now.Sub(was.Since)); now[uid] == nil && !placed && rests.After(w.gangs.rests) {
			w.gangs.rests = rests
		}
	}
	w.gangs.reserved, w.gangs.together = now, max(w.gangs.together, len(now))
}

// gangs holds the world's PodGroups and tracks their progress.
type gangs struct {
	gates groups.Gates
	all   map[string]*groups.PodGroup
	// composites holds the CompositePodGroups. ofTrees lists the names of the pod groups in trees;
	// all of them have the priority treePriority. loose is the name of a group outside all trees.
	composites   map[string]*groups.CompositePodGroup
	ofTrees      []string
	treePriority int32
	loose        string
	// whole holds the gangs that had all required pods when the core began to bind them. touched
	// holds the gangs that lost a pod, node or PodGroup before they were complete, and may be
	// partially bound.
	whole, touched map[string]bool
	// reserved holds the current reservations by group, rests is the earliest time of the next
	// reservation, reservations is the number of reservations so far, and together is the largest
	// number at one time.
	reserved               map[types.UID]*Reservation
	rests                  time.Time
	reservations, together int
	ofRoots                int // number of reservations for trees
}

// forget resets the state for a new core, which starts without the placements of the previous core.
func (g *gangs) forget() {
	if g.all == nil {
		g.all, g.touched, g.composites = map[string]*groups.PodGroup{}, map[string]bool{}, map[string]*groups.CompositePodGroup{}
	}
	for name := range g.whole {
		g.touched[name] = true
	}
	g.whole = map[string]bool{}
	g.reserved, g.rests = nil, time.Time{}
}

func (w *world) putGroup(g *groups.PodGroup) {
	w.version++
	g.ResourceVersion = fmt.Sprint(w.version)
	w.gangs.all[g.Name] = g
	w.watches[PodGroups] = append(w.watches[PodGroups], Seen{PodGroups, g})
}

func (w *world) writeGroup(a WriteGroup) {
	if g := w.gangs.all[a.Group.Name]; g != nil && g.UID == a.Group.UID {
		g = g.DeepCopy()
		meta.SetStatusCondition(&g.Status.Conditions, a.Condition)
		w.putGroup(g)
	}
}

// members returns a group's pods that have not ended, and the bound pods among them.
func (w *world) members(name string) (all, bound []*v1.Pod) {
	for _, uid := range sorted(w.pods) {
		if p := w.pods[uid]; groups.NameOf(p) == name {
			all = append(all, p)
			if p.Spec.NodeName != "" {
				bound = append(bound, p)
			}
		}
	}
	return all, bound
}

// checkGangs checks that, when a decision begins to bind the first pods of a gang, at least
// MinCount of its pods have a node.
func (w *world) checkGangs(because Event, actions []Action) {
	_, decision := because.(Tick)
	for _, action := range actions {
		var pod *v1.Pod
		switch a := action.(type) {
		case Bind:
			pod = a.Attempt.Pod
		case Hold:
			pod = a.Pod
		case Preflight:
			pod = a.Attempt.Pod
		case Cancel, Release:
			for name := range w.gangs.whole { // regardless of the affected group
				w.gangs.touched[name] = true
			}
			continue
		default:
			continue
		}
		name := groups.NameOf(pod)
		if !decision || name == "" || w.gangs.whole[name] {
			continue
		}
		w.gangs.whole[name] = true
		g := w.core.View().Groups.Get(cluster.Name{Namespace: "default", Name: name})
		if g == nil || g.Object == nil {
			w.breaks("pod %s is on its way without its group", pod.Name)
			continue
		}
		on := 0
		for uid := range g.Members {
			if w.core.View().Cluster.Pod(uid) != nil {
				on++
			}
		}
		if on < g.MinCount() && !g.Scheduled() && !g.Done {
			w.breaks("gang %s begins with %d pods and asks for %d", name, on, g.MinCount())
		}
		w.checkTree(g)
	}
}

func (c *chaos) somethingOfGroups() {
	name := fmt.Sprintf("g%d", c.rng.IntN(4))
	if c.gangs.ofTrees != nil {
		names := c.gangs.ofTrees
		if c.gangs.loose != "" {
			names = append([]string{c.gangs.loose}, names...)
		}
		name = names[c.rng.IntN(len(names))]
	}
	switch n := c.rng.IntN(16); {
	case n < 5:
		if c.gangs.all[name] == nil {
			c.addGroup(name)
		}
		for range 1 + c.rng.IntN(4) {
			c.addMember(name)
		}
	case n < 6: // a pod may be created before its group
		c.addMember(name)
	case n < 8:
		c.loseMember(name, c.rng.IntN(2) == 0)
	case n == 8 && c.rng.IntN(2) == 0:
		if g := c.gangs.all[name]; g != nil {
			c.loseGroup(g)
			if c.rng.IntN(2) == 0 {
				c.addGroup(name)
			}
		}
	case n == 9: // a gate opens
		all, _ := c.members(name)
		for _, p := range all {
			if len(p.Spec.SchedulingGates) > 0 {
				c.change(p, func(p *v1.Pod) { p.Spec.SchedulingGates = nil })
				break
			}
		}
	case n < 12 && len(c.tickets) > 0:
		ticket := c.tickets[c.rng.IntN(len(c.tickets))]
		c.carryOut(ticket, c.drawFault(ticket))
	case n < 14:
		c.deliver(PodGroups)
	default:
		c.deliver(Pods)
	}
}

func (c *chaos) addGroup(name string) {
	c.made++
	g := &groups.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(fmt.Sprintf("%s-%d", name, c.made))}}
	g.Spec.Priority = new(c.gangs.priorityOf(name))
	if c.rng.IntN(4) == 0 {
		g.Spec.SchedulingPolicy.Basic = &schedulingv1beta1.BasicSchedulingPolicy{}
	} else {
		g.Spec.SchedulingPolicy.Gang = &schedulingv1beta1.GangSchedulingPolicy{MinCount: int32(1 + c.rng.IntN(4))}
	}
	if c.rng.IntN(5) == 0 {
		g.Spec.SchedulingConstraints = &schedulingv1beta1.PodGroupSchedulingConstraints{
			Topology: []schedulingv1beta1.TopologyConstraint{{Key: v1.LabelTopologyZone}},
		}
	}
	if c.rng.IntN(4) == 0 {
		g.Spec.DisruptionMode = asOne()
	}
	if slices.Contains(c.gangs.ofTrees, name) && c.rng.IntN(8) > 0 {
		g.Spec.ParentCompositePodGroupName = new(c.anyComposite())
	}
	delete(c.gangs.whole, name)
	all, _ := c.members(name)
	c.gangs.touched[name] = slices.ContainsFunc(all, func(p *v1.Pod) bool { return c.core.View().Cluster.Pod(p.UID) != nil })
	c.putGroup(g)
}

func (c *chaos) loseGroup(g *groups.PodGroup) {
	delete(c.gangs.all, g.Name)
	c.gangs.touched[g.Name] = true
	c.watches[PodGroups] = append(c.watches[PodGroups], Gone{PodGroups, g})
}

func (c *chaos) addMember(group string) {
	p := c.newPod(fmt.Sprintf("m%d", c.made))
	p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: &group}
	if c.rng.IntN(40) > 0 { // otherwise its group fails with an error while the pod exists
		*p.Spec.Priority, p.Spec.PreemptionPolicy = c.gangs.priorityOf(group), nil
	}
	if c.rng.IntN(8) == 0 {
		p.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "wait"}}
	}
	c.put(p)
}

// priorityOf returns the priority of a group of this name, and of its pods.
func priorityOf(group string) int32 { return int32(group[len(group)-1]-'0') % 3 * 10 }

// priorityOf is like the function priorityOf, but accounts for groups in trees.
func (g *gangs) priorityOf(group string) int32 {
	if slices.Contains(g.ofTrees, group) {
		return g.treePriority
	}
	return priorityOf(group)
}

// areAlike reports whether all pods have the priority of their group and the same preemption
// policy. Other groups are never placed if group priorities are enabled.
func areAlike(g *groups.PodGroup, pods ...*v1.Pod) bool {
	return !slices.ContainsFunc(pods, func(p *v1.Pod) bool {
		return *p.Spec.Priority != *g.Spec.Priority || (p.Spec.PreemptionPolicy == nil) != (pods[0].Spec.PreemptionPolicy == nil)
	})
}

// loseMember deletes a pod of the group, and creates a replacement if again is set.
func (c *chaos) loseMember(group string, again bool) {
	all, _ := c.members(group)
	if len(all) == 0 {
		return
	}
	c.remove(all[c.rng.IntN(len(all))])
	c.gangs.touched[group] = true
	if again {
		c.addMember(group)
	}
}

// judgeGangs checks the groups once everything is calm, and returns the number of gated pods.
func (c *chaos) judgeGangs(truth *cluster.Cluster) (gated int) {
	if !c.gangs.gates.Generic {
		return 0
	}
	for _, n := range c.core.View().Cluster.NominatedNodes() {
		for _, p := range n.Nominated {
			if item := c.core.View().Queue.Get(p.UID()); item == nil || item.Place() == queue.Gated {
				c.breaks("node %s is kept for %s, which is not tried: %+v", n.Name, p.Name(), item)
			}
		}
	}
	names := map[string]bool{}
	for _, uid := range sorted(c.pods) {
		if name := groups.NameOf(c.pods[uid]); name != "" {
			names[name] = true
		}
	}
	for _, name := range sorted(names) {
		all, bound := c.members(name)
		g := c.core.View().Groups.Get(cluster.Name{Namespace: "default", Name: name})
		least, object := 1, c.gangs.all[name]
		if g == nil || g.Count() != len(all) || (g.Object == nil) != (object == nil) {
			c.breaks("group %s has %d pods, and the core knows of %+v", name, len(all), g)
			continue
		}
		if g.Parent() != nil {
			gated += c.countGated(all)
			continue // checked with its tree
		}
		if object != nil && object.Spec.SchedulingPolicy.Gang != nil {
			least = int(object.Spec.SchedulingPolicy.Gang.MinCount)
		}
		started := object != nil && len(bound) > 0 && meta.IsStatusConditionTrue(object.Status.Conditions, schedulingv1beta1.PodGroupInitiallyScheduled)
		if object != nil && len(bound) >= least && !started {
			c.breaks("group %s has %d pods bound and is not said to be scheduled: %v", name, len(bound), object.Status.Conditions)
		}
		var waiting []*v1.Pod
		held := slices.ContainsFunc(all, func(p *v1.Pod) bool { return len(p.Spec.SchedulingGates) > 0 })
		gatedWhole := held
		for _, p := range all {
			item := c.core.View().Queue.Get(p.UID)
			if item != nil && item.Place() == queue.Gated {
				gated++
			}
			switch {
			case p.Spec.NodeName != "":
			case gatedWhole || object == nil || !started && len(all) < least: // correctly gated
			case item == nil || item.Place() == queue.Gated:
				c.breaks("pod %s of group %s is kept out: %+v", p.Name, name, item)
			default:
				waiting = append(waiting, p)
				held = held || slices.Contains(item.Rejectors, "Holds")
			}
		}
		need := max(1, least-len(bound))
		if started {
			need = 1
		}
		if len(waiting) < need || held || !areAlike(object, append(waiting, bound...)...) {
			continue
		}
		if where, fits := fits(truth, object, bound, waiting, need); fits {
			text := ""
			for _, p := range waiting {
				item := c.core.View().Queue.Get(p.UID)
				text += fmt.Sprintf(" %s is %s for %v %q;", p.Name, item.Place(), item.Rejectors, item.Message)
			}
			c.breaks("group %s waits, %d needed, and there is room for it: %v;%s", name, need, where, text)
		}
		if n := len(bound); 0 < n && n < least && !started && !c.gangs.touched[name] {
			c.breaks("gang %s asks for %d pods, and %d are bound", name, least, n)
		}
	}
	c.judgeTrees(truth)
	return gated
}

// fits places a group's pods naively, one after the other, each on the feasible node with the
// highest score.
func fits(truth *cluster.Cluster, object *groups.PodGroup, bound, waiting []*v1.Pod, need int) (where []string, ok bool) {
	zones := []string{""}
	if c := object.Spec.SchedulingConstraints; c != nil {
		zones = []string{"a", "b", "c"}
		for _, p := range bound {
			if n := truth.Node(p.Spec.NodeName); n != nil {
				zones = []string{n.Labels.Map[v1.LabelTopologyZone]}
			}
		}
		for _, p := range bound {
			if n := truth.Node(p.Spec.NodeName); n == nil || zones[0] == "" || n.Labels.Map[v1.LabelTopologyZone] != zones[0] {
				return nil, false // its bound pods are in two zones, or in no zone: an error until they end
			}
		}
	}
	waiting = slices.Clone(waiting)
	slices.SortStableFunc(waiting, func(a, b *v1.Pod) int { return int(*b.Spec.Priority - *a.Spec.Priority) })
	for _, zone := range zones {
		where = nil
		var placed []*cluster.Pod
		for _, p := range waiting {
			if best := bestNode(truth, p, zone); best != nil {
				asked := truth.Pending(p)
				truth.Place(asked, best)
				placed = append(placed, asked)
				where = append(where, p.Name+" on "+best.Name)
			}
		}
		for _, p := range placed {
			truth.RemovePod(p.UID())
		}
		if len(placed) >= need {
			return where, true
		}
	}
	return nil, false
}

// bestNode returns the best node for a pod, in the zone if given, or nil.
func bestNode(truth *cluster.Cluster, p *v1.Pod, zone string) *cluster.Node {
	var best *decide.NodeVerdict
	e := decide.NewPlain(truth, plugins.Default()).Evaluate(truth.Pending(p))
	for i := range e.Nodes {
		v := &e.Nodes[i]
		if v.Rejection == nil && (zone == "" || v.Node.Labels.Map[v1.LabelTopologyZone] == zone) && (best == nil || v.Total > best.Total) {
			best = v
		}
	}
	if best == nil {
		return nil
	}
	return best.Node
}
