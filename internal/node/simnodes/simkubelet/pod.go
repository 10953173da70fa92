// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simkubelet

import (
	"cmp"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/node/admit"
	"github.com/berth-k8s/berth/internal/node/pressure"
)

// pod is a pod on one of the fleet's nodes. Its next step depends on object and the time; the
// remaining fields hold state that the API does not have.
type pod struct {
	node   *node
	object *v1.Pod
	// admitted is set while the pod's demand counts against the node's resources, until the pod
	// ends.
	admitted bool
	// ip is the pod's address, before and after it is written to the API.
	ip string
	// stopBy is the end of the processes of a deleted or evicted pod. It is set when the node
	// observes the deletion, and brought forward by a second deletion with a shorter grace period.
	stopBy    time.Time
	stopGrace time.Duration
	// leftAt is the time after which a pod that the API server should have removed counts as left
	// behind; see patience.
	leftAt time.Time
	// refused is set if the API server rejected a status for this version of the object.
	refused bool
	// complained is set after the first report of a problem with the pod, and prevents further
	// reports. It stays set for the life of the pod in this process.
	complained bool
	// deferred is set while a resize waits for free resources. roomMade retries the resize.
	deferred bool
	// forgotten keeps play.forgotten between two checks of the pod.
	forgotten map[string]int32
	// uses is the usage of the pod's processes according to the annotation; nil: no valid
	// annotation.
	uses v1.ResourceList
	// eviction is set if the pod is evicted under pressure. The pod ends at stopBy, and its status
	// is written then.
	eviction *pressure.Eviction

	busy     bool // an action is in progress
	sent     bool // the API server accepted the removal, but no watch event has confirmed it
	failures int
	timer    timer // calls checkPod at the next spontaneous change

	counted *admit.Demand // demand computed from object and deferred; nil when stale
}

// PodsListed applies a list of all pods with its resource version: pods missing from the list have
// been deleted. The pods are applied in the order in which a restarted kubelet admits them.
func (f *Fleet) PodsListed(list []*v1.Pod, version string, now time.Time) {
	// These entries are not the fleet's; they have only the fields that inOrder reads.
	there := make(map[types.UID]*pod, len(list))
	for _, object := range list {
		if n := f.nodes[object.Spec.NodeName]; n != nil {
			there[object.UID] = &pod{object: object}
		}
	}
	// Handle deleted pods first, so that their resources are free for the listed pods.
	for uid, p := range f.pods {
		if there[uid] == nil && olderThan(p.object.ResourceVersion, version) {
			f.PodGone(uid, now)
		}
	}
	for _, p := range inOrder(there) {
		f.PodSeen(p.object, now)
	}
}

// PodSeen applies a pod's newest object. It ignores a pod without a node, or on a foreign node. A
// pod never moves to another node.
func (f *Fleet) PodSeen(object *v1.Pod, now time.Time) {
	n := f.nodes[object.Spec.NodeName]
	if n == nil {
		return
	}

	p := f.pods[object.UID]
	ended := false // whether the pod ended in this version
	switch {
	case p == nil:
		p = &pod{node: n}
		p.timer.fire = func(now time.Time) { f.checkPod(p, now) }
		f.pods[object.UID] = p
		n.pods[object.UID] = p
	case !isNewer(object.ResourceVersion, p.object.ResourceVersion):
		return
	default:
		ended = isTerminal(object.Status.Phase) && !isTerminal(p.object.Status.Phase)
	}

	p.object = object
	p.counted = nil
	// A status for the new version may be accepted.
	p.refused = false
	// A pod with a start time was admitted, perhaps by an earlier process.
	p.admitted = p.admitted || object.Status.StartTime != nil
	if ip := object.Status.PodIP; ip != "" && p.ip == "" && !object.Spec.HostNetwork && !isTerminal(object.Status.Phase) {
		p.ip = ip
		n.ips.takeAddress(ip)
	}

	// The annotation may have changed.
	p.uses = f.usesOf(p)
	f.checkPod(p, now)
	// The object of an ended pod stays, but no longer consumes resources.
	if ended {
		f.roomMade(n, now)
	}
	f.measureNode(n, now)
}

