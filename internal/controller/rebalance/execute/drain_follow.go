// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package execute

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/pacing"
	"github.com/berth-k8s/berth/internal/world"
)

// report reports the progress of a departure.
func (d *Drainer) report(p *departure, result Result, node, message string) {
	told := DrainProgress{Result: result, Node: node, Message: message}
	if p != nil {
		told.Pod = &p.Departure
	}
	d.addAction(told)
}

// leaving counts an evicted pod and begins to follow it.
func (d *Drainer) leaving(p *departure) {
	delete(d.held, p.UID)
	p.ended = p.ended || p.Lost // a pod with another index is not its successor
	d.count++
	d.waits = ""
	d.inProgress = append(d.inProgress, p)
}

// vanished marks the plan as stale, because it includes the pod's successor. Plans may still
// contain the pod until the watch delivers its deletion.
func (d *Drainer) vanished(p *departure) {
	d.stale = true
	d.held[p.UID] = putOff{d.nextFor(p.UID), "the API server reports it deleted, but the watch has not delivered that yet"}
}

// putOff lets the drain evict other pods meanwhile: a responder or a budget may take minutes.
func (d *Drainer) putOff(p *departure, e Answered) {
	if p.maybe {
		d.unsure = append(d.unsure, p)
	}
	d.held[p.UID] = putOff{pacing.Later(d.now.Add(putOffFor(e)), d.nextFor(p.UID)), e.Message}
}

// refused ends the drain.
func (d *Drainer) refused(p *departure, e Answered) {
	d.putOff(p, e)
	d.end(fmt.Sprintf("error when evicting %s/%s: %s", p.Namespace, p.Name, e.Message))
}

// follow checks the evicted pods and their successors.
//
// A pod is followed until it is deleted and its successor is scheduled, in either order. Several
// pods are followed concurrently, in eviction order.
func (d *Drainer) follow() {
	d.settle()
	var still []*departure
	for _, p := range d.inProgress {
		victim := d.victim(p)
		if victim != nil && victim.DeletionTimestamp == nil {
			if until := p.at.Add(confirmsFor); d.now.Before(until) {
				d.wake(until)
			} else { // a webhook may accept evictions without effect
				d.count--
				d.stale = true
				continue
			}
		}
		// With --skip-wait-for-delete-timeout, a pod that takes too long to terminate counts as
		// deleted.
		overdue := victim != nil && victim.DeletionTimestamp != nil && d.options.Overdue > 0
		if overdue {
			at := victim.DeletionTimestamp.Add(d.options.Overdue)
			if overdue = at.Before(d.wall()); !overdue {
				d.wake(d.now.Add(at.Sub(d.wall()) + time.Second))
			}
		}
		if p.left.IsZero() && (victim == nil || overdue) {
			p.left = d.now
			// A StatefulSet creates no successor while the pod exists, and the pod may exist
			// forever.
			p.ended = p.ended || overdue && strings.HasPrefix(p.Owner, statefulSet+"/")
			d.report(p, Left, "", "")
		}
		if !p.ended {
			d.followSuccessor(p)
		}
		if p.left.IsZero() || !p.ended {
			still = append(still, p)
		}
		// Following a pod may have ended the drain.
		if d.stage != emptying {
			return
		}
	}
	d.inProgress = still
}

// followSuccessor follows the successor of one pod.
//
// A drain needs the successor scheduled, but not ready: it waits until the planned room is actually
// taken.
func (d *Drainer) followSuccessor(p *departure) {
	switch next := d.successorOf(p); {
	case next != nil && next.Spec.NodeName != "":
		p.ended = true
		node, result := next.Spec.NodeName, Arrived
		// The plan assumed another node.
		if node != p.To {
			d.stale = true
			if p.To != "" && !slices.Contains(p.Or, node) {
				result = Elsewhere
			}
		}

		// The successor tolerates the cordon. Evicting it would loop forever, so it stays.
		if slices.Contains(d.options.Nodes, node) {
			d.options.Returned[next.UID] = true
		}
		d.report(p, result, node, next.Name)
	case d.accepts(p, next):
		d.leavePending(p, next)
	case p.left.IsZero():
	case !p.follows(), next == nil && d.cluster.satisfied(p):
		p.ended = true
	// The controller and the scheduler get a moment before the wait is reported.
	case d.now.Before(p.left.Add(landsFor)):
		d.wake(p.left.Add(landsFor))
	case d.options.AllowPending:
		d.leavePending(p, next)
	case d.now.Before(p.left.Add(pendingFor)):
		if !p.awaited {
			p.awaited = true
			d.report(p, Awaited, "", homeless(next))
		}
		d.wake(p.left.Add(pendingFor))
	default:
		d.end(fmt.Sprintf("%s/%s: %s", p.Namespace, p.Name, homeless(next)))
	}
}

