// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/eviction"
)

// mostEvents is the number of most recent events kept.
const mostEvents = 300

// Cluster is the cluster shown by the page.
//
// Objects from watches are applied immediately, and mark the rows that they may change: dirtyNodes,
// dirtyPods, dirtyGroups, and those of Trees. Changes then computes these rows, compares them with
// the shown ones, and returns the difference. So a pod with ten status changes within a frame is
// one row, or none.
//
// A pod may name its node and its group before, or without, these being seen: nodes and groups have
// an entry for each name, with info nil until the object is seen.
type Cluster struct {
	core  *eviction.Core
	nodes map[string]*node // every node seen, or named by a pod
	pods  map[types.UID]*Pod
	names map[types.NamespacedName]types.UID // which pod holds its name now
	// Every pod group seen, or named by a pod.
	groups map[types.NamespacedName]*group
	Trees  Trees
	// The existing ResourceClaims, each with the number of the last list that showed it.
	claims map[types.NamespacedName]uint32
	served map[string]bool // scheduler names; empty: not known

	// The number of the current list.
	nodeList, podList, groupList, claimList uint32

	listed  bool  // nodes have been listed once: a new one is worth an event
	grouped bool  // PodGroups have been listed once
	claimed bool  // ResourceClaims have been listed once
	roomy   bool  // see judgeRoom
	since   int64 // when Changes was called first
	noted   int   // own events so far, which number them

	// The possible differences to the shown rows.
	dirtyNodes  map[string]bool
	dirtyPods   map[types.UID]bool
	dirtyGroups map[types.NamespacedName]bool
	// The shown rows.
	queue     map[types.UID]Waiting
	evictions map[types.UID]Leaving
	events    []Event // the last ones; groups present in Changes come first
	unshown   int     // how many of them have not been in Changes
	sent      Summary // the last one
	marked    int     // see Summary.Marked
	history   history
}

// New returns an empty cluster.
func New() *Cluster {
	c := &Cluster{
		// One eviction is begun and never acknowledged, so no other is: the core only computes
		// deadlines.
		core:  eviction.New(eviction.Options{InFlight: 1}),
		nodes: map[string]*node{}, pods: map[types.UID]*Pod{}, names: map[types.NamespacedName]types.UID{},
		dirtyNodes: map[string]bool{}, dirtyPods: map[types.UID]bool{},
		claims: map[types.NamespacedName]uint32{}, served: map[string]bool{},
		groups: map[types.NamespacedName]*group{}, dirtyGroups: map[types.NamespacedName]bool{},
		queue: map[types.UID]Waiting{}, evictions: map[types.UID]Leaving{},
	}
	c.Trees = Trees{
		byName: map[types.NamespacedName]*composite{}, dirty: map[types.NamespacedName]bool{}, groups: c.groups, dirtyGroups: c.dirtyGroups,
	}
	return c
}

// NodesListing begins a list of nodes: nodes not seen until NodesListed have been removed. The same
// holds for the lists of the other kinds: each object carries the number of the last list that
// showed it.
func (c *Cluster) NodesListing(now time.Time) {
	c.nodeList++
	c.core.Step(now, eviction.NodesListing{})
}

// NodesListed ends it.
func (c *Cluster) NodesListed(now time.Time) {
	for _, name := range sortedNames(c.nodes) {
		if n := c.nodes[name]; n.info != nil && n.list != c.nodeList {
			c.NodeGone(now, name)
		}
	}
	c.core.Step(now, eviction.NodesListed{})
	c.listed = true
}

// NodeSeen applies a node, new or changed. The cluster keeps info.
func (c *Cluster) NodeSeen(now time.Time, info *NodeInfo) {
	n := c.nodeNamed(info.eviction.Name)
	if n.info == nil || !maps.Equal(n.info.labels, info.labels) || !slices.Equal(taintTexts(n.info.taints), taintTexts(info.taints)) {
		c.marked++
	}

	// A new or already unready node is not a failure.
	if n.info != nil && n.info.ready == string(v1.ConditionTrue) && info.ready != string(v1.ConditionTrue) {
		c.history.countEvent(now, failures)
	}
	switch {
	case n.info != nil:
		for _, e := range nodeEvents(n.info, info) {
			c.noteEvent(now, n.name, e)
		}
	case c.listed:
		c.noteEvent(now, n.name, Event{Reason: "NodeAdded", Message: "node added"})
	}

	// With a taint before or after, pods may be evicted, or no longer need to be.
	held := n.info != nil && len(n.info.eviction.Taints) > 0 || len(info.eviction.Taints) > 0
	n.info, n.list = info, c.nodeList
	c.core.Step(now, eviction.NodeSeen{Node: info.eviction})
	c.dirtyNodes[n.name] = true
	if held {
		c.touchPods(n)
	}
}

