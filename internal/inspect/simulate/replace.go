package simulate

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/inspect/manifest"
)

// Cause is why a pod left its node.
type Cause string

// The causes.
const (
	ByTaint       Cause = "Taint"
	ByDrain       Cause = "Drain"
	ByPreemption  Cause = "Preemption"
	ByNodeRemoval Cause = "NodeRemoved"
	ByDeletion    Cause = "Deleted"
	ByScaling     Cause = "Scaled"
	ByRollout     Cause = "RolledOut"
	ByRebalance   Cause = "Rebalance"
	ByTermination Cause = "Terminated" // it was being deleted from the beginning
)

// Fate is what becomes of a pod that has left.
type Fate string

// The fates.
const (
	Returns Fate = "Returns" // its controller makes it again, under a new name or the same
	Lost    Fate = "Lost"    // it has no controller that would make it again
	Stays   Fate = "Stuck"   // its node cannot confirm that it has ended, and its controller waits for that
	Ends    Fate = "Ends"    // it is no longer wanted, or not on this node
)

// Departure is a pod that left its node.
type Departure struct {
	Namespace, Name, Node string
	After                 Seconds
	Cause                 Cause
	// Detail is the taint, the preempting pod, or the node.
	Detail string
	// Owner is the controller as Kind/name, empty if there is none.
	Owner string
	Fate  Fate
	// Broken lists the disruption budgets that are violated once it has left.
	Broken []string
	// Again is set if the pod was itself the replacement of one that a taint evicted.
	Again bool

	object *v1.Pod
	next   *pod // that was made in its place
}

// depart removes a pod from its node and has its controller react.
func (w *World) depart(p *pod, cause Cause, detail string) {
	if p.leaves != nil { // it was terminating already, which the timeline has
		w.ended(p)
		return
	}
	terminating := p.Terminating
	d := w.departure(p, cause, detail, func() { w.pods.remove(p.Pod) })
	owner, m := metav1.GetControllerOfNoCopy(p.object), w.nodes.named[d.Node]
	switch {
	case cause == ByScaling || cause == ByRollout:
		d.Fate = Ends
	case terminating && !w.awaitsEnd(owner, m, p.object, cause):
		d.Fate = Ends // its replacement, if any is wanted, was made when its deletion began
	case owner == nil || owner.Kind == "Node": // a bare pod, or a static one
		d.Fate = Lost
	case cause == ByNodeRemoval && owner.Kind == "DaemonSet", !w.workloads.wanted(p.object):
		d.Fate = Ends
	case owner.Kind == "StatefulSet" && m != nil && m.dead && cause != ByNodeRemoval:
		d.Fate = Stays
		p.departure = d
		m.stuck = append(m.stuck, p)
	case owner.Kind == "DaemonSet" && m != nil && !w.runsDaemon(p.object, m.object):
		d.Fate = Ends
		m.gaps = append(m.gaps, p.object)
	default:
		d.Fate, d.next = Returns, w.makeAgain(p.object)
		d.next.again = cause == ByTaint
	}
}

// departure calls leave, which makes the pod leave its node, and records it.
func (w *World) departure(p *pod, cause Cause, detail string, leave func()) *Departure {
	d := &Departure{Namespace: p.Namespace(), Name: p.Name, Node: p.NodeName, After: Seconds(w.clock.now), Cause: cause, Detail: detail, Again: p.again, object: p.object}
	if owner := metav1.GetControllerOfNoCopy(p.object); owner != nil {
		d.Owner = owner.Kind + "/" + owner.Name
	}
	covering := w.budgets.of(p.Class)
	leave()
	for _, b := range covering {
		if b, ok := w.c.Budgets.Get(b.Namespace, b.Name); ok && b.Status.CurrentHealthy < b.Status.DesiredHealthy {
			d.Broken = append(d.Broken, b.Name)
		}
	}
	w.departed = append(w.departed, d)
	w.report.touched = true
	w.report.tell(Event{Kind: eventOf[cause], Namespace: d.Namespace, Name: d.Name, Node: d.Node, Message: detail})
	return d
}

// preempt deletes a victim: with its grace period in a world where time passes, and otherwise at
// once.
func (w *World) preempt(uid types.UID, by *pod) {
	detail := ""
	if by != nil {
		detail = by.Namespace() + "/" + by.Name
	}
	switch victim, p := w.pods.placed[uid], w.c.Pod(uid); {
	case p == nil:
	case victim != nil && w.pods.lasting:
		w.dismiss(victim, ByPreemption, detail)
	default:
		if victim == nil || !victim.unready {
			w.budgets.left(p) // it counts as terminating already
		}
		w.pods.remove(p)
	}
}

