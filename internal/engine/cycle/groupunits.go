package cycle

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

func moreImportant(a, b *cluster.Pod) int {
	return cmp.Or(cmp.Compare(b.Class.Priority, a.Class.Priority), a.Started.Compare(b.Started), cmp.Compare(a.UID, b.UID))
}

// unitOf returns the pods that leave together with a victim, which comes first: its whole group, if
// that is disrupted as one.
func (gs *podGroups) unitOf(victim *cluster.Pod) []*cluster.Pod {
	unit := []*cluster.Pod{victim}
	if !gs.gates.Preemption {
		return unit
	}
	if g := gs.groups.Of(victim.UID); g != nil && g.Whole() {
		for _, p := range gs.membersOnNodes(g) {
			if p != victim {
				unit = append(unit, p)
			}
		}
	}
	return unit
}

// displaces tells whether a waiting pod could preempt a pod, where groups have a priority of their
// own: as far as that depends on the two and their groups. gentle: the profile spares the pods of
// more important groups.
func (gs *podGroups) displaces(item *queue.Item, victim *cluster.Pod, gentle bool) bool {
	priority, own := item.Class.Priority, gs.groupOf(item)
	if own != nil && own.Object != nil {
		priority = own.Priority()
	}
	lower := victim.Class.Priority < priority
	if victim.Class.Spec.SchedulingGroup == nil {
		return lower
	}

	switch g := gs.groups.Of(victim.UID); {
	case g == nil: // it is gone, and how it counted is not known
		return false
	case g.Object == nil:
		return lower
	case g.Whole():
		return g.Priority() < priority && (lower || own != nil)
	case gentle:
		return lower && g.Priority() < priority
	}
	return lower
}

// asUnits adds the pods that leave together with the victims.
func (gs *podGroups) asUnits(found *decide.Preemption) {
	if !gs.gates.Preemption || !gs.groups.AnyWhole() {
		return
	}
	var all []*cluster.Pod
	for _, victim := range found.Victims {
		if !slices.Contains(all, victim) {
			all = append(all, gs.unitOf(victim)...)
		}
	}
	found.Victims = all
}

// absence is a set of pods that are hypothetically removed from their nodes.
type absence struct {
	c    *cluster.Cluster
	pods []*cluster.Pod
	from map[types.UID]*cluster.Node // where they were
}

func (b *absence) add(p *cluster.Pod) {
	if b.from == nil {
		b.from = map[types.UID]*cluster.Node{}
	}
	b.from[p.UID] = p.Node
	b.pods = append(b.pods, p)
	b.c.RemovePod(p.UID)
}

// back puts some of the pods where they were.
func (b *absence) back(pods []*cluster.Pod) {
	for _, p := range pods {
		b.c.Place(p, b.from[p.UID])
		b.pods = slices.DeleteFunc(b.pods, func(o *cluster.Pod) bool { return o == p })
	}
}

// end puts all pods where they were.
func (b *absence) end() {
	for _, p := range b.pods {
		b.c.Place(p, b.from[p.UID])
	}
	b.pods = nil
}
