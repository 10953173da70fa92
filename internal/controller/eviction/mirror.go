package eviction

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// mirror is what watches showed of nodes and of the pods on them. It decides nothing.
//
// Every pod stands in pods, and in the list of exactly one node. A node stands in nodes while it
// exists or a pod refers to it: watches of nodes and of pods are not in step, so a pod may be shown
// before its node, and outlive it.
type mirror struct {
	clock clock

	nodes map[string]*node                   // every node seen, or named by a pod
	pods  map[types.UID]*pod                 // every pod bound to a node
	names map[types.NamespacedName]types.UID // which of them holds its name now

	// What a list did not show is gone. Between the beginning of a list and its end, and for what
	// it shows for the first time, something may have been missed: see dating.
	podList, nodeList listing

	// sights is the last number given to a pod. Whatever concerns several pods is done in the order
	// of these numbers, never in that of a map: the same events lead to the same actions.
	sights uint64
}

// listing is how far a Core is with the lists of a kind of object.
type listing struct {
	Number  uint32 // of the current list
	Listing bool
	Listed  bool // at least once
}

// begin starts a list: what is not seen from now on until its end is gone.
func (l *listing) begin() {
	l.Number++
	l.Listing = true
}

// end tells that everything has been seen.
func (l *listing) end() { l.Listing, l.Listed = false, true }

// newMirror returns a mirror that has seen nothing.
func newMirror(clock clock) mirror {
	return mirror{
		clock: clock, nodes: map[string]*node{}, pods: map[types.UID]*pod{}, names: map[types.NamespacedName]types.UID{},
	}
}

// nodeNamed returns the node of that name, known or not.
func (m *mirror) nodeNamed(name string) *node {
	n := m.nodes[name]
	if n == nil {
		n = &node{name: name}
		m.nodes[name] = n
	}
	return n
}

// dropIfUnused forgets a node that neither exists nor has pods.
func (m *mirror) dropIfUnused(n *node) {
	if !n.known && len(n.pods) == 0 {
		delete(m.nodes, n.name)
	}
}

// podFor returns the pod that was seen; a new one is put on its node. The node of a pod never
// changes, as in the API.
func (m *mirror) podFor(now time.Time, seen Pod) *pod {
	p := m.pods[seen.UID]
	if p == nil {
		m.sights++
		p = &pod{
			Pod: seen, on: m.nodeNamed(seen.Node), bound: m.clock.toClockSince(now, seen.Bound, m.podList.Listing), place: -1,
			number: m.sights,
		}
		p.on.addPod(p)
		m.pods[seen.UID] = p
		m.names[seen.Name] = seen.UID
	}
	return p
}

// dropPod forgets a pod. Its name may belong to another one by now, which keeps it.
func (m *mirror) dropPod(p *pod) {
	delete(m.pods, p.UID)
	if m.names[p.Name] == p.UID {
		delete(m.names, p.Name)
	}
	p.on.dropPod(p)
	m.dropIfUnused(p.on)
}

// boundAt returns when a known pod came to its node, given how it looks now: as before, or as its
// scheduler now reports.
func (m *mirror) boundAt(now time.Time, p *pod, seen *Pod) time.Time {
	if seen.Bound.Equal(p.Bound) {
		return p.bound
	}
	return m.clock.toClockSince(now, seen.Bound, m.podList.Listing)
}

// unlistedPods returns the pods that the list did not show, in the order in which they were first
// seen.
func (m *mirror) unlistedPods() (gone []*pod) {
	for _, p := range m.pods {
		if p.list != m.podList.Number {
			gone = append(gone, p)
		}
	}
	slices.SortFunc(gone, inOrderOfSight)
	return gone
}

// unlistedNodes returns the nodes that the list did not show, in order of their names.
func (m *mirror) unlistedNodes() (gone []*node) {
	for _, n := range m.nodes {
		if n.known && n.list != m.nodeList.Number {
			gone = append(gone, n)
		}
	}
	slices.SortFunc(gone, func(a, b *node) int { return cmp.Compare(a.name, b.name) })
	return gone
}

// inOrderOfSight sorts pods by when they were first seen.
func inOrderOfSight(a, b *pod) int { return cmp.Compare(a.number, b.number) }
