package execute

import (
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
)

// tell reports progress.
func (d *Drainer) tell(p *departure, result Result, node, message string) {
	told := DrainTold{Result: result, Node: node, Message: message}
	if p != nil {
		told.Pod = &p.Departure
	}
	d.do(told)
}

// leaving counts a pod, and follows it.
func (d *Drainer) leaving(p *departure) {
	delete(d.held, p.UID)
	d.count++
	d.waits = ""
	d.under = append(d.under, p)
}

// vanished has the rest planned again: the plan has counted on the pod's successor. Until the watch
// shows that the pod is gone, plans may still contain it.
func (d *Drainer) vanished(p *departure) {
	d.stale = true
	d.held[p.UID] = putOff{d.nextFor(p.UID), "the API server reports it gone, and the watch has not shown that yet"}
}

// putOff has others evicted meanwhile: a responder or a budget may take minutes.
func (d *Drainer) putOff(p *departure, e Answered) {
	if p.maybe {
		d.unsure = append(d.unsure, p)
	}
	d.held[p.UID] = putOff{latest(d.now.Add(putOffFor(e)), d.nextFor(p.UID)), e.Message}
}

// refused ends the drain.
func (d *Drainer) refused(p *departure, e Answered) {
	d.putOff(p, e)
	d.end(fmt.Sprintf("error when evicting %s/%s: %s", p.Namespace, p.Name, e.Message))
}

// follow checks where the evicted pods and their successors are.
//
// A pod is followed until it is gone and its successor has a node, in whichever order. Several are
// followed at a time, in the order of their evictions.
func (d *Drainer) follow() {
	d.settle()
	var still []*departure
	for _, p := range d.under {
		victim := d.victim(p)
		// With --skip-wait-for-delete-timeout, a pod that takes too long to end counts as gone.
		overdue := victim != nil && victim.DeletionTimestamp != nil && d.options.Overdue > 0
		if overdue {
			at := victim.DeletionTimestamp.Add(d.options.Overdue)
			if overdue = at.Before(d.wall()); !overdue {
				d.wake(d.now.Add(at.Sub(d.wall()) + time.Second))
			}
		}
		if p.left.IsZero() && (victim == nil || overdue) {
			p.left = d.now
			// A StatefulSet makes no successor while the pod is there, which may be for ever.
			p.ended = p.ended || overdue && strings.HasPrefix(p.Owner, statefulSet+"/")
			d.tell(p, Left, "", "")
		}
		if !p.ended {
			d.followSuccessor(p)
		}
		if p.left.IsZero() || !p.ended {
			still = append(still, p)
		}
		// What a pod has run into may have ended the drain.
		if d.stage != emptying {
			return
		}
	}
	d.under = still
}

// followSuccessor looks for the successor of one pod.
//
// A drain needs the successor on a node, not ready: what it waits for is that the room which was
// planned is really taken.
func (d *Drainer) followSuccessor(p *departure) {
	next := d.successorOf(p)
	switch {
	case next != nil && next.Spec.NodeName != "":
		p.ended = true
		node, result := next.Spec.NodeName, Arrived
		// The plan has counted with another node.
		if node != p.To {
			d.stale = true
			if p.Stranded == "" && !slices.Contains(p.Or, node) {
				result = Elsewhere
			}
		}

		// It tolerates the cordon. To evict it again would go on forever, so it stays.
		if slices.Contains(d.options.Nodes, node) {
			d.options.Returned[next.UID] = true
		}
		d.tell(p, result, node, next.Name)
	case d.accepts(p, next):
		d.leavePending(p, next)
	case p.left.IsZero():
	case !p.follows(), next == nil && d.cluster.satisfied(p):
		p.ended = true
	// A moment is given to the controller and the scheduler before anything is said.
	case d.now.Before(p.left.Add(landsFor)):
		d.wake(p.left.Add(landsFor))
	case d.options.AllowPending:
		d.leavePending(p, next)
	case d.now.Before(p.left.Add(pendingFor)):
		if !p.awaited {
			p.awaited = true
			d.tell(p, Awaited, "", homeless(next))
		}
		d.wake(p.left.Add(pendingFor))
	default:
		d.end(fmt.Sprintf("%s/%s: %s", p.Namespace, p.Name, homeless(next)))
	}
}

// accepts reports whether nothing is gained by waiting for a successor to get a node: the user
// accepts that it stays pending, and the scheduler has tried it where the plan says that it finds
// none, or without the pod on the node.
func (d *Drainer) accepts(p *departure, next *v1.Pod) bool {
	return d.options.AllowPending && next != nil && unschedulable(next) != "" && (p.Stranded != "" || !p.left.IsZero())
}

// leavePending follows the successor of a pod no longer, although it has no node. The next plan has
// to place it first, so this one is stale.
func (d *Drainer) leavePending(p *departure, next *v1.Pod) {
	p.ended, d.stale = true, true
	d.tell(p, Pending, "", homeless(next))
}