// PodGone applies the removal of a pod. Its address and its resources are free from now on.
func (f *Fleet) PodGone(uid types.UID, now time.Time) {
	p := f.pods[uid]
	if p == nil {
		return
	}
	f.timers.clearTimer(&p.timer)
	delete(f.pods, uid)
	delete(p.node.pods, uid)
	p.node.ips.freeAddress(p.ip)
	f.roomMade(p.node, now)
	f.measureNode(p.node, now)
}

// roomMade retries the node's deferred resizes in a fixed order. Before the call, the pod that held
// the resources must have been removed from n.pods, or its newest object must be terminal;
// otherwise demandsWithout still counts it. Only resizes wait: pods that did not fit were rejected.
func (f *Fleet) roomMade(n *node, now time.Time) {
	waiting := map[types.UID]*pod{}
	for uid, p := range n.pods {
		if p.deferred {
			waiting[uid] = p
		}
	}
	for _, p := range inOrder(waiting) {
		f.checkPod(p, now)
	}
}

// checkPod takes a pod's next step, if it is due. A pod has at most one action in flight; the
// response calls checkPod again.
func (f *Fleet) checkPod(p *pod, now time.Time) {
	switch n := p.node; {
	case p.busy || p.sent || p.refused || f.pods[p.object.UID] != p:
	// Remove the pod, as the pod garbage collector of kube-controller-manager would.
	case n.gone:
		f.removePod(p)
	case n.object == nil || n.silent:
	// This case precedes the following ones, because a deleted pod is neither admitted nor evicted.
	case p.object.DeletionTimestamp != nil:
		f.stopPod(p, now)
	// The pod's containers have ended, so its address is free although the object stays.
	case isTerminal(p.object.Status.Phase):
		p.ip = n.ips.freeAddress(p.ip)
	// The pod's termination has begun and ends at stopBy.
	case p.eviction != nil:
		f.endEvicted(p, now)
	case !p.admitted:
		// A kubelet calls its admission handlers in this order and reports the first refusal.
		r := admit.UnderPressure(p.object, n.pressed)
		if r == nil {
			r = admit.Fit(p.object, n.object, n.demandsWithout(p))
		}

		if r != nil {
			f.rejectPod(p, r, now)
			return
		}

		p.admitted = true
		f.advancePod(p, now)
	default:
		f.advancePod(p, now)
	}
}

// demandsWithout returns the demands of all admitted, unfinished pods except one. Each demand is
// computed once for every version of the pod's object. The requests of deferred resizes do not
// count; otherwise two pods with deferred resizes would block each other.
func (n *node) demandsWithout(without *pod) []admit.Demand {
	list := make([]admit.Demand, 0, len(n.pods))
	for _, p := range n.pods {
		if p == without || !p.admitted || isTerminal(p.object.Status.Phase) {
			continue
		}
		if p.counted == nil {
			object := p.object
			if p.deferred {
				object = allocatedPod(object)
			}
			p.counted = new(admit.DemandOf(object, true))
		}
		list = append(list, *p.counted)
	}
	return list
}

// rejectPod ends a pod that the node does not admit. The pod becomes Failed, and its controller
// creates another, as with a kubelet.
func (f *Fleet) rejectPod(p *pod, r *admit.Refusal, now time.Time) {
	status := p.object.Status.DeepCopy()
	status.Phase, status.Reason, status.Message = v1.PodFailed, r.Reason, "Pod was rejected: "+r.Message
	status.StartTime = new(toSeconds(now))
	status.ObservedGeneration = p.object.Generation
	f.reportEvent(p, v1.EventTypeWarning, r.Reason, r.Message)
	f.writeStatus(p, status)
}