// accepts reports whether to stop waiting for the successor to be scheduled: the user accepts
// pending successors, and the scheduler has rejected this one, either as the plan predicted or
// after the victim left the node.
func (d *Drainer) accepts(p *departure, next *v1.Pod) bool {
	return d.options.AllowPending && next != nil && unschedulable(next) != "" && (p.Stranded != "" || !p.left.IsZero())
}

// leavePending stops following an unscheduled successor. The next plan must place the successor
// first, so the current plan is stale.
func (d *Drainer) leavePending(p *departure, next *v1.Pod) {
	p.ended, d.stale = true, true
	d.report(p, Pending, "", homeless(next))
}

// explainsAfter is the age at which a surge in progress reports its wait. Most surges are over by
// then.
const explainsAfter = 10 * time.Second

// Held is a pod with a delayed eviction and the reason, for events and for the drain's output.
type Held struct {
	Pod *rebalance.Departure
	Why string
}

// heldBack returns the reason a pod waits, and a remedy. A budget's refusal has only the number of
// healthy pods; heldBack adds the unready pod, which the user must look at.
func (d *Drainer) heldBack(p *rebalance.Departure, why string) Held {
	if p.Budget == "" || why == p.NoSurge {
		return Held{p, why}
	}
	if unready := d.cluster.unreadyOf(p.Namespace, p.Budget); unready != "" {
		why += "; " + unready
	}
	switch {
	case p.NoSurge != "":
		why += "; cannot surge: " + p.NoSurge
	case !d.options.Surge && strings.HasPrefix(p.Owner, "ReplicaSet/"):
		why += "; with --surge its successor comes first"
	}
	return Held{p, why}
}

// unreadyOf describes a budget's first unready pod and its cause, or returns "". It scans all pods,
// so it is called only before reporting.
func (c *cluster) unreadyOf(namespace, budget string) string {
	b, ok := world.Get[*policyv1.PodDisruptionBudget](c.World, namespace, budget)
	if !ok {
		return ""
	}
	list := slices.DeleteFunc(slices.Collect(c.covered(b)), func(p *v1.Pod) bool {
		return p.DeletionTimestamp != nil || rules.HasReadyCondition(p)
	})
	if len(list) == 0 {
		return ""
	}
	first := slices.MinFunc(list, func(a, b *v1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	text := unreadiness(first)
	if len(list) > 1 {
		text += fmt.Sprintf(", and %d more are not ready", len(list)-1)
	}

	return text
}

// unreadiness describes the first known cause of an unready pod: unscheduled, a container that does
// not start, or unspecified.
func unreadiness(p *v1.Pod) string {
	switch why := failing(p); {
	case p.Spec.NodeName == "":
		return p.Name + " has no node" + unschedulable(p)
	case why != "":
		return fmt.Sprintf("%s does not start: %s", p.Name, why)
	}
	return p.Name + " is not ready"
}

// explain reports the condition a surge waits for, if it takes long, without repeating the previous
// report.
func (ss *surges) explain(s *surge, victims []*v1.Pod, next *v1.Pod) {
	if at := s.since.Add(explainsAfter); ss.now.Before(at) {
		ss.wake(at)
		return
	}
	why := ss.removable(victims, next)
	switch {
	case next == nil:
		why = cmp.Or(ss.cluster.notMade(s.Namespace, s.Owner), "no additional pod has been created yet")
	case !rules.HasReadyCondition(next):
		why = "its successor " + unreadiness(next)
	}
	if why != "" && why != s.reported {
		s.reported = why
		for _, p := range s.all() {
			ss.policy.report(p, Awaited, "", why)
		}
	}
}
