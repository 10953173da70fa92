package simulate

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/world/standin"
	"github.com/berth-k8s/berth/internal/world/workload"
)

// Cause is why a pod left its node. It decides whether and when its controller makes it
// again.
type Cause string

// The causes.
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
	ByTermination Cause = "Terminated" // it was being deleted from the beginning
)

// Fate is what becomes of a pod that has left. That of a departure may change as time passes:
// a pod that is Stuck is made again, or no longer wanted, once its node answers.
type Fate string

// The fates.
const (
	Returns Fate = "Returns" // its controller makes it again, under a new name or the same
	Lost    Fate = "Lost"    // it has no controller that would make it again
	Stays   Fate = "Stuck"   // its node cannot confirm that it has ended, and its controller waits for that
	Ends    Fate = "Ends"    // it is no longer wanted, or not on this node
	Waits   Fate = "Waits"   // its StatefulSet makes it again once the pods before it are ready
	Fails   Fate = "Fails"   // its Job fails because of it, and does not make it again
	// IndexFails: the pod's index of its Job fails because of it, and gets no pod again.
	IndexFails Fate = "IndexFails"
)

// Departure is a pod that left its node, or is about to: a pod with a grace period departs
// when its deletion begins. Entries are kept for the answer, and for pods that wait for the
// end of another.
type Departure struct {
	Namespace, Name, Node string
	After                 Seconds
	Cause                 Cause
	// Detail is the taint, the preempting pod, the kubelet's message, or the node.
	Detail string
	// Owner is the controller as Kind/name, empty if there is none.
	Owner string
	Fate  Fate
	// Reason is why its Job or index fails, if it does.
	Reason string
	// Broken lists the disruption budgets that are violated once it has left: fewer pods are
	// healthy than they want. The loss of a pod that was not healthy violates none. Only the
	// Eviction API enforces budgets; taints and deletions ignore them.
	Broken []string
	// Again is set if the pod was itself the replacement of one that a taint evicted.
	Again bool

	object *v1.Pod
	next   *pod // that was made in its place
}

// controllers stand in for those that make pods, and replace the ones that have left. They have the
// objects of workloads from workloads, and all pods and nodes from pods and nodes.
//
// What waits for a node is here until the node answers, changes or goes: a pod is in at most one of
// stuck and ending.
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
	// stuck are the pods that were deleted while their node was dead, and whose controllers
	// wait for their end; ending are those whose grace period ended meanwhile. Both are by
	// node.
	stuck, ending map[string][]*pod
	// waiting are the pods that ordered StatefulSets have yet to make again.
	waiting map[Name]*Departure
	// gaps are DaemonSet pods that a node has lost. Each is made again once its DaemonSet wants a
	// pod there.
	gaps map[string][]*v1.Pod
}

// followNode has controllers react to a node that is different from before.
func (c *controllers) followNode(m *machine, before *v1.Node) {
	c.updateDaemons(m, before)
	if m.dead && !m.holdsPods() {
		c.completeDeletions(m.object.Name)
	}
}

// completeDeletions completes the deletions of pods that were waiting for a dead node, now
// that its kubelet responds or they are removed without it. Both lists are emptied before the
// first pod is made again: that may add to them.
func (c *controllers) completeDeletions(node string) {
	stuck, ending := c.stuck[node], c.ending[node]
	delete(c.stuck, node)
	delete(c.ending, node)
	for _, p := range stuck {
		c.comeBack(p)
	}
	for _, p := range ending {
		c.finishTermination(p)
	}
	// Pods of the node are ready again, for which others may have waited.
	for _, p := range c.pods.podsOn(node) {
		if set := c.orderedSet(p.object); set != nil {
			c.proceed(set)
		}
	}
}

// loseNode removes the pods of a node that is removed. The pod garbage collector deletes them
// in a cluster, once it has seen that the node is gone; that takes no time here. A
// StatefulSet's pods that were stuck on the node are made again.
func (c *controllers) loseNode(node string) {
	for _, p := range c.pods.podsOn(node) {
		c.departPod(p, ByNodeRemoval, node)
	}
	for _, p := range c.stuck[node] {
		c.comeBack(p)
	}
	delete(c.stuck, node)
	delete(c.ending, node)
	delete(c.gaps, node)
}