// advancePod plays the pod's containers up to now, writes the changes, and sets the timer for the
// next change. Containers that ended while this process was down get their computed end times.
func (f *Fleet) advancePod(p *pod, now time.Time) {
	sc := f.shape.scriptOf(p.object)
	if sc.bad != nil {
		f.complainOnce(p, "InvalidAnnotation", sc.bad.Error())
	}

	status := p.object.Status.DeepCopy()
	if !f.placePod(p, status, now) {
		return
	}

	status.ObservedGeneration = p.object.Generation
	pl := play{pod: p.object, script: sc, now: now, status: status, forgotten: p.forgotten}
	pl.playContainers()
	p.forgotten = pl.forgotten
	f.resizePod(p, &pl)
	// The phase follows from the containers, and conditions follow from the phase.
	status.Phase = pl.podPhase()
	pl.enforceDeadline()
	pl.setConditions()
	if pl.isUnhealthy() {
		f.complainOnce(p, "Unhealthy", "Readiness probe failed")
	}
	if pl.wake.IsZero() {
		f.timers.clearTimer(&p.timer)
	} else {
		f.timers.setTimer(&p.timer, pl.wake)
	}

	f.writeStatus(p, status)
}

// placePod assigns a start time and addresses to a pod that has none yet. It returns false if the
// node has no address left. A pod in the host's network gets the node's address.
func (f *Fleet) placePod(p *pod, status *v1.PodStatus, now time.Time) bool {
	status.StartTime = cmp.Or(status.StartTime, new(toSeconds(now)))
	host := p.node.address
	if status.HostIP == "" {
		status.HostIP = host
		status.HostIPs = []v1.HostIP{{IP: host}}
	}

	if status.PodIP != "" {
		return true
	}
	ip := p.ip
	switch {
	case p.object.Spec.HostNetwork:
		ip = host
	case ip == "":
		if ip = p.node.ips.takeFree(); ip == "" {
			f.complainOnce(p, "FailedCreatePodSandBox", "no address left in "+p.node.object.Spec.PodCIDR)
			// A freed address does not trigger checkPod, so retry after a while.
			f.timers.setTimer(&p.timer, now.Add(10*time.Second))
			return false
		}
		p.ip = ip
	}

	status.PodIP = ip
	status.PodIPs = []v1.PodIP{{IP: ip}}
	return true
}

// writeStatus sends the changes, if any.
func (f *Fleet) writeStatus(p *pod, status *v1.PodStatus) {
	patch := podPatch(p.object.UID, &p.object.Status, status)
	if patch == nil {
		return
	}
	p.busy = true
	f.emitAction(p.actionFor(Action{Kind: PatchPod, Patch: patch}))
}

// removePod deletes the pod from the API without a grace period, because its processes have ended.
func (f *Fleet) removePod(p *pod) {
	p.busy = true
	f.emitAction(p.actionFor(Action{Kind: DeletePod}))
}

// reportEvent emits an event about the pod; Done is not called for it.
func (f *Fleet) reportEvent(p *pod, kind, reason, message string) {
	f.emitAction(p.actionFor(Action{Kind: Report, Event: &Event{kind, reason, message}}))
}

// complainOnce emits at most one warning per pod, because a problem usually persists across checks.
func (f *Fleet) complainOnce(p *pod, reason, message string) {
	if !p.complained {
		p.complained = true
		f.reportEvent(p, v1.EventTypeWarning, reason, message)
	}
}

// actionFor sets the pod of an action.
func (p *pod) actionFor(a Action) Action {
	a.Node, a.UID = p.node.name, p.object.UID
	a.Pod = types.NamespacedName{Namespace: p.object.Namespace, Name: p.object.Name}
	return a
}

// podDone applies the response to an action on a pod. The pod may have been removed. A refused
// write is not repeated before the object has changed; the node continues with other pods.
func (f *Fleet) podDone(a Action, outcome Outcome, object any, now time.Time) {
	p := f.pods[a.UID]
	if p == nil {
		return
	}

	p.busy = false
	switch outcome {
	case OK, Gone:
		p.failures = 0
		// Only the watch confirms the removal: with finalizers the pod may still exist.
		if p.sent = a.Kind == DeletePod || outcome == Gone; p.sent {
			return
		}
		// Use the response, which arrives earlier than the equivalent watch event.
		if seen, ok := object.(*v1.Pod); ok && seen != nil && isNewer(seen.ResourceVersion, p.object.ResourceVersion) {
			f.PodSeen(seen, now)
			return
		}
		f.checkPod(p, now)
	case Failed:
		p.failures++
		f.timers.setTimer(&p.timer, now.Add(retryDelay(p.failures)))
	case Refused:
		p.refused = true
	}
}
