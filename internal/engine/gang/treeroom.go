package gang

import (
	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// Tree is a tree of groups for which room is planned. Package cycle, which knows how its groups
// hang together, places them, each by an [Attempt].
type Tree interface {
	// Place places the groups on the cluster as it is hypothetically, and tells whether as many
	// have a place as are needed; otherwise none has. anyhow: in any order.
	Place(anyhow bool) bool
	// PlaceWith is Place where pods may leave for groups that do not fit: room has them leave.
	PlaceWith(room *TreeRoom) bool
	// Rewind takes all groups off their nodes.
	Rewind()
	// Placed lists the attempts of the groups that are placed.
	Placed() []*Attempt
	// Remember returns what places the groups as they are placed now, once they were taken off.
	Remember() (restore func())
}

// PlanTree is PlanRoom for all groups of a tree. The attempt is one for all its pods together,
// which places none of them itself.
func (a *Attempt) PlanTree(tree Tree) *RoomPlan {
	if !a.MayPreempt() {
		return nil
	}
	a.bound.begin()
	a.bound.effort = 0
	crew := &treeCrew{tree: tree, unlike: a.areUnlike()}
	crew.clearance = clearance{Request: a.Request, bound: a.bound, crew: crew}
	return crew.plan()
}

// treeCrew are the groups of a tree as what room is made for. Members of all of them have the
// priority of its root, so that none is a victim of another one.
type treeCrew struct {
	clearance
	tree   Tree
	unlike bool // see areUnlike
}

func (t *treeCrew) fit() bool              { return t.tree.Place(false) }
func (t *treeCrew) fitAnyhow() bool        { return t.tree.Place(true) }
func (t *treeCrew) rewind()                { t.tree.Rewind() }
func (t *treeCrew) differ() bool           { return t.unlike }
func (t *treeCrew) leastTogether() amounts { return amounts{} } // groups that are not needed may be left out

// areUnlike tells whether it may matter in which order the groups of a tree are placed: apart from
// the group that they are in, their pods are not all alike.
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
		as.Members[i] = &Member{Pod: m.Pod, Waiting: m.Waiting, Asked: cluster.NewPod(class, "", "")}
	}
	return as.orderMatters()
}

// find has pods leave for one group after the other, each as for a group alone. If that does not
// suffice, it places the tree where all pods of lower priority have left, as upstream does first.
func (t *treeCrew) find(gone *RemovedPods) (units [][]*cluster.Pod, ok bool) {
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
	if units, ok = t.removeAllLower(gone); !ok {
		t.tree.Rewind()
	}
	return units, ok
}

// refit leaves the groups where they were placed when victims were found for them.
func (t *treeCrew) refit() bool { return true }

func (t *treeCrew) anew() bool {
	t.bound.addEffort(costOfDecision * len(t.Members))
	restore := t.tree.Remember()
	t.tree.Rewind()
	if t.tree.Place(true) {
		return true
	}
	restore()
	return false
}

// placers are those of the groups that are placed. What they do from now on is bounded as the whole
// plan is.
func (t *treeCrew) placers() (list []*Placer) {
	for _, a := range t.tree.Placed() {
		a.placer.bound = t.bound
		list = append(list, a.placer)
	}
	return list
}

// TreeRoom has pods leave for the groups of a tree, one after the other, hypothetically. Where it
// is nil, none leaves.
type TreeRoom struct {
	gone  *RemovedPods
	units [][]*cluster.Pod // in the order in which they left
}

// MakeFor has pods leave for a group that does not fit, and places the group. It returns false,
// with everything as it was, if that would not help.
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

// Len is how many units have left.
func (r *TreeRoom) Len() int {
	if r == nil {
		return 0
	}
	return len(r.units)
}

// Remove has units leave.
func (r *TreeRoom) Remove(units [][]*cluster.Pod) {
	for _, unit := range units {
		r.gone.Remove(unit...)
		r.units = append(r.units, unit)
	}
}

// Restore puts all units but the first keep back, and returns them.
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

// CompareVictims compares what it costs that units leave: by the highest priority of a pod, then by
// how many there are.
func CompareVictims(a, b [][]*cluster.Pod) int { return costOf(a).compare(costOf(b)) }
