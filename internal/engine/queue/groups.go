// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"slices"
	"strings"
	"time"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// groups holds the Waiting and the Gated items, by group. A group exists while it contains items.
// It is in byKey, in list at its index, and either in open or in the waiters of each of its
// interests.
type groups struct {
	byKey   map[groupKey]*group
	most    int             // largest length of byKey; see cluster.Shrunk
	list    []*group        // unordered
	open    map[*group]bool // groups that any event may help
	waiters map[*Interest]*waiters
	serial  uint64 // serial of the newest group
	finds   finds
}

// groupKey holds the common properties of a group's items. The lists of plugins are joined, since a
// key must be comparable.
type groupKey struct {
	class         *cluster.PodClass
	schedulerName string
	count         int // number of rejectors; distinguishes an empty list from one empty name
	rejectors     string
	pending       string // the rejectors that made the pod wait
}

// group holds the items of one class that wait for the same events.
type group struct {
	key       groupKey
	rejectors []string
	pending   []string
	index     int    // position in groups.list
	serial    uint64 // never reused
	found     uint64 // number of the last event that found the group; see finds
	items     []*Item
	interests []pluginInterest
	listings  []listing          // one per interest; empty if any event may help
	anything  bool               // any event may help, because a rejector has not registered events
	wants     [len(kinds)]Action // the union of the interests' actions, by kind
}

// pluginInterest is an interest together with its plugin.
type pluginInterest struct {
	*Interest
	plugin  string
	pending bool // the plugin made the pod wait
}

// help is the effect of an event on an item.
type help uint8

const (
	nothing      help = iota
	afterBackoff      // the next attempt may end differently
	atOnce            // a plugin in pending waits for this event: the back-off ends
)

// Asked is called after a hint, with the verdict and duration of the hint.
type Asked func(plugin, label string, wake bool, took time.Duration)

// helpsItem calls the hint.
func (i *pluginInterest) helpsItem(item *Item, e *Event, asked Asked) bool {
	if asked == nil {
		return i.Hint(item, e)
	}
	began := time.Now()
	wake := i.Hint(item, e)
	asked(i.plugin, e.Label, wake, time.Since(began))
	return wake
}

// kinds lists the resources by number.
var kinds = [...]Resource{
	Pod, Node, Volume, Claim, CSINode, CSIDriver, VolumeAttachment, CSIStorageCapacity, StorageClass, ResourceClaim, ResourceSlice,
	DeviceClass, Namespace, Budget, Owner, PodGroup, CompositePodGroup, AnyResource,
}

// kindOf returns the number of a resource. An unknown resource counts as AnyResource.
func kindOf(r Resource) int {
	if r == AssignedPod || r == UnscheduledPod || r == TargetPod {
		r = Pod
	}
	if i := slices.Index(kinds[:], r); i >= 0 {
		return i
	}
	return len(kinds) - 1
}

// addItem adds an item to the group of items with these rejectors.
func (g *groups) addItem(item *Item, rejectors, pending []string, interests Interests) {
	key := groupKey{item.Class, item.Pod.Spec.SchedulerName, len(rejectors), strings.Join(rejectors, " "), strings.Join(pending, " ")}
	into, ok := g.byKey[key]
	if !ok {
		into = newGroup(key, rejectors, pending, interests)
		g.enlistGroup(into, item)
	}
	item.group, item.index = into, len(into.items)
	into.items = append(into.items, item)
}

// newGroup creates a group without items. It waits for the interests of all rejectors. If a
// rejector has not declared any interests, every event may help.
func newGroup(key groupKey, rejectors, pending []string, interests Interests) *group {
	g := &group{key: key, rejectors: rejectors, pending: pending, anything: len(rejectors) == 0}
	for _, name := range rejectors {
		listed, ok := interests[name]
		g.anything = g.anything || !ok && name != "" // as upstream, no event helps if the rejector has no name
		for i := range listed {
			interest := &listed[i]
			g.interests = append(g.interests, pluginInterest{interest, name, slices.Contains(pending, name)})
			if interest.Resource != AnyResource {
				g.wants[kindOf(interest.Resource)] |= interest.Action
				continue
			}
			for k := range g.wants {
				g.wants[k] |= interest.Action
			}
		}
	}
	return g
}

// removeItem removes an item from its group, and removes a group that became empty. The last item
// of the group moves into the gap.
func (g *groups) removeItem(item *Item) {
	from := item.group
	last := len(from.items) - 1
	from.items[item.index] = from.items[last]
	from.items[item.index].index = item.index
	from.items[last] = nil
	from.items = from.items[:last]
	item.group, item.index = nil, -1
	if last > 0 {
		return
	}
	g.strikeGroup(from)
}

// regroupItem moves an item with a changed class to another group. The rejecting plugins and the
// helpful events stay the same.
func (g *groups) regroupItem(item *Item) {
	old := item.group
	g.removeItem(item)
	key := old.key
	key.class = item.Class
	into, ok := g.byKey[key]
	if !ok {
		into = &group{key: key, rejectors: old.rejectors, pending: old.pending, interests: old.interests,
			anything: old.anything, wants: old.wants}
		g.enlistGroup(into, item)
	}
	item.group, item.index = into, len(into.items)
	into.items = append(into.items, item)
}

// eachHelped calls wake for the group's items that can be helped by an event of the kind k. It
// iterates in reverse order, since wake may remove the item from the group.
func (g *group) eachHelped(e *Event, k int, asked Asked, wake func(*Item, help)) {
	if !g.anything && g.wants[k]&e.Action == 0 && e.Resource != AnyResource {
		return
	}
	if len(g.pending) > 0 { // the effect depends on the plugin of the interest
		for i := len(g.items) - 1; i >= 0; i-- {
			item := g.items[i]
			wake(item, g.helpFor(item, e, asked))
		}
		return
	}

	whole, each := g.interestsIn(e, asked)
	if !whole && len(each) == 0 {
		return
	}
	for i := len(g.items) - 1; i >= 0; i-- {
		item := g.items[i]
		if whole || slices.ContainsFunc(each, func(i *pluginInterest) bool { return i.helpsItem(item, e, asked) }) {
			wake(item, afterBackoff)
		}
	}
}

// interestsIn reports whether the event can help the whole group, and otherwise returns the
// interests with hints to be called for each pod.
func (g *group) interestsIn(e *Event, asked Asked) (whole bool, each []*pluginInterest) {
	if g.anything {
		return true, nil
	}
	for i := range g.interests {
		switch interest := &g.interests[i]; {
		case !interest.wantsEvent(e):
		case interest.Hint == nil:
			return true, nil
		case interest.PerPod:
			each = append(each, interest)
		// Any item represents the group: the hint examines only the class.
		case interest.helpsItem(g.items[0], e, asked):
			return true, nil
		}
	}
	return false, each
}

// helpFor returns the effect of an event on one item of the group. It stops at the first helpful
// interest, unless a later interest could also end the back-off.
func (g *group) helpFor(item *Item, e *Event, asked Asked) (best help) {
	if e.Own != nil && e.Resource == AnyResource { // see Activate
		return afterBackoff
	}
	if g.anything {
		best = afterBackoff
	}

	for i := range g.interests {
		if best == afterBackoff && len(g.pending) == 0 {
			break
		}
		switch interest := &g.interests[i]; {
		case best == afterBackoff && !interest.pending, !interest.wantsEvent(e), interest.Hint != nil &&
			!interest.helpsItem(item, e, asked):
		case interest.pending:
			return atOnce
		default:
			best = afterBackoff
		}
	}
	return best
}
