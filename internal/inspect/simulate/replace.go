// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/world/claimcontrollers"
	"github.com/berth-k8s/berth/internal/world/workload"
)

// controllers simulates the workload controllers: it creates pods and replaces departed ones. It
// takes workload objects from workloads, and all pods and nodes from pods and nodes.
//
// Pods blocked on a node stay in stuck or ending until the node responds, changes or is removed. A
// pod is in at most one of the two.
type controllers struct {
	clock     *clock
	report    *report
	allowed   *allowed
	scheduler *scheduler
	budgets   *budgets
	claims    *claims
	pods      *pods
	nodes     *nodes
	workloads *workloads
	departed  []*Departure // in order of time
	// stuck holds pods deleted while their node was dead, if their controllers wait for their end.
	// ending holds pods whose grace period expired while their node was dead. Both are keyed by
	// node.
	stuck, ending map[string][]*pod
	// waiting holds the pods to be recreated by ordered StatefulSets, and retries holds the pods to
	// be recreated by Jobs. repeats counts the retries on the agenda for pods that had themselves
	// replaced evicted pods.
	waiting map[Name]*Departure
	retries retries
	repeats int
	// gaps holds the DaemonSet pods lost by each node. Each is recreated once its DaemonSet wants a
	// pod on that node.
	gaps map[string][]*v1.Pod
}

// followNode makes controllers react to a changed node.
func (c *controllers) followNode(m *machine, before *v1.Node) {
	c.updateDaemons(m, before)
	if m.dead && !m.holdsPods() {
		c.completeDeletions(m.object.Name)
	}
}

// completeDeletions completes the deletions of pods blocked on a dead node, once its kubelet
// responds or the pods are removed without the kubelet. It clears both lists before it recreates
// the first pod, because recreating pods may add to the lists.
func (c *controllers) completeDeletions(node string) {
	stuck, ending := c.stuck[node], c.ending[node]
	delete(c.stuck, node)
	delete(c.ending, node)
	for _, p := range stuck {
		c.endPod(p.departure)
	}
	for _, p := range ending {
		c.finishTermination(p)
	}
	// The node's pods are ready again, and ordered sets may have waited for them.
	for _, p := range c.pods.podsOn(node) {
		if set := c.orderedSet(p.object); set != nil {
			c.proceed(set)
		}
	}
}

// loseNode removes the pods of a removed node. In a cluster, the pod garbage collector deletes them
// once it notices the removal; here that takes no time. A StatefulSet's stuck pods of the node are
// recreated.
func (c *controllers) loseNode(node string) {
	for _, p := range c.pods.podsOn(node) {
		c.departPod(p, ByNodeRemoval, node)
	}
	for _, p := range c.stuck[node] {
		c.endPod(p.departure)
	}
	delete(c.stuck, node)
	delete(c.ending, node)
	delete(c.gaps, node)
}

// departPod removes a pod from its node immediately, and makes its controller react. The cases are
// checked in the following order, and the first match determines the fate:
//
//	removed by its controller, or replaced when its deletion began    Ends
//	a bare pod, or a pod of a missing DaemonSet                       Lost
//	no longer wanted                                                  Ends
//	on an unresponsive node, and its controller waits for its end     Stuck
//	its Job or its index fails                                        Fails, IndexFails
//	its Job is suspended, finished, or a queue with a succeeded pod   Ends
//	its DaemonSet no longer wants a pod on the node                   Ends, recorded in gaps
//	a pod of an OrderedReady StatefulSet, or of a Job                 Waits, or Returns
//	any other pod                                                     Returns
func (c *controllers) departPod(p *pod, cause Cause, detail string) {
	if p.leaves != nil { // it was already terminating, as recorded in the timeline
		c.removeEnded(p)
		return
	}
	terminating := p.Terminating
	d := c.recordDeparture(p, cause, detail, func() { c.pods.removePod(p.Pod) })
	owner, m := metav1.GetControllerOfNoCopy(p.object), c.nodes.named[d.Node]
	switch kind := rules.KindOf(owner); {
	case cause == ByScaling || cause == ByRollout || cause == ByJobFailure:
		d.Fate = Ends
	case terminating && !c.awaitsEnd(m, p.object, cause):
		d.Fate = Ends // any replacement was created when its deletion began
	case workload.SuccessionOf(owner, nil) == workload.None || c.workloads.isOrphaned(p.object, owner): // a bare pod, or a static one
		d.Fate = Lost
	case cause == ByNodeRemoval && kind == rules.DaemonSet, !c.workloads.isWanted(p.object):
		d.Fate = Ends

	case m != nil && m.holdsPods() && cause != ByNodeRemoval && kind != rules.DaemonSet && c.awaitsEnd(m, p.object, cause):
		d.Fate = Stays
		p.departure = d
		c.stuck[d.Node] = append(c.stuck[d.Node], p)
	case c.failsJob(d):
		if d.Fate == IndexFails {
			c.goOn(d)
		}
	case !c.workloads.isReplaced(d.object):
		d.Fate = Ends
	case kind == rules.DaemonSet && m != nil && !c.runsDaemon(p.object, m.object):
		d.Fate = Ends
		c.gaps[d.Node] = append(c.gaps[d.Node], p.object)
	default:
		c.returnPod(d)
	}
}

