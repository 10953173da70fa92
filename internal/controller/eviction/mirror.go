// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"cmp"
	"maps"
	"reflect"
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

// nodeNamed returns the node with the name, creating it if necessary.
func (m *mirror) nodeNamed(name string) *node {
	n := m.nodes[name]
	if n == nil {
		n = &node{nodeRecord: nodeRecord{Name: name}}
		m.nodes[name] = n
	}
	return n
}

// dropIfUnused removes a node that neither exists nor has pods.
func (m *mirror) dropIfUnused(n *node) {
	if !n.Known && len(n.pods) == 0 {
		delete(m.nodes, n.Name)
	}
}

// podFor returns the entry of an observed pod. If the pod is new, podFor creates the entry and adds
// it to its node. As in the API, the node of a pod never changes.
func (m *mirror) podFor(now time.Time, seen Pod) *pod {
	p := m.pods[seen.UID]
	if p == nil {
		m.sights++
		begun := m.clock.toClockSince(now, seen.Bound, m.podList.Listing)
		p = &pod{podRecord: podRecord{Pod: seen, Begun: begun, Number: m.sights}, node: m.nodeNamed(seen.Node), place: -1}
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
		return p.Begun
	}
	return m.clock.toClockSince(now, seen.Bound, m.podList.Listing)
}

// inOrderOfSight compares pods by their first observation.
func inOrderOfSight(a, b *pod) int { return cmp.Compare(a.Number, b.Number) }

// Kind is a kind of object that describes devices.
type Kind int

// These are the kinds.
const (
	Claims Kind = iota
	Slices
	Rules
	kinds
)

// deviceMirror is the observed state of devices and the affected pods. Each method that changes it
// returns the pods with potentially changed deadlines, in the order of their first observation; the
// Core re-evaluates them.
//
// A pod is listed in users for each of its claims, including claims not observed yet, so that pods
// and claims may be observed in either order.
type deviceMirror struct {
	dating dating

	seen  devices
	users map[types.NamespacedName]map[*pod]bool // the pods that name each claim
	lists [kinds]listing
}

// listed reports whether all kinds have been listed.
func (m *deviceMirror) listed() bool {
	return !slices.ContainsFunc(m.lists[:], func(l listing) bool { return !l.Listed || l.Listing })
}

// addUser lists a pod under its claims, and dropUser removes it. Both use the pod's current claims,
// so dropUser must be called before they change.
func (m *deviceMirror) addUser(p *pod) {
	for _, ref := range p.Claims {
		name := types.NamespacedName{Namespace: p.Name.Namespace, Name: ref.Name}
		if m.users[name] == nil {
			m.users[name] = map[*pod]bool{}
		}
		m.users[name][p] = true
	}
}

// dropUser removes a pod from its claims; see addUser.
func (m *deviceMirror) dropUser(p *pod) {
	for _, ref := range p.Claims {
		name := types.NamespacedName{Namespace: p.Name.Namespace, Name: ref.Name}
		delete(m.users[name], p)
		if len(m.users[name]) == 0 {
			delete(m.users, name)
		}
	}
}

// usersOf returns the pods that name one of the claims, without duplicates, in the order of their
// first observation.
func (m *deviceMirror) usersOf(names map[types.NamespacedName]bool) (users []*pod) {
	found := map[*pod]bool{}
	for name := range names {
		maps.Copy(found, m.users[name])
	}
	return slices.SortedFunc(maps.Keys(found), inOrderOfSight)
}

// setClaim adds or updates a claim. Many writes of a claim change nothing that deadlines depend on;
// setClaim then returns no pods.
func (m *deviceMirror) setClaim(shown Claim) (users []*pod) {
	before := m.seen.claims[shown.Name]
	m.seen.setClaim(&ClaimState{Claim: shown, List: m.lists[Claims].Number})
	if before != nil && reflect.DeepEqual(before.Claim, shown) {
		return nil
	}
	return m.usersOf(map[types.NamespacedName]bool{shown.Name: true})
}

