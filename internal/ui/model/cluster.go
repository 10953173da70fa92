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
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/berth-k8s/berth/internal/controller/eviction"
)

// mostEvents is the number of most recent events kept.
const mostEvents = 300

// Cluster is the cluster shown by the page.
//
// Objects from watches are applied immediately, and the affected rows are marked in dirtyNodes,
// dirtyPods, dirtyGroups and in Trees. Changes then computes these rows, compares them with the
// shown rows, and returns the difference. Ten status changes of a pod within a frame thus result in
// at most one row.
//
// A pod may reference a node or a group that has not been observed. nodes and groups therefore have
// an entry for each referenced name, with info nil until the object is observed.
type Cluster struct {
	core  *eviction.Core
	nodes map[string]*node // every observed node, and every node referenced by a pod
	pods  map[types.UID]*Pod
	names map[types.NamespacedName]types.UID // UID of the pod that currently has the name
	// groups holds every observed pod group, and every group referenced by a pod.
	groups map[types.NamespacedName]*group
	Trees  Trees
	// claims holds the existing ResourceClaims with the number of the last list that contained
	// them.
	claims map[types.NamespacedName]uint32
	served sets.Set[string] // scheduler names; empty: unknown

	// These fields are the numbers of the current lists.
	nodeList, podList, groupList, claimList uint32

	listed  bool  // nodes have been listed once, so a new node creates an event
	grouped bool  // PodGroups have been listed once
	claimed bool  // ResourceClaims have been listed once
	roomy   bool  // see judgeRoom
	since   int64 // time of the first call of Changes
	noted   int   // number of events created by noteEvent; used in their UIDs

	// These rows may differ from the shown rows.
	dirtyNodes  map[string]bool
	dirtyPods   map[types.UID]bool
	dirtyGroups map[types.NamespacedName]bool
	// These fields hold the shown rows.
	queue     map[types.UID]Waiting
	evictions map[types.UID]Leaving
	events    []Event // most recent events; events already returned by Changes come first
	unshown   int     // number of events not yet returned by Changes
	sent      Summary // summary returned last
	marked    int     // see Summary.Marked
	history   history

	departures departures
	waits      map[types.UID]Event // see noteWait; by the UID of the pod
}

// New returns an empty cluster.
func New() *Cluster {
	c := &Cluster{
		// The first eviction is never acknowledged, so the core starts no further evictions and
		// only computes deadlines.
		core:  eviction.New(eviction.Options{InFlight: 1}),
		nodes: map[string]*node{}, pods: map[types.UID]*Pod{}, names: map[types.NamespacedName]types.UID{},
		dirtyNodes: map[string]bool{}, dirtyPods: map[types.UID]bool{},
		claims: map[types.NamespacedName]uint32{},
		groups: map[types.NamespacedName]*group{}, dirtyGroups: map[types.NamespacedName]bool{},
		queue: map[types.UID]Waiting{}, evictions: map[types.UID]Leaving{},
	}
	c.waits = map[types.UID]Event{}
	c.departures = departures{byPod: map[types.UID]*Departure{}}
	c.Trees = Trees{
		byName: map[types.NamespacedName]*composite{}, dirty: map[types.NamespacedName]bool{}, groups: c.groups, dirtyGroups: c.dirtyGroups,
	}
	return c
}

// NodesListing begins a list of nodes. Nodes not observed before the next NodesListed have been
// deleted. Lists of other kinds work in the same way: each object has the number of the last list
// that contained it.
func (c *Cluster) NodesListing(now time.Time) {
	c.nodeList++
	c.core.Step(now, eviction.NodesListing{})
}

// NodesListed ends a list of nodes.
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

	// If the node has taints before or after the change, deadlines of its pods may have changed.
	held := n.info != nil && len(n.info.eviction.Taints) > 0 || len(info.eviction.Taints) > 0
	n.info, n.list = info, c.nodeList
	c.core.Step(now, eviction.NodeSeen{Node: info.eviction})
	c.dirtyNodes[n.name] = true
	if held {
		touchAll(c.dirtyPods, n.pods)
	}
}

// NodeGone removes a node. Its pods count as astray until they are removed.
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
	touchAll(c.dirtyPods, n.pods) // the pods' deadlines may have changed
}

// noteEvent adds an event that does not come from the API. Its UID cannot equal a UID of the API.
func (c *Cluster) noteEvent(now time.Time, node string, e Event) {
	c.noted++
	e.UID, e.At, e.Kind, e.Name, e.Count = "node-"+strconv.Itoa(c.noted), now.UnixMilli(), "Node", node, 1
	c.EventSeen(e)
}

// PodsListing begins a list of pods. Pods not observed before the next PodsListed have been
// deleted.
func (c *Cluster) PodsListing(now time.Time) {
	c.podList++
	c.core.Step(now, eviction.PodsListing{})
}