// recordDeparture calls leave, which removes the pod or begins its termination, and records the
// departure. It reads the pod first, because leave may release it.
func (c *controllers) recordDeparture(p *pod, cause Cause, detail string, leave func()) *Departure {
	d := &Departure{Namespace: p.Namespace(), Name: p.Name(), Node: p.NodeName, After: Seconds(c.clock.now),
		Cause: cause, Detail: detail, Again: p.again, object: p.object, Owner: rules.ControllerRef(p.object), failed: p.unreadySince()}
	class, healthy := p.Class, !p.unready
	leave()
	// Look up budgets after leave, which has removed the pod from them.
	for _, b := range c.budgets.budgetsOf(class) {
		if healthy && b.Status.CurrentHealthy < b.Status.DesiredHealthy {
			d.Broken = append(d.Broken, b.Name)
		}
	}
	c.departed = append(c.departed, d)
	c.report.touched = true
	c.report.addEvent(Event{Kind: eventOf[cause], Namespace: d.Namespace, Name: d.Name, Node: d.Node, Message: detail})
	return d
}

// preemptPod deletes a victim: with its grace period in a world where time passes, otherwise
// immediately. by is the preemptor, or nil if it is no longer pending.
func (c *controllers) preemptPod(uid types.UID, by *pod) {
	detail := ""
	if by != nil {
		detail = by.Namespace() + "/" + by.Name()
	}
	switch victim, p := c.pods.placed[uid], c.scheduler.c.Pod(uid); {
	case p == nil:
	case victim != nil:
		c.dismissPod(victim, ByPreemption, detail)
	default:
		c.budgets.podLeft(p) // removePod does not subtract it, because the core already counts a victim as terminating
		c.pods.removePod(p)
	}
}

// dismissPod deletes a pod. The pod is assumed to take its whole grace period to terminate, because
// the reaction of its containers is unknown. Most controllers replace the pod immediately; if
// awaitsEnd is true, the controller reacts in removeEnded.
func (c *controllers) dismissPod(p *pod, cause Cause, detail string) {
	grace := claimcontrollers.GraceOf(p.object)
	if grace <= 0 {
		c.departPod(p, cause, detail)
		return
	}

	d := c.recordDeparture(p, cause, detail, func() { c.pods.terminatePod(p, cause, grace) })
	p.leaves = d
	owner, m := metav1.GetControllerOfNoCopy(p.object), c.nodes.named[d.Node]
	switch kind := rules.KindOf(owner); {
	case workload.SuccessionOf(owner, nil) == workload.None || c.workloads.isOrphaned(p.object, owner):
		d.Fate = Lost
	case !c.workloads.isWanted(p.object):
		d.Fate = Ends
	case c.failsJob(d):
		if d.Fate == IndexFails {
			c.goOn(d)
		}
	case !c.workloads.isReplaced(d.object):
		d.Fate = Ends
	case c.awaitsEnd(m, p.object, cause):
		d.Fate = Stays
	case kind == rules.DaemonSet:
		d.Fate = Ends
		if m != nil {
			c.gaps[d.Node] = append(c.gaps[d.Node], d.object)
		}
	default:
		c.returnPod(d)
	}

	c.clock.callAt(c.clock.now+grace, func() { c.finishTermination(p) })
}

// removeEnded removes a pod at the end of its termination, which was reported when it began. A
// controller that waited for the pod's end replaces the pod now.
func (c *controllers) removeEnded(p *pod) {
	d := p.leaves
	c.pods.removePod(p.Pod)
	c.report.touched = true
	switch d.Fate {
	case Stays:
		c.makeReturn(d)
	case IndexFails:
		c.goOn(d)
	}
}

