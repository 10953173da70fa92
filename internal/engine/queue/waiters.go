// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"cmp"
	"hash/maphash"
	"math/bits"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// Narrowing selects the groups that an event may help, so that the event need not be compared with
// every group. The selection may include groups that the hint declines, but must not omit a group
// that the hint would wake. A Narrowing compares groups with events by topics or by amounts.
//
// For example, pods with the node selector zone=a rejected by NodeAffinity can be helped by a new
// node with that label, or by an existing node that gets the label. Their group has the topics
// {NodeLabel, zone, a} and {LabelChange, zone, a}. A new node has a NodeLabel topic for each of its
// labels, and a relabelled node has a LabelChange topic for each changed label. So neither event is
// compared with the groups waiting for other zones.
type Narrowing struct {
	// Topics returns the topics of an item's group, and EventTopics returns the topics of an event.
	// The event selects the groups that share a topic with it. If Topics sets all, every event
	// selects the group. If EventTopics sets all, the event selects every group.
	Topics      func(item *Item) (topics []Topic, all bool)
	EventTopics func(e *Event) (topics []Topic, all bool)
	// Wanted returns the minimum needed by a group, and Offered returns the maximum offered by an
	// event. The event selects the groups whose Wanted does not exceed its Offered.
	Wanted  func(class *cluster.PodClass) Amounts
	Offered func(e *Event) Amounts
}

// Amounts holds an amount of CPU in millicores and an amount of memory in bytes.
type Amounts [2]int64

// Topic is a subject shared by events and waiting groups.
type Topic struct {
	Kind       TopicKind
	Key, Value string
}

// TopicKind is the meaning of a topic's key and value.
type TopicKind uint8

// The kinds of topics.
const (
	// Means is a pod label matched by the selectors of the pending pods.
	Means TopicKind = iota
	// IsMeant is a label of the pending pods that selectors of other pods match.
	IsMeant
	// NodeLabel is a required node label. NodeKey is the key of a required node label. NodeName is
	// a required node name.
	NodeLabel
	NodeKey
	NodeName
	// LabelChange is a label added to a node. KeyChange is the key of a changed label.
	LabelChange
	KeyChange
	// TaintChange is a change of the taints of a node; it has no key.
	TaintChange
	// Tolerates is the key and value of a taint tolerated by the pending pods. ToleratesKey is a
	// taint key tolerated with any value.
	Tolerates
	ToleratesKey
	// OfClaim and OfDeviceClaim are the namespace and name of a claim used by the pending pods, and
	// OfVolume is the name of a volume named by such a claim.
	OfClaim
	OfDeviceClaim
	OfVolume
	// InNamespace is the namespace of the pending pods.
	InNamespace
	// AllPods has no key. A Narrowing that uses it gives it to every group, so an event with this
	// topic selects all groups.
	AllPods
)

// waiters holds the groups waiting for events of one interest. Each group is in exactly one of the
// fields all, byTopic and byAmount.
type waiters struct {
	interest *Interest
	all      map[*group]bool     // groups selected by every event; without a Narrowing, all groups
	byTopic  map[uint64]groupSet // groups by the hash of the topic
	most     int                 // largest length of byTopic; see cluster.Shrunk
	byAmount []wanting           // sorted by CPU, then by serial
}

// listing records the position of a group in the waiters of one interest.
type listing struct {
	waiters *waiters
	topics  []uint64 // hashes of the topics
	amounts Amounts
}

// groupSet is a set of groups. Most sets have one element, which needs no map.
type groupSet struct {
	one  *group
	many map[*group]bool // used instead of one, if the set has or had several groups
}

// eachGroup yields the groups of the set.
func (s groupSet) eachGroup(yield func(*group) bool) {
	if s.one != nil {
		yield(s.one)
		return
	}
	for of := range s.many {
		if !yield(of) {
			return
		}
	}
}

// withGroup returns the set with a group added.
func (s groupSet) withGroup(of *group) groupSet {
	switch {
	case s.many != nil:
		s.many[of] = true
		return s
	case s.one == nil || s.one == of:
		return groupSet{one: of}
	}
	return groupSet{many: map[*group]bool{s.one: true, of: true}}
}

// withoutGroup returns the set without a group, and reports whether any groups remain.
func (s groupSet) withoutGroup(of *group) (left groupSet, some bool) {
	if s.one == of {
		return groupSet{}, false
	}
	delete(s.many, of)
	return s, s.one != nil || len(s.many) > 0
}

var topicSeed = maphash.MakeSeed()

// hashTopic returns a hash that is stored instead of the topic, because a pod may list hundreds of
// thousands of topics. A hash collision selects additional groups, which only costs time.
func (t *Topic) hashTopic() uint64 {
	return bits.RotateLeft64(maphash.String(topicSeed, t.Key), 1) ^ maphash.String(topicSeed, t.Value) + uint64(t.Kind)*0x9e3779b97f4a7c15
}

// wanting is a group in waiters.byAmount, with its minimum need.
type wanting struct {
	amounts Amounts
	group   *group
}

// compare orders by CPU; the serial makes the order total, so that a binary search finds a given
// group.
func (a wanting) compare(b wanting) int {
	return cmp.Or(cmp.Compare(a.amounts[0], b.amounts[0]), cmp.Compare(a.group.serial, b.group.serial))
}

