// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"time"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// Tree is a tree of groups that need room. Package cycle owns the structure of the tree and places
// each of its groups by an [Attempt].
type Tree interface {
	// Place places the groups on the cluster in its hypothetical state, and reports whether at
	// least the needed number is placed; otherwise no group is placed. If anyhow is set, groups are
	// placed in any order.
	Place(anyhow bool) bool
	// PlaceWith is like Place, but calls room.MakeFor to evict pods for groups that do not fit.
	PlaceWith(room *TreeRoom) bool
	// Rewind takes all groups off their nodes.
	Rewind()
	// Placed lists the attempts of the placed groups.
	Placed() []*Attempt
	// Remember returns a function that restores the current placement after the groups were taken
	// off their nodes.
	Remember() (restore func())
}

// PlanTree is the counterpart of PlanRoom for all groups of a tree. The members of the attempt are
// all pods of the tree, but the tree places them. MayPreempt must hold.
func (a *Attempt) PlanTree(tree Tree) *RoomPlan {
	return a.newTreePodSet(tree).plan()
}

// PlanTreeReservation is the counterpart of PlanReservation for all groups of a tree.
func (a *Attempt) PlanTreeReservation(tree Tree, among map[*cluster.Node]bool, known KnownEnd) (places []Place, start time.Time) {
	return a.rooms.planReservation(&a.newTreePodSet(tree).victimSearch, among, known)
}

// newTreePodSet begins a part of the attempt for all groups of a tree.
func (a *Attempt) newTreePodSet(tree Tree) *treePodSet {
	a.bound.begin()
	a.bound.effort = 0
	t := &treePodSet{tree: tree, unlike: a.areUnlike()}
	t.victimSearch = victimSearch{Request: a.Request, bound: a.bound, pods: t}
	return t
}

// treePodSet is the set of pods of all groups of a tree. All members have the priority of the
// tree's root, so no member is a victim of another.
type treePodSet struct {
	victimSearch
	tree   Tree
	unlike bool // result of areUnlike
}

func (t *treePodSet) fit() bool              { return t.tree.Place(false) }
func (t *treePodSet) fitAnyhow() bool        { return t.tree.Place(true) }
func (t *treePodSet) rewind()                { t.tree.Rewind() }
func (t *treePodSet) differ() bool           { return t.unlike }
func (t *treePodSet) leastTogether() amounts { return amounts{} } // groups beyond the needed number may be left out

// fewestToEnd limits the cost: the tree is placed from scratch each time.
func (t *treePodSet) fewestToEnd(ended int) int { return max(t.Need, ended) / 8 }

// areUnlike reports whether the order of placing the groups of a tree may matter: the pods differ
// in more than their groups.
func (r *Request) areUnlike() bool {
	stripped := map[*cluster.PodClass]*cluster.PodClass{}
	as := *r
	as.Members = make([]*Member, len(r.Members))
	for i, m := range r.Members {
		class := stripped[m.Waiting.Class]
		if class == nil {
			pod := *m.Pod
			pod.Spec.SchedulingGroup = nil
			class = r.Cluster.Pending(&pod).Class
			stripped[m.Waiting.Class] = class
		}
		as.Members[i] = &Member{Form: Form{Pod: m.Pod, Asked: cluster.NewPod(class, "", "")}, Waiting: m.Waiting}
	}
	return as.OrderMatters()
}

// find evicts pods for each group in turn, as for a standalone group. If this fails, it places the
// tree after removing all lower-priority pods, which upstream does first.
func (t *treePodSet) find(gone *RemovedPods) (units [][]*cluster.Pod, ok bool) {
	before := gone.Len()
	room := &TreeRoom{gone: gone}
	if t.tree.PlaceWith(room) {
		return room.units, true
	}

	t.tree.Rewind()
	gone.RestoreAfter(before)
	if t.bound.isOver() {
		t.bound.shortened = true
		return nil, false
	}
	if units, ok = t.removeAllLower(gone, nil); !ok {
		t.tree.Rewind()
	}
	return units, ok
}

// refit keeps the groups in the places found by find.
func (t *treePodSet) refit() bool { return true }

func (t *treePodSet) placeAgain() bool {
	t.bound.addEffort(costOfDecision * len(t.Members))
	restore := t.tree.Remember()
	t.tree.Rewind()
	if t.tree.Place(true) {
		return true
	}
	restore()
	return false
}

// placers returns the placers of the placed groups, and subjects them to the bound of the whole
// plan.
func (t *treePodSet) placers() (list []*Placer) {
	for _, a := range t.tree.Placed() {
		a.placer.bound = t.bound
		list = append(list, a.placer)
	}
	return list
}

// TreeRoom hypothetically evicts pods for one group of a tree after the other. A nil TreeRoom
// evicts no pods.
type TreeRoom struct {
	gone  *RemovedPods
	units [][]*cluster.Pod // in eviction order
}

// MakeFor evicts pods for a group that does not fit, and places the group. If evictions do not
// help, it restores the previous state and returns false.
func (r *TreeRoom) MakeFor(a *Attempt) bool {
	plan, before := a.PlanRoom(), r.Len()
	if plan == nil {
		return false
	}
	if a.InDomains() {
		a.domains.closest = plan.domain
		a.domains.confineToClosest()
	}

	r.Remove(plan.Victims)
	if a.PlaceAs(plan) {
		return true
	}
	r.Restore(before)
	return false
}

// Len returns the number of evicted units.
func (r *TreeRoom) Len() int {
	if r == nil {
		return 0
	}
	return len(r.units)
}

// Remove evicts units.
func (r *TreeRoom) Remove(units [][]*cluster.Pod) {
	for _, unit := range units {
		r.gone.Remove(unit...)
		r.units = append(r.units, unit)
	}
}

// Restore puts back the units from index keep onwards, and returns them.
func (r *TreeRoom) Restore(keep int) (back [][]*cluster.Pod) {
	if r.Len() == keep {
		return nil
	}
	back = append(back, r.units[keep:]...)
	for _, unit := range back {
		r.gone.Restore(unit)
	}
	r.units = r.units[:keep]
	return back
}

// CompareVictims compares the costs of evicting units: by the highest priority of a pod, then by
// the number of pods.
func CompareVictims(a, b [][]*cluster.Pod) int { return costOf(a).compare(costOf(b)) }