// NodeGone removes a node. Its pods stay until they are removed themselves; they count as astray.
func (c *Cluster) NodeGone(now time.Time, name string) {
	n := c.nodes[name]
	if n == nil || n.info == nil {
		return
	}
	c.noteEvent(now, name, Event{Warning: true, Reason: "NodeRemoved", Message: "node removed"})
	n.info = nil
	c.marked++
	c.core.Step(now, eviction.NodeGone{Name: name})
	c.dirtyNodes[name] = true
	c.touchPods(n)
}

// touchPods marks the node's pods to be looked at again: their deadlines may have changed.
func (c *Cluster) touchPods(n *node) {
	for uid := range n.pods {
		c.dirtyPods[uid] = true
	}
}

// noteEvent adds an event that is not the API's. Its UID is unlike any UID of the API.
func (c *Cluster) noteEvent(now time.Time, node string, e Event) {
	c.noted++
	e.UID, e.At, e.Kind, e.Name, e.Count = "node-"+strconv.Itoa(c.noted), now.UnixMilli(), "Node", node, 1
	c.EventSeen(e)
}

// PodsListing begins a list of pods: pods not seen until PodsListed have been removed.
func (c *Cluster) PodsListing(now time.Time) {
	c.podList++
	c.core.Step(now, eviction.PodsListing{})
}

// PodsListed ends it.
func (c *Cluster) PodsListed(now time.Time) {
	for uid, p := range c.pods {
		if p.list != c.podList {
			c.PodGone(now, uid)
		}
	}
	c.core.Step(now, eviction.PodsListed{})
}

// PodSeen applies a pod, new or changed. The cluster keeps p.
func (c *Cluster) PodSeen(now time.Time, p *Pod) {
	uid := p.uid()
	// The deletion of the predecessor was not seen.
	if holder, ok := c.names[p.eviction.Name]; ok && holder != uid {
		c.PodGone(now, holder)
	}

	c.names[p.eviction.Name] = uid
	if was := c.pods[uid]; was != nil && was.cause == "" {
		switch p.cause {
		case "":
		// The reason is set by the component that removes the pod: the scheduler, or an evicting
		// one.
		case v1.PodReasonPreemptionByScheduler:
			c.history.countEvent(now, preemptions)
		case "DeletionByTaintManager", "EvictionByEvictionAPI", v1.PodReasonTerminationByKubelet, "DeletionByDeviceTaintManager":
			c.history.countEvent(now, evictions)
		}
	}

	// The pod's old state is uncounted, and its new state counted.
	c.leaveNode(c.pods[uid])
	p.list = c.podList
	c.pods[uid] = p
	c.joinGroup(p, 1)
	c.dirtyPods[uid] = true

	if p.eviction.Node != "" {
		n := c.nodeNamed(p.eviction.Node)
		n.pods[uid] = p
		n.movePod(p, 1)
		c.dirtyNodes[n.name] = true
	}
	c.core.Step(now, eviction.PodSeen{Pod: p.eviction})
}

// PodGoneNamed removes a pod by name. A recording has names only.
func (c *Cluster) PodGoneNamed(now time.Time, name types.NamespacedName) {
	if uid, ok := c.names[name]; ok {
		c.PodGone(now, uid)
	}
}

// Lasting makes the cluster keep its whole history of this length: the longer it is, the coarser.
// It must be called before anything else.
func (c *Cluster) Lasting(length time.Duration) {
	c.history.every = max(Every, (length/(mostMoments-1)).Truncate(Every)+Every)
}

