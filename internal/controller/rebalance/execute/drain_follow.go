package execute

import (
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// follow checks where the evicted pods and their successors are.
//
// A pod is followed until it is gone and its successor has a node, in whichever order. Several are
// followed at a time, in the order of their evictions.
func (d *Drainer) follow() {
	d.settle()
	var still []*departure
	for _, p := range d.under {
		victim := d.cluster.pod(p.Namespace, p.Name, p.UID)
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
			d.do(DrainTold{Result: Left, Pod: &p.Departure})
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
		d.do(DrainTold{Result: result, Pod: &p.Departure, Node: node, Message: next.Name})
	case d.accepts(p, next):
		d.leavePending(p, next)
	case p.left.IsZero():
	case !p.follows(), next == nil && d.cluster.satisfied(&Flight{Move: rebalance.Move{Namespace: p.Namespace,
		Owner: p.Owner}, OwnerUID: p.owner.UID}):
		p.ended = true
	// A moment is given to the controller and the scheduler before anything is said.
	case d.now.Before(p.left.Add(landsFor)):
		d.wake(p.left.Add(landsFor))
	case d.options.AllowPending:
		d.leavePending(p, next)
	case d.now.Before(p.left.Add(pendingFor)):
		if !p.awaited {
			p.awaited = true
			d.do(DrainTold{Result: Awaited, Pod: &p.Departure, Message: homeless(next)})
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
	d.do(DrainTold{Result: Pending, Pod: &p.Departure, Message: homeless(next)})
}

// homeless says what is missing of a pod's successor. With next nil, no successor was seen at all;
// otherwise it ends with the scheduler's message, if there is one.
func homeless(next *v1.Pod) string {
	if next == nil {
		return "no successor was made"
	}
	return "the successor " + next.Name + " has no node" + unschedulable(next)
}

// successorOf returns the pod that was made in place of one. Once seen, it stays the same one.
func (d *Drainer) successorOf(p *departure) *v1.Pod {
	pods := d.cluster.byOwner[p.owner]
	if next := pods[p.next]; next != nil && next.DeletionTimestamp == nil {
		return next
	}

	victim := rules.Predecessor{Namespace: p.Namespace, Name: p.Name, UID: p.UID, Owner: p.owner.UID}
	// A successor that is deleted itself is succeeded by another one.
	p.next = ""
	next := d.cluster.successor(victim, p.To, func(o *v1.Pod) bool {
		return !p.known[o.UID] && !slices.ContainsFunc(d.under, func(other *departure) bool { return other.next == o.UID })
	})

	if next != nil {
		p.next = next.UID
	}
	return next
}