// PodsListed ends a list of pods.
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
	// The deletion of the previous pod with this name was not observed.
	if holder, ok := c.names[p.eviction.Name]; ok && holder != uid {
		c.PodGone(now, holder)
	}

	c.names[p.eviction.Name] = uid
	if was := c.pods[uid]; was != nil && was.cause == "" {
		switch p.cause {
		case "":
		// The reason is set by the component that removes the pod: the scheduler or an evicting
		// controller.
		case v1.PodReasonPreemptionByScheduler:
			c.history.countEvent(now, preemptions)
		case "DeletionByTaintManager", "EvictionByEvictionAPI", v1.PodReasonTerminationByKubelet, "DeletionByDeviceTaintManager":
			c.history.countEvent(now, evictions)
		}
	}

	if c.pods[uid] == nil {
		c.departures.fresh = append(c.departures.fresh, uid)
	}
	c.departures.notePod(now.UnixMilli(), p, c.evictions[uid].Taint)

	// Subtract the pod's old state, then add its new state.
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

// UIDOf returns the UID of the pod with a name, or "".
func (c *Cluster) UIDOf(name types.NamespacedName) types.UID { return c.names[name] }

// Lasting makes the cluster keep the whole history of the given length. A longer history has a
// coarser resolution. It must be called before all other methods.
func (c *Cluster) Lasting(length time.Duration) {
	c.history.every = max(Every, (length/(mostMoments-1)).Truncate(Every)+Every)
}

// PodGone removes a pod. It ignores unknown pods.
func (c *Cluster) PodGone(now time.Time, uid types.UID) {
	p := c.pods[uid]
	if p == nil {
		return
	}
	// A pod that was removed without a grace period departs now.
	if p.takesRoom() {
		c.departures.departure(uid, p.departure(now.UnixMilli())).Gone = now.UnixMilli()
	}
	c.leaveNode(p)
	delete(c.pods, uid)
	delete(c.waits, uid)
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

// nodeNamed returns the entry of a node, creating it if needed. An entry without a node and without
// pods is dropped by the next showNode.
func (c *Cluster) nodeNamed(name string) *node {
	n := c.nodes[name]
	if n == nil {
		n = &node{name: name, pods: map[types.UID]*Pod{}}
		c.nodes[name] = n
	}
	return n
}

// EventSeen applies an event, new or repeated. Events are trimmed only when their number reaches
// three times mostEvents.
func (c *Cluster) EventSeen(e Event) {
	c.events = append(c.events, e)
	c.departures.noteEvent(&e)
	c.noteWait(&e)
	c.unshown++
	if len(c.events) > 3*mostEvents {
		c.trimEvents()
	}
}

// describePods adds the node, workload and priority of the pod to events about known pods. Lists of
// events may arrive before lists of pods, so the events are completed when they are shown.
func (c *Cluster) describePods(events []Event) {
	for i := range events {
		e := &events[i]
		if p := c.pods[c.names[types.NamespacedName{Namespace: e.Namespace, Name: e.Name}]]; p != nil && e.Kind == "Pod" {
			e.Node, e.Workload, e.Priority = p.eviction.Node, p.workload, p.priority
		}
	}
}

// newestEvents keeps the last state of each event: a repeated event has the same UID. The result is
// in the order of these last states.
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

// trimEvents drops all but the mostEvents most recent events. Neither lists nor watches are ordered
// by time, so an unshown event may be older than a shown one.
func (c *Cluster) trimEvents() {
	unshown := map[string]bool{}
	for _, e := range c.events[len(c.events)-c.unshown:] {
		unshown[e.UID] = true
	}

	kept := newestEvents(c.events)
	slices.SortStableFunc(kept, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
	kept = kept[max(0, len(kept)-mostEvents):]

	// Unshown events stay at the end regardless of their times. The slices are new, so that no
	// array retains dropped events.
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

// mostText bounds the texts of an event, in bytes. The API server does not bound the texts of
// events in the core group; texts written by Kubernetes itself have at most 1024 bytes.
const mostText = 1024

// cutText returns a copy of the beginning of an overlong text.
func cutText(text string) string {
	if len(text) <= mostText {
		return text
	}
	return strings.ToValidUTF8(text[:mostText], "") + "…"
}

// EventOf extracts the stored part of an event of the API. Older and newer writers set different
// time fields. Times are in milliseconds, as in the page.
func EventOf(object *v1.Event) Event {
	e := Event{
		UID: string(object.UID), At: object.LastTimestamp.UnixMilli(), Warning: object.Type == v1.EventTypeWarning, Reason: object.Reason,
		Kind: object.InvolvedObject.Kind, Namespace: object.InvolvedObject.Namespace, Name: object.InvolvedObject.Name,
		Message: object.Message, Count: max(object.Count, 1), By: cmp.Or(object.ReportingController, object.Source.Component),
		pod: object.InvolvedObject.UID,
	}

	for _, text := range []*string{&e.Reason, &e.Kind, &e.Namespace, &e.Name, &e.Message, &e.By} {
		*text = cutText(*text)
	}

	latest := object.EventTime.Time
	// The newer events API stores the count in the series.
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