// PodGone removes a pod. It ignores an unknown one.
func (c *Cluster) PodGone(now time.Time, uid types.UID) {
	p := c.pods[uid]
	if p == nil {
		return
	}
	c.leaveNode(p)
	delete(c.pods, uid)
	if c.names[p.eviction.Name] == uid {
		delete(c.names, p.eviction.Name)
	}
	c.dirtyPods[uid] = true
	c.core.Step(now, eviction.PodGone{Name: p.eviction.Name, UID: uid})
}

// leaveNode removes a pod from its group and its node, if it has them.
func (c *Cluster) leaveNode(p *Pod) {
	if p == nil {
		return
	}
	c.joinGroup(p, -1)
	if p.eviction.Node == "" {
		return
	}
	n := c.nodes[p.eviction.Node]
	n.movePod(p, -1)
	delete(n.pods, p.uid())
	c.dirtyNodes[n.name] = true
}

// nodeNamed returns the entry of a node, creating it if needed. An entry without a node and pods is
// dropped when it is shown next.
func (c *Cluster) nodeNamed(name string) *node {
	n := c.nodes[name]
	if n == nil {
		n = &node{name: name, pods: map[types.UID]*Pod{}}
		c.nodes[name] = n
	}
	return n
}

// EventSeen applies an event, new or repeated. Events are trimmed only when there are three times
// the number kept.
func (c *Cluster) EventSeen(e Event) {
	c.events = append(c.events, e)
	c.unshown++
	if len(c.events) > 3*mostEvents {
		c.trimEvents()
	}
}

// newestEvents keeps the last state of each event: a repeated one has the same UID. The order is
// the order of the last states.
func newestEvents(events []Event) []Event {
	last := make(map[string]int, len(events))
	for i := range events {
		last[events[i].UID] = i
	}
	kept := make([]Event, 0, len(last))
	for i := range events {
		if last[events[i].UID] == i {
			kept = append(kept, events[i])
		}
	}
	return kept
}

// trimEvents drops all but the last events. Neither lists nor watches are ordered by time: an
// unshown event may be older than a shown one.
func (c *Cluster) trimEvents() {
	unshown := map[string]bool{}
	for _, e := range c.events[len(c.events)-c.unshown:] {
		unshown[e.UID] = true
	}

	kept := newestEvents(c.events)
	slices.SortStableFunc(kept, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
	kept = kept[max(0, len(kept)-mostEvents):]

	// Unshown events stay the last ones, whatever their times. The slices are new, so that no array
	// retains dropped events.
	var shown, fresh []Event
	for _, e := range kept {
		if unshown[e.UID] {
			fresh = append(fresh, e)
		} else {
			shown = append(shown, e)
		}
	}
	c.events, c.unshown = append(shown, fresh...), len(fresh)
}

// mostText bounds the texts of an event, in bytes. The API server bounds none of them in events of
// the core group; those of Kubernetes itself have 1024 bytes at most.
const mostText = 1024

// cutText returns a copy of the beginning of an overlong text.
func cutText(text string) string {
	if len(text) <= mostText {
		return text
	}
	return strings.ToValidUTF8(text[:mostText], "") + "…"
}

// EventOf extracts the stored part of an event of the API. Older writers set one time, newer ones
// another. Times are in milliseconds, as for the page.
func EventOf(object *v1.Event) Event {
	e := Event{
		UID: string(object.UID), At: object.LastTimestamp.UnixMilli(), Warning: object.Type == v1.EventTypeWarning, Reason: object.Reason,
		Kind: object.InvolvedObject.Kind, Namespace: object.InvolvedObject.Namespace, Name: object.InvolvedObject.Name,
		Message: object.Message, Count: max(object.Count, 1),
	}

	for _, text := range []*string{&e.Reason, &e.Kind, &e.Namespace, &e.Name, &e.Message} {
		*text = cutText(*text)
	}

	latest := object.EventTime.Time
	// Written by the newer events API: the count is in the series.
	if object.Series != nil {
		latest, e.Count = object.Series.LastObservedTime.Time, max(object.Series.Count, e.Count)
	}

	switch {
	case !latest.IsZero() && (object.LastTimestamp.IsZero() || latest.After(object.LastTimestamp.Time)):
		e.At = latest.UnixMilli()
	case object.LastTimestamp.IsZero():
		e.At = object.CreationTimestamp.UnixMilli()
	}
	return e
}