// dropClaim removes a claim. The pods that name it no longer use its devices.
func (m *deviceMirror) dropClaim(name types.NamespacedName) (users []*pod) {
	m.seen.dropClaim(name)
	return m.usersOf(map[types.NamespacedName]bool{name: true})
}

// setSlice adds or updates a slice. It affects the pods with devices of its current and previous
// pools: a newer generation in one slice makes the slices of older generations void.
func (m *deviceMirror) setSlice(now time.Time, shown Slice) (users []*pod) {
	before := m.seen.slices[shown.Name]
	s := &slice{Slice: shown, list: m.lists[Slices].Number}
	s.held = m.dating.sliceTaints(now, s, before, m.lists[Slices].Listing)
	m.seen.setSlice(s)
	if before != nil && reflect.DeepEqual(before.Slice, shown) && reflect.DeepEqual(before.held, s.held) {
		return nil
	}
	return m.usersOf(m.seen.claimsIn(func(id Pool) bool { return id == shown.Pool || before != nil && id == before.Pool }))
}

// dropSlice removes a slice. Its devices no longer have published taints; rules still select them.
func (m *deviceMirror) dropSlice(name string) (users []*pod) {
	s := m.seen.slices[name]
	if s == nil {
		return nil
	}
	names := m.seen.claimsIn(func(id Pool) bool { return id == s.Pool })
	m.seen.dropSlice(name)
	return m.usersOf(names)
}

// setRule adds or updates a rule. Berth's own status write is also delivered by the watch, so
// setRule returns no pods if only the condition has changed. It then schedules a check of the
// status only if the condition differs in more than its message and time.
func (m *deviceMirror) setRule(now time.Time, shown Rule) (users []*pod) {
	r := m.seen.rules[shown.Name]
	var known []Held
	if r != nil {
		known = []Held{r.Held}
	} else {
		r = &rule{pods: map[*pod]bool{}}
	}

	was := r.Rule
	r.Rule, r.List = shown, m.lists[Rules].Number
	if known != nil && !sayTheSame(was.Condition, shown.Condition) {
		r.scheduleStatus(now) // another client has written the status, or an earlier write arrived late
	}
	was.Condition = shown.Condition
	if known != nil && reflect.DeepEqual(was, shown) {
		return nil
	}

	r.Held = m.dating.deviceTaint(now, shown.Taint, known, m.lists[Rules].Listing)
	r.StatusDue, r.Tries = now, 0
	m.seen.setRule(r)
	return m.usersOf(m.seen.claimsIn(func(id Pool) bool { return r.selectsPool(id) || was.selectsPool(id) }))
}

// dropRule removes a rule, ending its evictions.
func (m *deviceMirror) dropRule(name string) (users []*pod) {
	r := m.seen.rules[name]
	if r == nil {
		return nil
	}
	m.seen.dropRule(name)
	return m.usersOf(m.seen.claimsIn(r.selectsPool))
}

// unlisted returns the objects missing from the list of their kind, in a fixed order.
func unlisted[N comparable, T any](all map[N]T, isMissing func(T) bool, order func(a, b T) int) (gone []T) {
	for _, object := range all {
		if isMissing(object) {
			gone = append(gone, object)
		}
	}
	slices.SortFunc(gone, order)
	return gone
}

// foundOf converts the reads of an attempt. It dates taints as if events had been missed, because
// the watches may lag behind the reads.
func (m *deviceMirror) foundOf(now time.Time, read *Devices) devices {
	found := newDevices()
	for i := range read.Claims {
		found.setClaim(&ClaimState{Claim: read.Claims[i]})
	}

	for i := range read.Slices {
		s := &slice{Slice: read.Slices[i]}
		s.held = m.dating.sliceTaints(now, s, m.seen.slices[s.Name], true)
		found.setSlice(s)
	}

	for i := range read.Rules {
		r := &rule{RuleState: RuleState{Rule: read.Rules[i]}}
		var known []Held
		if before := m.seen.rules[r.Name]; before != nil && before.UID == r.UID {
			known = []Held{before.Held}
		}
		r.Held = m.dating.deviceTaint(now, r.Taint, known, true)
		found.setRule(r)
	}

	return found
}