// dismiss deletes a pod, which takes its whole grace period to terminate. Most controllers replace
// it at once.
func (w *World) dismiss(p *pod, cause Cause, detail string) {
	grace := graceOf(p.object)
	if grace <= 0 {
		w.depart(p, cause, detail)
		return
	}
	d := w.departure(p, cause, detail, func() { w.pods.terminate(p, grace) })
	p.leaves = d
	owner, m := metav1.GetControllerOfNoCopy(p.object), w.nodes.named[d.Node]
	switch {
	case owner == nil || owner.Kind == "Node":
		d.Fate = Lost
	case !w.workloads.wanted(p.object):
		d.Fate = Ends
	case w.awaitsEnd(owner, m, p.object, cause):
		d.Fate = Stays
	case owner.Kind == "DaemonSet":
		d.Fate = Ends
		if m != nil {
			m.gaps = append(m.gaps, d.object)
		}
	default:
		d.Fate, d.next = Returns, w.makeAgain(d.object)
	}
	w.clock.at(w.clock.now+grace, func() { w.terminated(p) })
}

// graceOf is the pod's grace period.
func graceOf(p *v1.Pod) time.Duration {
	if p.Spec.TerminationGracePeriodSeconds == nil {
		return v1.DefaultTerminationGracePeriodSeconds * time.Second
	}
	return time.Duration(*p.Spec.TerminationGracePeriodSeconds) * time.Second
}

// ended removes a pod whose deletion was reported when it began. A controller that has waited for
// its end replaces it.
func (w *World) ended(p *pod) {
	d := p.leaves
	w.pods.remove(p.Pod)
	w.report.touched = true
	if d.Fate == Stays {
		w.returns(d, d.object)
	}
}

// returns has a controller that has waited for the end of its pod make it again, unless it no
// longer wants it.
func (w *World) returns(d *Departure, object *v1.Pod) {
	if d.Fate = Ends; w.workloads.wanted(object) {
		d.Fate, d.next = Returns, w.makeAgain(object)
	}
}

// awaitsEnd reports whether the controller of a terminating pod replaces it only once it has ended.
// Those of StatefulSets and DaemonSets do; all others replaced it when the deletion began.
func (w *World) awaitsEnd(owner *metav1.OwnerReference, m *machine, object *v1.Pod, cause Cause) bool {
	switch {
	case owner == nil:
		return false
	case owner.Kind == "StatefulSet":
		return w.workloads.wanted(object)
	}
	return owner.Kind == "DaemonSet" && cause != ByNodeRemoval && m != nil && w.runsDaemon(object, m.object)
}

// terminated ends a pod when its grace period is over, or once its node responds.
func (w *World) terminated(p *pod) {
	m := w.nodes.named[p.NodeName]
	switch {
	case p.gone || len(p.object.Finalizers) > 0:
	case m != nil && m.dead:
		m.ending = append(m.ending, p)
	default:
		w.depart(p, ByTermination, "")
	}
}

var eventOf = map[Cause]string{
	ByTaint: "PodEvicted", ByDrain: "PodDrained", ByPreemption: "PodPreempted", ByNodeRemoval: "PodRemoved", ByDeletion: "PodDeleted",
	ByScaling: "PodScaledDown", ByRollout: "PodRolledOut", ByTermination: "PodTerminated", ByRebalance: "PodMoved",
}

// comeBack replaces a pod that was stuck on a node, now that it has ended there.
func (w *World) comeBack(p *pod) {
	w.returns(p.departure, p.object)
}

// makeAgain creates the replacement of a pod, as its controller does.
func (w *World) makeAgain(object *v1.Pod) *pod {
	owner := metav1.GetControllerOfNoCopy(object)
	next := object.DeepCopy()
	next.Spec.NodeName = ""
	next.Status = v1.PodStatus{Phase: v1.PodPending, QOSClass: object.Status.QOSClass}
	next.ResourceVersion, next.DeletionTimestamp = "", nil
	next.CreationTimestamp = metav1.NewTime(w.clock.time())
	next.UID = types.UID(fmt.Sprintf("%s-%d", owner.UID, w.pods.entered+1))
	if owner.Kind != "StatefulSet" {
		next.Name = w.pods.nameFor(next, owner)
	}
	if owner.Kind == "DaemonSet" {
		pinTo(next, manifest.DaemonNode(object))
	}
	w.claims.makeFor(next)
	w.bounds.charge(next, false)
	return w.pods.enter(next, "")
}