// makeReturn recreates a pod after its end on behalf of its waiting controller, unless the pod is
// no longer wanted: the workload may have been scaled down or deleted meanwhile.
func (c *controllers) makeReturn(d *Departure) {
	if d.Fate = Ends; c.workloads.isWanted(d.object) && c.workloads.isReplaced(d.object) {
		c.returnPod(d)
	}
}

// returnPod recreates a departed pod on behalf of its controller, immediately or later.
func (c *controllers) returnPod(d *Departure) {
	set, job := c.orderedSet(d.object), c.workloads.table().JobOf(d.object)
	switch {
	case set != nil:
		// Recreate the pod at its turn, possibly immediately.
		d.Fate = Waits
		c.waiting[Name{d.Namespace, d.Name}] = d
		c.proceed(set)
	case job != nil:
		c.awaitRetry(d, job)
	default:
		c.replace(d)
	}
}

// replace recreates a departed pod now.
func (c *controllers) replace(d *Departure) {
	d.Made = Seconds(c.clock.now)
	if d.Fate, d.next = Returns, c.makeAgain(d.object); d.next != nil {
		d.next.again = d.Cause == ByTaint || d.Cause == ByPressure
	}
}

// awaitsEnd reports whether the controller of a terminating pod replaces the pod only after its
// end, as StatefulSets, DaemonSets and some Jobs do. All other controllers replaced the pod when
// its deletion began.
func (c *controllers) awaitsEnd(m *machine, object *v1.Pod, cause Cause) bool {
	owner := metav1.GetControllerOfNoCopy(object)
	switch rules.KindOf(owner) {
	case rules.StatefulSet:
		return c.workloads.isWanted(object)
	case rules.DaemonSet:
		return cause != ByNodeRemoval && m != nil && c.runsDaemon(object, m.object)
	}
	return workload.SuccessionOf(owner, c.workloads.table().JobOf(object)) == workload.WhenGone
}

// finishTermination ends a pod when its grace period is over, or once its node responds. A pod with
// finalizers stays, because their removal is not simulated. Pending pods are tried after each end:
// in a cluster, pods ending at the same time end one after the other, so the room of the first may
// go to a small pod although a large pod needs the room of several.
func (c *controllers) finishTermination(p *pod) {
	switch m := c.nodes.named[p.NodeName]; {
	case p.gone || len(p.object.Finalizers) > 0:
	case m != nil && m.holdsPods():
		c.ending[p.NodeName] = append(c.ending[p.NodeName], p)
	default:
		c.departPod(p, ByTermination, "")
		c.scheduler.trySettled()
	}
}

// endPod replaces a departed pod if it is still wanted, unless the departure makes the pod's Job or
// index fail.
func (c *controllers) endPod(d *Departure) {
	switch {
	case !c.workloads.isWanted(d.object):
		d.Fate = Ends
	case !c.failsJob(d):
		c.makeReturn(d)
	case d.Fate == IndexFails:
		c.goOn(d)
	}
}

// makeAgain creates the replacement of a pod on behalf of its controller, or returns nil if the
// replacement is refused. Controllers that wait for the pod's end react later than others, so their
// replacements are tried last.
func (c *controllers) makeAgain(object *v1.Pod) *pod {
	next := c.replacePod(object)
	if next != nil && next.Pod != nil && next.NodeName == "" &&
		workload.SuccessionOf(metav1.GetControllerOfNoCopy(object), c.workloads.table().JobOf(object)) == workload.WhenGone {
		// Postpone the pod until all other pods created at this time have been shown.
		s := c.scheduler
		s.created = slices.DeleteFunc(s.created, func(o *pod) bool { return o == next })
		s.late = append(s.late, next)
	}
	return next
}

// replacePod creates a pod from the current template if the template changed. Otherwise it copies
// the old pod, but without any in-place resize; see [workload.Table.AsMade]. It returns nil if the
// pod of a changed template is refused.
func (c *controllers) replacePod(object *v1.Pod) *pod {
	if next := c.renewedPod(object); next != nil {
		return c.pods.createPod(next, true)
	}
	object = c.workloads.table().AsMade(object)
	uid := types.UID(fmt.Sprintf("%s-%d", metav1.GetControllerOfNoCopy(object).UID, c.pods.entered+1))
	return c.pods.addReplacement(workload.Successor(object, uid, c.pods.nameFor, metav1.NewTime(c.clock.time())))
}