// enlistGroup adds the item's new group to the list and to the waiters of its interests.
func (g *groups) enlistGroup(of *group, item *Item) {
	g.serial++
	of.serial = g.serial
	of.index = len(g.list)
	g.byKey[of.key] = of
	g.byKey = cluster.Shrunk(g.byKey, &g.most)
	g.list = append(g.list, of)
	if of.anything {
		g.open[of] = true
		return
	}

	for i := range of.interests {
		interest := of.interests[i].Interest
		w := g.waiters[interest]
		if w == nil {
			w = &waiters{interest: interest, all: map[*group]bool{}, byTopic: map[uint64]groupSet{}}
			g.waiters[interest] = w
		}
		of.listings = append(of.listings, w.addGroup(of, item))
	}
}

// strikeGroup undoes enlistGroup for an empty group.
func (g *groups) strikeGroup(of *group) {
	delete(g.byKey, of.key)
	g.byKey = cluster.Shrunk(g.byKey, &g.most)
	end := len(g.list) - 1
	g.list[of.index] = g.list[end]
	g.list[of.index].index = of.index
	g.list[end] = nil
	g.list = cluster.ShrunkList(g.list[:end])
	delete(g.open, of)

	if of.anything {
		return
	}
	for i := range of.listings {
		w := of.listings[i].waiters
		if w.removeGroup(of, &of.listings[i]); len(w.all)+len(w.byTopic)+len(w.byAmount) == 0 {
			delete(g.waiters, w.interest)
		}
	}
}

// addGroup adds a group and returns its position. The position must be kept because Wanted or
// Topics may return different results for the group later.
func (w *waiters) addGroup(of *group, item *Item) listing {
	l, n := listing{waiters: w}, w.interest.Narrowing
	switch {
	case n == nil:
		w.all[of] = true
	case n.Wanted != nil:
		l.amounts = n.Wanted(of.key.class)
		entry := wanting{l.amounts, of}
		at, _ := slices.BinarySearchFunc(w.byAmount, entry, wanting.compare)
		w.byAmount = slices.Insert(w.byAmount, at, entry)
	default:
		topics, all := n.Topics(item)
		if all {
			w.all[of] = true
			return l
		}
		l.topics = make([]uint64, len(topics))
		for i := range topics {
			hash := topics[i].hashTopic()
			l.topics[i], w.byTopic[hash] = hash, w.byTopic[hash].withGroup(of)
		}
		w.byTopic = cluster.Shrunk(w.byTopic, &w.most)
	}

	return l
}

// removeGroup removes a group from its position returned by addGroup.
func (w *waiters) removeGroup(of *group, l *listing) {
	if n := w.interest.Narrowing; n != nil && n.Wanted != nil {
		if at, found := slices.BinarySearchFunc(w.byAmount, wanting{l.amounts, of}, wanting.compare); found {
			w.byAmount = cluster.ShrunkList(slices.Delete(w.byAmount, at, at+1))
		}
		return
	}
	for _, hash := range l.topics {
		if left, some := w.byTopic[hash].withoutGroup(of); some {
			w.byTopic[hash] = left
		} else {
			delete(w.byTopic, hash)
		}
	}
	w.byTopic = cluster.Shrunk(w.byTopic, &w.most)
	delete(w.all, of)
}

// findGroups adds to found the groups that the event may help.
func (w *waiters) findGroups(e *Event, found *finds) {
	for group := range w.all {
		found.addFound(group)
	}
	switch n := w.interest.Narrowing; {
	case n == nil:
	case n.Wanted != nil:
		offered := n.Offered(e)
		for i := range w.byAmount {
			of := &w.byAmount[i]
			if of.amounts[0] > offered[0] {
				break
			}
			if of.amounts[1] <= offered[1] {
				found.addFound(of.group)
			}
		}
	case len(w.byTopic) > 0:
		topics, all := n.EventTopics(e)
		if all {
			for _, set := range w.byTopic {
				for group := range set.eachGroup {
					found.addFound(group)
				}
			}
		}

		for i := range topics {
			for group := range w.byTopic[topics[i].hashTopic()].eachGroup {
				found.addFound(group)
			}
		}
	}
}

// finds holds the groups that one event may help, each once.
type finds struct {
	event uint64 // number of the event
	list  []*group
}

// addFound adds a group unless the event has found it before. Found groups are marked with the
// event's number, so no set is needed.
func (f *finds) addFound(of *group) {
	if of.found != f.event {
		of.found = f.event
		f.list = append(f.list, of)
	}
}

// eachHelped calls wake for all items that the event can help, in reverse order of the list of
// groups. wake may move the item.
func (g *groups) eachHelped(e *Event, asked Asked, wake func(*Item, help)) {
	k := kindOf(e.Resource)
	f := &g.finds
	f.event, f.list = f.event+1, f.list[:0]
	if e.Resource == AnyResource || k == len(kinds)-1 {
		f.list = append(f.list, g.list...)
	} else {
		for of := range g.open {
			f.addFound(of)
		}
		for interest, w := range g.waiters {
			if interest.wantsEvent(e) {
				w.findGroups(e, f)
			}
		}
	}

	// Sort the groups, because they were collected by iterating over maps.
	slices.SortFunc(f.list, func(a, b *group) int { return cmp.Compare(b.index, a.index) })
	for _, of := range f.list {
		if len(of.items) > 0 {
			of.eachHelped(e, k, asked, wake)
		}
	}

	clear(f.list)
	f.list = cluster.ShrunkList(f.list[:0])
}
