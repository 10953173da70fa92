// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/world/disruption"
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
		return cmp.Or(e.dueOf(a.UID()).At.Compare(e.dueOf(b.UID()).At), cmp.Compare(a.number, b.number))
	})
	for _, p := range list {
		// An earlier eviction may have removed the pod, or released its device.
		if due := e.dueOf(p.UID()); due.IsDue(e.clock.time()) {
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

// Cause is the reason a pod left its node. It determines whether and when the pod's controller
// recreates the pod.
type Cause string

// Causes of departures.
const (
	ByTaint       Cause = "Taint"
	ByDrain       Cause = "Drain"
	ByEviction    Cause = "Eviction"
	ByPreemption  Cause = "Preemption"
	ByNodeRemoval Cause = "NodeRemoved"
	ByDeletion    Cause = "Deleted"
	ByScaling     Cause = "Scaled"
	ByRollout     Cause = "RolledOut"
	ByRebalance   Cause = "Rebalance"
	ByJobFailure  Cause = "JobFailed"
	ByPressure    Cause = "Pressure"
	ByTermination Cause = "Terminated" // the pod was already being deleted at the start
)

// Fate is the outcome for a departed pod. A departure's fate may change as time passes: a Stuck pod
// may be recreated once it has ended.
type Fate string

// Fates of departed pods.
const (
	Returns Fate = "Returns" // its controller recreates it, under a new name or the same
	Lost    Fate = "Lost"    // it has no controller to recreate it
	Stays   Fate = "Stuck"   // its controller waits for its end: for its grace period, or until its node responds
	Ends    Fate = "Ends"    // it is no longer wanted, or not wanted on this node
	Waits   Fate = "Waits"   // its StatefulSet recreates it once all earlier pods are ready, or its Job recreates it after a back-off
	Fails   Fate = "Fails"   // it makes its Job fail, and is not recreated
	// IndexFails means that the departure makes the pod's index in its Job fail. The index gets no
	// further pods.
	IndexFails Fate = "IndexFails"
)

// Departure is a pod that left its node or is about to: a pod with a grace period departs when its
// deletion begins. Departures are kept for the result, and for controllers that wait for a pod's
// end.
type Departure struct {
	Namespace, Name, Node string
	After                 Seconds
	Cause                 Cause
	// Detail depends on the cause: the taint, the preempting pod, the kubelet's message, or the
	// node, for example.
	Detail string
	// Owner is the controller as Kind/name, or empty.
	Owner string
	Fate  Fate
	// Reason is the reason the pod's Job or index fails; empty for other fates.
	Reason string
	// Broken lists the disruption budgets violated by the departure: they have fewer healthy pods
	// than desired. The loss of an unhealthy pod violates none. Only the Eviction API enforces
	// budgets; taints and deletions ignore them.
	Broken []string
	// Again is set if the pod itself replaced a pod evicted by a taint or a kubelet.
	Again bool
	// Made is the time at which the successor was created; zero without a successor.
	Made Seconds

	// object is the pod to recreate, and next is the pod created to replace it.
	object *v1.Pod
	next   *pod
	// failed is the time at which the pod became not ready, from which the Job controller counts
	// its back-off. It is zero if the pod was ready; the time of the departure then counts. due is
	// the time at which the Job recreates the pod.
	failed time.Time
	due    time.Duration
}

// succession is the state of a pod in the controllers.
type succession struct {
	// again is set if the pod replaces a pod evicted by a taint or a kubelet.
	again bool
	// departure is set while the pod is deleted but stuck on an unresponsive node. Its controller
	// recreates the pod only after its end.
	departure *Departure
	// leaves is the departure reported when the pod began terminating. It is set while the pod
	// terminates on its node.
	leaves *Departure
}

// eventOf maps causes to kinds of timeline events.
var eventOf = map[Cause]string{
	ByTaint: "PodEvicted", ByPressure: "PodEvicted", ByDrain: "PodDrained", ByEviction: "PodEvicted", ByPreemption: "PodPreempted",
	ByNodeRemoval: "PodRemoved", ByDeletion: "PodDeleted",
	ByScaling: "PodScaledDown", ByRollout: "PodRolledOut", ByTermination: "PodTerminated", ByRebalance: "PodMoved",
	ByJobFailure: "PodDeleted",
}

// Evict requests the eviction of pods of one namespace from the Eviction API. Each pod is tried
// once, in the given order, because an allowed eviction may use up the budget for the next.
type Evict struct {
	Pods      []string `json:"pods"`
	Namespace string   `json:"namespace,omitempty"`
}

// Evicted is the Eviction API's result for one pod. Either Refused is set, or the pod was evicted.
type Evicted struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Node      string `json:"node"`
	// Budget is the pod's budget, with Left disruptions allowed after the eviction.
	Budget string `json:"budget,omitempty"`
	Left   int32  `json:"left"`
	// Refused is the reason the pod was not evicted.
	Refused string `json:"refused,omitempty"`
	// Room lists the pods placed on the node afterwards: pending pods, or the evicted pod's
	// successor. Callers fill it in once time has passed.
	Room []string `json:"room,omitempty"`
}

// evictPods carries out an Evict. Pods that hold no room or are already terminating are deleted
// instead, because the API server ignores their budgets. Static pods stay.
func (o *operations) evictPods(op *Evict) (*Done, error) {
	done, namespace := &Done{}, cmp.Or(op.Namespace, v1.NamespaceDefault)
	for _, name := range op.Pods {
		p := o.pods.named[Name{namespace, name}]
		switch {
		case p == nil:
			return nil, fmt.Errorf("there is no pod %s/%s", namespace, name)
		case p.Pod == nil || p.Terminating || rules.IsTerminal(p.object) || p.NodeName == "" || isMirror(p.object): // like the API server
			if deleted, err := o.controllers.deleteNamed(&Delete{Object: "pod/" + name, Namespace: namespace}); err == nil {
				done.Notes = append(done.Notes, deleted.Notes...)
			}
			continue
		}

		verdict, class := o.budgets.mayEvict(p), p.Class
		e := Evicted{Namespace: namespace, Name: name, Node: p.NodeName, Refused: verdict.Message}
		if verdict.Answer == disruption.Allowed {
			o.controllers.departPod(p, ByEviction, "")
		}
		// Read Left after the departure, so it reflects the new status. With several budgets, no
		// eviction is allowed; the last budget is shown.
		for _, b := range o.budgets.budgetsOf(class) {
			e.Budget, e.Left = b.Name, b.Status.DisruptionsAllowed
		}
		done.Evicted = append(done.Evicted, e)
	}
	return done, nil
}
