package cycle

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// writeScheduled says that a group is scheduled, as soon as that is so in the API: minCount pods of
// it are bound.
func (c *Core) writeScheduled(g *groups.Group) {
	c.writeGroup(g, metav1.ConditionTrue, "Scheduled", "")
}

// writeUnscheduled says why a group is not scheduled. Of one that was once it is not said, as
// upstream.
func (a *groupAttempt) writeUnscheduled(reason, message string) {
	if g := a.group; !a.rest && !g.Done && !g.Scheduled() {
		a.writeGroup(g, metav1.ConditionFalse, reason, message)
	}
}

// writeGroup writes the condition PodGroupScheduled if it is news.
func (c *Core) writeGroup(g *groups.Group, status metav1.ConditionStatus, reason, message string) {
	if g.Object == nil {
		return
	}
	condition := metav1.Condition{
		Type: schedulingv1alpha2.PodGroupScheduled, Status: status, Reason: reason, Message: message,
		ObservedGeneration: g.Object.Generation, LastTransitionTime: metav1.NewTime(c.wall()),
	}
	said := fmt.Sprintf("%s %s %s", status, reason, message)
	if old := g.Condition(); old != nil {
		if old.Status == status {
			condition.LastTransitionTime = old.LastTransitionTime
			if old.Reason == reason && old.Message == message {
				return
			}
		}
	}
	if g.Said == said {
		return
	}
	g.Said = said
	c.do(WriteGroup{Group: g.Object, Condition: condition})
}

// reason says of the whole group how many of how many fit, and what stopped the next one.
func (a *groupAttempt) reason() string {
	if len(a.members) < a.need {
		return fmt.Sprintf("%d more pods are needed at once, and %d may be scheduled now; the others are kept out by gates of their own",
			a.need, len(a.members))
	}
	fit, stopped := 0, (*member)(nil)
	for _, m := range a.members {
		if m.failure == nil {
			fit++
		} else if stopped == nil {
			stopped = m
		}
	}
	message := fmt.Sprintf("%d of %d pods fit, %d are needed at once", fit, len(a.members), a.need)
	if a.domains > 0 {
		message = fmt.Sprintf("0/%d placements are available, in the best one %s", a.domains, message)
	}
	if stopped != nil {
		message += fmt.Sprintf("; %s: %s", podName(stopped.Pod), stopped.failure.Message(""))
	}
	if a.gaveUp {
		message += fmt.Sprintf(" The search for other placements ended at its limit, after %d judgements of nodes.", a.searched)
	}
	return message
}

// ungrouped tells, once, that a pod's group is not looked at because groups are switched off.
func (c *Core) ungrouped(item *queue.Item) {
	if c.groups != nil || item.Attempts > 1 || item.Class.Spec.SchedulingGroup == nil {
		return
	}
	c.do(Tell{
		Profile: item.Pod.Spec.SchedulerName, About: Reference(item.Pod), Type: v1.EventTypeWarning, Reason: "PodGroupIgnored",
		Message: fmt.Sprintf("the pod names pod group %q and is scheduled without it: the scheduler runs without --feature-gates=%s=true,%s=true",
			groups.NameOf(item.Pod), groups.GenericWorkload, groups.GangScheduling),
	})
}

// groupDecision says how the group of a pod stands; nil if it has none.
func (c *Core) groupDecision(uid types.UID) *decision.Group {
	if c.groups == nil || c.groups.Of(uid) == nil {
		return nil
	}
	g := c.groups.Of(uid)
	d := &decision.Group{
		Name: g.Name.Name, Missing: g.Object == nil, MinCount: g.MinCount(), Members: g.Count(), Scheduled: g.Done || g.Scheduled(),
	}
	d.Placed, d.Bound = c.placed(g)
	if condition := g.Condition(); condition != nil && !d.Scheduled {
		d.Message = condition.Message
	}
	return d
}