// departPod removes a pod from its node at once, and has its controller react. The cases go
// from what makes the controller indifferent to what makes it act, and the first that applies
// decides:
//
//	removed by its controller, or replaced when its deletion began    Ends
//	a bare pod, or one whose DaemonSet does not exist                 Lost
//	no longer wanted                                                  Ends
//	its Job or its index fails                                        Fails, IndexFails
//	its Job is suspended, over, or a queue that others finish         Ends
//	a StatefulSet's, on a node that does not respond, nor is given up Stuck
//	a DaemonSet's that no longer wants the node                       Ends, and a gap
//	an OrderedReady StatefulSet's                                     Waits, or Returns
//	any other                                                         Returns
func (c *controllers) departPod(p *pod, cause Cause, detail string) {
	if p.leaves != nil { // it was terminating already, which the timeline has
		c.removeEnded(p)
		return
	}
	terminating := p.Terminating
	d := c.recordDeparture(p, cause, detail, func() { c.pods.removePod(p.Pod) })
	owner, m := metav1.GetControllerOfNoCopy(p.object), c.nodes.named[d.Node]
	kind := rules.KindOf(owner)
	switch {
	case cause == ByScaling || cause == ByRollout || cause == ByJobFailure:
		d.Fate = Ends
	case terminating && !c.awaitsEnd(m, p.object, cause):
		d.Fate = Ends // its replacement, if any is wanted, was made when its deletion began
	case workload.SuccessionOf(owner, nil) == workload.None || c.workloads.isOrphaned(p.object, owner): // a bare pod, or a static one
		d.Fate = Lost
	case cause == ByNodeRemoval && kind == rules.DaemonSet, !c.workloads.isWanted(p.object):
		d.Fate = Ends
	case c.failsJob(d):
		if d.Fate == IndexFails {
			c.goOn(d)
		}
	case !c.workloads.isReplaced(d.object):
		d.Fate = Ends
	case kind == rules.StatefulSet && m != nil && m.holdsPods() && cause != ByNodeRemoval:
		d.Fate = Stays
		p.departure = d
		c.stuck[d.Node] = append(c.stuck[d.Node], p)
	case kind == rules.DaemonSet && m != nil && !c.runsDaemon(p.object, m.object):
		d.Fate = Ends
		c.gaps[d.Node] = append(c.gaps[d.Node], p.object)
	default:
		if set := c.orderedSet(p.object); set != nil {
			c.awaitTurn(d, set)
		} else if d.Fate, d.next = Returns, c.makeAgain(p.object); d.next != nil {
			d.next.again = cause == ByTaint || cause == ByPressure
		}
	}
}

