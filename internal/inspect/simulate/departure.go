// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"time"

	v1 "k8s.io/api/core/v1"
)

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
