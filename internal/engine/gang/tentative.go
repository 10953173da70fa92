// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Tentative counts members on nodes in the cluster model itself, so that each decision sees earlier
// placements, and takes them off again. It reports no events and writes no objects.
//
// Invariant: exactly the members in placed are counted on nodes, have reservations, and have a
// non-nil Node. placed is not a pure stack, since a reprieve removes members from the middle. All
// changes are recorded in the log of the cluster, so passes can detect them by its length.
type Tentative struct {
	cluster *cluster.Cluster
	host    Host
	placed  []*Member // in placement order
}

// Place counts a member on the node found for it, and reserves the member's resources there.
func (t *Tentative) Place(m *Member, found decide.Decision) error {
	m.Node, m.Found = found.Node, found
	if err := t.host.Reserve(m, found.Node); err != nil {
		t.releaseMember(m)
		return err
	}

	m.Nominee = t.cluster.Nominated(m.Pod.UID)
	t.cluster.Place(m.Waiting, found.Node)
	t.placed = append(t.placed, m)
	return nil
}

// PlaceAll counts members on their previous nodes. It skips refused members.
func (t *Tentative) PlaceAll(places []Place) {
	for _, p := range places {
		_ = t.Place(p.Member, p.Decision)
	}
}

// Rewind takes the placed members from index keep onwards off their nodes.
func (t *Tentative) Rewind(keep int) {
	for len(t.placed) > keep {
		last := len(t.placed) - 1
		m := t.placed[last]
		t.placed = t.placed[:last]
		t.takeOff(m)
	}
}

// removeFrom takes all members off the given nodes, the last placed first, and returns their
// places.
func (t *Tentative) removeFrom(nodes []*cluster.Node) (were []Place) {
	onThem := func(m *Member) bool { return slices.Contains(nodes, m.Found.Node) }
	for _, m := range slices.Backward(t.placed) {
		if onThem(m) {
			were = append(were, Place{Member: m, Decision: m.Found})
			t.takeOff(m)
		}
	}

	t.placed = slices.DeleteFunc(t.placed, onThem)
	return were
}

// takeOff takes a member off its node and restores its nomination. The caller deletes the member
// from placed.
func (t *Tentative) takeOff(m *Member) {
	t.cluster.RemovePod(m.Pod.UID)
	t.releaseMember(m)
	if m.Nominee != nil {
		t.cluster.Nominate(m.Nominee, m.Nominee.Nominated)
		m.Nominee = nil
	}
}

// releaseMember releases the reservations of a member not counted on a node.
func (t *Tentative) releaseMember(m *Member) {
	t.host.Release(m)
	m.Node = nil
	m.Waiting.SetNodeName("")
}

// fitsAgain reports whether the node of a placed member would still accept it.
func (t *Tentative) fitsAgain(m *Member, plain *decide.Plain) bool {
	t.cluster.RemovePod(m.Pod.UID)
	fits := plain.Fits(m.Asked, m.Node)
	t.cluster.Place(m.Waiting, m.Node)
	return fits
}

// listPlaces returns the current places of members.
func (t *Tentative) listPlaces() []Place {
	return rules.Mapped(t.placed, func(m *Member) Place { return Place{Member: m, Decision: m.Found} })
}

// protectMember prevents later members, with a priority of at most highest, from choosing a just
// placed member as a victim. If highest exceeds the member's priority, the member is counted on its
// node with the maximum priority until it is taken off.
func (t *Tentative) protectMember(m *Member, highest int32) {
	if m.Waiting.Class.Priority < highest {
		replacePod(t.cluster, m.Waiting, m.Node)
	}
}

// RemovedPods holds pods that are hypothetically off their nodes, so that decisions see their room
// as free. All pods must be restored in the same step.
type RemovedPods struct {
	cluster *cluster.Cluster
	pods    []*cluster.Pod
	from    map[types.UID]*cluster.Node // previous node of every pod ever removed
}

// Without returns an empty set of removed pods.
func Without(c *cluster.Cluster) *RemovedPods {
	return &RemovedPods{cluster: c}
}

// Len returns the number of pods currently removed.
func (r *RemovedPods) Len() int { return len(r.pods) }

// Remove takes pods off their nodes.
func (r *RemovedPods) Remove(pods ...*cluster.Pod) {
	if r.from == nil {
		r.from = map[types.UID]*cluster.Node{}
	}
	for _, p := range pods {
		r.from[p.UID()] = p.Node
		r.pods = append(r.pods, p)
		r.cluster.RemovePod(p.UID())
	}
}

// NodeOf returns the previous node of a removed pod.
func (r *RemovedPods) NodeOf(p *cluster.Pod) *cluster.Node { return r.from[p.UID()] }

// Restore puts some of the removed pods back.
func (r *RemovedPods) Restore(pods []*cluster.Pod) {
	for _, p := range pods {
		r.cluster.Place(p, r.from[p.UID()])
		r.pods = slices.DeleteFunc(r.pods, func(other *cluster.Pod) bool { return other == p })
	}
}

// RestoreAfter puts back the pods from index keep onwards.
func (r *RemovedPods) RestoreAfter(keep int) {
	for _, p := range r.pods[keep:] {
		r.cluster.Place(p, r.from[p.UID()])
	}
	r.pods = r.pods[:keep]
}