// recordDeparture calls leave, which makes the pod leave its node, and records it. What is
// needed of the pod is read before: leave may release it.
func (c *controllers) recordDeparture(p *pod, cause Cause, detail string, leave func()) *Departure {
	d := &Departure{Namespace: p.Namespace(), Name: p.Name, Node: p.NodeName, After: Seconds(c.clock.now),
		Cause: cause, Detail: detail, Again: p.again, object: p.object, Owner: rules.ControllerRef(p.object)}
	class, healthy := p.Class, !p.unready
	leave()
	// After leave, which has taken the pod out of its budgets.
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

// preemptPod deletes a victim: with its grace period in a world where time passes, and
// otherwise at once. by is the preemptor, or nil if it is no longer pending.
func (c *controllers) preemptPod(uid types.UID, by *pod) {
	detail := ""
	if by != nil {
		detail = by.Namespace() + "/" + by.Name
	}
	switch victim, p := c.pods.placed[uid], c.scheduler.c.Pod(uid); {
	case p == nil:
	case victim != nil && c.pods.lasting:
		c.dismissPod(victim, ByPreemption, detail)
	default:
		if victim == nil || !victim.unready {
			c.budgets.podLeft(p) // it counts as terminating already
		}
		c.pods.removePod(p)
	}
}

// dismissPod deletes a pod, which takes its whole grace period to terminate: how soon its
// containers react is not known. Most controllers replace it at once; those for which
// awaitsEnd is true get their turn in removeEnded.
func (c *controllers) dismissPod(p *pod, cause Cause, detail string) {
	grace := standin.GraceOf(p.object)
	if grace <= 0 {
		c.departPod(p, cause, detail)
		return
	}

	d := c.recordDeparture(p, cause, detail, func() { c.pods.terminatePod(p, cause, grace) })
	p.leaves = d
	owner, m := metav1.GetControllerOfNoCopy(p.object), c.nodes.named[d.Node]
	kind := rules.KindOf(owner)
	switch {
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
		d.Fate, d.next = Returns, c.makeAgain(d.object)
	}

	c.clock.callAt(c.clock.now+grace, func() { c.finishTermination(p) })
}

// removeEnded removes a pod whose deletion was reported when it began. A controller that has
// waited for its end replaces it now.
func (c *controllers) removeEnded(p *pod) {
	d := p.leaves
	c.pods.removePod(p.Pod)
	c.report.touched = true
	switch d.Fate {
	case Stays:
		c.makeReturn(d, d.object)
	case IndexFails:
		c.goOn(d)
	}
}

// makeReturn has a controller that has waited for the end of its pod make it again, unless it
// no longer wants it: it may have been scaled down or deleted meanwhile.
func (c *controllers) makeReturn(d *Departure, object *v1.Pod) {
	set := c.orderedSet(object)
	switch d.Fate = Ends; {
	case !c.workloads.isWanted(object), !c.workloads.isReplaced(object):
	case set != nil:
		c.awaitTurn(d, set)
	default:
		d.Fate, d.next = Returns, c.makeAgain(object)
	}
}

// awaitsEnd reports whether the controller of a terminating pod replaces it only once it has ended.
// Those of StatefulSets, DaemonSets and some Jobs do; all others replaced it when the deletion
// began.
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

// finishTermination ends a pod when its grace period is over, or once its node responds. A
// pod with finalizers stays: what would remove them is not simulated. Pods are tried after each:
// those that end at one time end one after the other in a cluster, and the room of the first goes
// to a small pod while a large one would need that of several.
func (c *controllers) finishTermination(p *pod) {
	m := c.nodes.named[p.NodeName]
	switch {
	case p.gone || len(p.object.Finalizers) > 0:
	case m != nil && m.holdsPods():
		c.ending[p.NodeName] = append(c.ending[p.NodeName], p)
	default:
		c.departPod(p, ByTermination, "")
		c.scheduler.trySettled()
	}
}

// eventOf has the kind of the timeline's event for each cause.
var eventOf = map[Cause]string{
	ByTaint: "PodEvicted", ByPressure: "PodEvicted", ByDrain: "PodDrained", ByEviction: "PodEvicted", ByPreemption: "PodPreempted",
	ByNodeRemoval: "PodRemoved", ByDeletion: "PodDeleted",
	ByScaling: "PodScaledDown", ByRollout: "PodRolledOut", ByTermination: "PodTerminated", ByRebalance: "PodMoved",
	ByJobFailure: "PodDeleted",
}

// comeBack replaces a pod that was stuck on a node, now that it has ended there.
func (c *controllers) comeBack(p *pod) {
	c.makeReturn(p.departure, p.object)
}

// makeAgain creates the replacement of a pod, as its controller does, or returns nil if it is
// refused. Controllers that await the end of the pod take longer than the others by its grace
// period, whose replacements are tried first.
func (c *controllers) makeAgain(object *v1.Pod) *pod {
	next := c.replacePod(object)
	if next != nil && next.Pod != nil && next.NodeName == "" &&
		workload.SuccessionOf(metav1.GetControllerOfNoCopy(object), c.workloads.table().JobOf(object)) == workload.WhenGone {
		c.scheduler.postponePod(next)
	}
	return next
}

// replacePod makes a pod from the present template if that was changed since, and otherwise a
// copy, which is equal to what an unchanged template gives, but for what was resized in place. It
// returns nil if a changed template makes a pod that is refused.
func (c *controllers) replacePod(object *v1.Pod) *pod {
	if next := c.renewedPod(object); next != nil {
		return c.pods.createPod(next, true)
	}
	object = c.workloads.table().AsMade(object)
	uid := types.UID(fmt.Sprintf("%s-%d", metav1.GetControllerOfNoCopy(object).UID, c.pods.entered+1))
	return c.pods.addReplacement(workload.Successor(object, uid, c.pods.nameFor, metav1.NewTime(c.clock.time())))
}
