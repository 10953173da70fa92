// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// mirror is the observed state of nodes and their pods. It makes no decisions.
//
// Every pod is in pods, and in the list of exactly one node. A node is in nodes while it exists or
// a pod refers to it: watches of nodes and of pods are not synchronized, so a pod may be observed
// before its node, and outlive it.
type mirror struct {
	clock clock

	nodes map[string]*node                   // every node observed, or named by a pod
	pods  map[types.UID]*pod                 // every pod bound to a node
	names map[types.NamespacedName]types.UID // UID of the pod that currently has the name

	// An object missing from a list has been deleted. Between the beginning and the end of a list,
	// and for objects observed for the first time, events may have been missed: see dating.
	podList, nodeList listing

	// sights is the last number assigned to a pod. Operations on several pods follow the order of
	// these numbers, and never the order of a map, so that the same events lead to the same
	// actions.
	sights uint64
}

// listing is the state of the lists of a kind of object.
type listing struct {
	Number  uint32 // number of the current list
	Listing bool
	Listed  bool // at least once
}

// begin starts a list: objects not observed between now and its end have been deleted.
func (l *listing) begin() {
	l.Number++
	l.Listing = true
}

// end marks the list as complete.
func (l *listing) end() { l.Listing, l.Listed = false, true }

// newMirror returns an empty mirror.
func newMirror(clock clock) mirror {
	return mirror{
		clock: clock, nodes: map[string]*node{}, pods: map[types.UID]*pod{}, names: map[types.NamespacedName]types.UID{},
	}
}

// nodeNamed returns the node with the name, creating it if necessary.
func (m *mirror) nodeNamed(name string) *node {
	n := m.nodes[name]
	if n == nil {
		n = &node{name: name}
		m.nodes[name] = n
	}
	return n
}

// dropIfUnused removes a node that neither exists nor has pods.
func (m *mirror) dropIfUnused(n *node) {
	if !n.known && len(n.pods) == 0 {
		delete(m.nodes, n.name)
	}
}

// podFor returns the entry of an observed pod. If the pod is new, podFor creates the entry and adds
// it to its node. As in the API, the node of a pod never changes.
func (m *mirror) podFor(now time.Time, seen Pod) *pod {
	p := m.pods[seen.UID]
	if p == nil {
		m.sights++
		p = &pod{
			Pod: seen, node: m.nodeNamed(seen.Node), bound: m.clock.toClockSince(now, seen.Bound, m.podList.Listing), place: -1,
			number: m.sights,
		}
		p.node.addPod(p)
		m.pods[seen.UID] = p
		m.names[seen.Name] = seen.UID
	}
	return p
}

// dropPod removes a pod. If the name already belongs to another pod, that pod keeps the name.
func (m *mirror) dropPod(p *pod) {
	delete(m.pods, p.UID)
	if m.names[p.Name] == p.UID {
		delete(m.names, p.Name)
	}
	p.node.dropPod(p)
	m.dropIfUnused(p.node)
}

// boundAt returns the binding time of a known pod, given its current object. The known time is kept
// unless the time in the object has changed.
func (m *mirror) boundAt(now time.Time, p *pod, seen *Pod) time.Time {
	if seen.Bound.Equal(p.Bound) {
		return p.bound
	}
	return m.clock.toClockSince(now, seen.Bound, m.podList.Listing)
}

// unlistedPods returns the pods missing from the list, in the order of their first observation.
func (m *mirror) unlistedPods() (gone []*pod) {
	for _, p := range m.pods {
		if p.list != m.podList.Number {
			gone = append(gone, p)
		}
	}
	slices.SortFunc(gone, inOrderOfSight)
	return gone
}

// unlistedNodes returns the nodes missing from the list, sorted by name.
func (m *mirror) unlistedNodes() (gone []*node) {
	for _, n := range m.nodes {
		if n.known && n.list != m.nodeList.Number {
			gone = append(gone, n)
		}
	}
	slices.SortFunc(gone, func(a, b *node) int { return cmp.Compare(a.name, b.name) })
	return gone
}

// inOrderOfSight compares pods by their first observation.
func inOrderOfSight(a, b *pod) int { return cmp.Compare(a.number, b.number) }
