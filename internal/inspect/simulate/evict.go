// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"cmp"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/eviction"
)

// evictions evicts pods from tainted nodes and devices. The core that also runs live determines
// their deadlines. It only watches: in this world each of its requests would succeed immediately.
//
// The core observes all objects that describe devices, but only nodes that have or had NoExecute
// taints, and only pods on these nodes or with device claims. Other nodes and pods cost nothing.
type evictions struct {
	clock *clock
	pods  *pods
	core  *eviction.Core
	nodes map[string]bool // nodes observed by the core
	last  time.Duration   // time of the latest evictions; -1 before the first
}

// newEvictions returns evictions without objects. The lists of pods, slices and rules never end,
// because the core rounds up the times of objects observed after a list: API servers truncate
// times, but those of this world are exact.
func newEvictions(clock *clock, pods *pods) evictions {
	e := evictions{clock: clock, pods: pods, core: eviction.New(eviction.Options{Watches: true}), nodes: map[string]bool{}, last: -1}
	e.step(eviction.PodsListing{})
	e.step(eviction.Listing{Kind: eviction.Slices})
	e.step(eviction.Listing{Kind: eviction.Rules})
	return e
}

// step applies an event to the core. A watching core returns no requests.
func (e *evictions) step(event eviction.Event) { e.core.Step(e.clock.time(), event) }

// follow records the current state of an object other than a pod, or its deletion.
func (e *evictions) follow(object metav1.Object, gone bool) {
	switch o := object.(type) {
	case *v1.Node:
		e.followNode(o, gone)
	case *resourcev1.ResourceClaim:
		if claim := eviction.ClaimOf(o); gone {
			e.step(eviction.ClaimGone{Name: claim.Name})
		} else {
			e.step(eviction.ClaimSeen{Claim: claim})
		}
	// No operation deletes objects of these kinds.
	case *resourcev1.ResourceSlice:
		e.step(eviction.SliceSeen{Slice: eviction.SliceOf(o)})
	case *resourcev1.DeviceTaintRule:
		e.step(eviction.RuleSeen{Rule: eviction.RuleOf(o)})
	}
}

// followNode shows the core a node from its first NoExecute taint on, and then the node's pods.
func (e *evictions) followNode(node *v1.Node, gone bool) {
	seen, known := eviction.NodeOf(node), e.nodes[node.Name]
	switch {
	case gone:
		delete(e.nodes, node.Name)
		e.step(eviction.NodeGone{Name: node.Name})
	case known || len(seen.Taints) > 0:
		e.nodes[node.Name] = true
		e.step(eviction.NodeSeen{Node: seen})
	}
	if !known && e.nodes[node.Name] {
		for _, p := range e.pods.podsOn(node.Name) {
			e.showPod(p)
		}
	}
}

// affects reports whether taints may evict the pod from its node, given its object.
func (e *evictions) affects(object *v1.Pod, node string) bool {
	return e.nodes[node] || len(object.Spec.ResourceClaims) > 0 || object.Status.ExtendedResourceClaimStatus != nil
}

// showPod shows the core a pod that is on a node since p.since. A terminating pod needs no
// eviction.
func (e *evictions) showPod(p *pod) {
	if p.object == nil || p.Terminating || !e.affects(p.object, p.NodeName) {
		return
	}
	seen := eviction.PodOf(p.object)
	seen.Node, seen.Bound = p.NodeName, p.since
	e.step(eviction.PodSeen{Pod: seen})
}

// nextDue returns the time of the next eviction; ok is false if there is none.
func (e *evictions) nextDue() (time.Duration, bool) {
	wake, ok := e.core.Wake()
	at := max(wake.Sub(e.clock.start), e.clock.now)
	if at == e.last {
		// The pod's replacement landed on a node with the same taint. Time must advance, since
		// controllers need at least a second.
		at += time.Second
	}
	return at, ok
}

// evictDue calls evict for each due pod, earliest first. Replacements created by evict are pending
// and are placed only after evictDue has returned.
func (e *evictions) evictDue(evict func(p *pod, cause string)) {
	if at, ok := e.nextDue(); !ok || at > e.clock.now {
		return
	}
	e.last = e.clock.now
	var list []*pod
	for p, due := range e.core.Going() {
		if due.IsDue(e.clock.time()) {
			list = append(list, e.pods.placed[p.UID])
		}
	}
	slices.SortFunc(list, func(a, b *pod) int {
		return cmp.Or(e.dueOf(a.UID).At.Compare(e.dueOf(b.UID).At), cmp.Compare(a.number, b.number))
	})
	for _, p := range list {
		// An earlier eviction may have removed the pod, or released its device.
		if due := e.dueOf(p.UID); due.IsDue(e.clock.time()) {
			evict(p, due.Cause())
		}
	}
}

// dueOf returns the time at which a pod must leave its node.
func (e *evictions) dueOf(pod types.UID) eviction.Due {
	due, _ := e.core.Due(pod)
	return due
}

// toCome lists the outstanding evictions, in no particular order.
func (e *evictions) toCome() (list []Eviction) {
	for p, due := range e.core.Going() {
		after := Seconds(max(due.At.Sub(e.clock.start), 0))
		list = append(list, Eviction{Namespace: p.Name.Namespace, Name: p.Name.Name, Node: p.Node, After: after, Taint: due.Cause()})
	}
	return list
}

// onlyAgain reports whether all outstanding evictions concern replacements of evicted pods that
// landed on a tainted node again.
func (e *evictions) onlyAgain() bool {
	for p := range e.core.Going() {
		if !e.pods.placed[p.UID].again {
			return false
		}
	}
	return true
}

// compare orders by due time, then by name.
func (e Eviction) compare(o Eviction) int {
	return cmp.Or(cmp.Compare(e.After, o.After), cmp.Compare(e.Namespace, o.Namespace), cmp.Compare(e.Name, o.Name))
}
