package cycle

import (
	"cmp"
	"fmt"

	v1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// writeScheduled writes that a group is scheduled: minCount of its pods are bound.
func (gs *podGroups) writeScheduled(g *groups.Group) {
	gs.writeCondition(g, metav1.ConditionTrue, "Scheduled", "")
}

// writeUnscheduled notes why a group is not scheduled, and writes it; as upstream, the condition of
// a group that once was scheduled stays.
func (a *groupAttempt) writeUnscheduled(reason, message string) {
	g := a.group
	if a.podGroups.isPlaced(g) || a.podGroups.isStarted(g) {
		return
	}
	verdict := a.attempt.Verdict()
	g.Last = groups.Attempt{Tried: verdict.Tried, Needed: verdict.Needed, Message: message}
	if reason != v1.PodReasonSchedulerError { // then nobody knows
		g.Last.Fit = verdict.Fit
	}
	if !g.Done && !g.Scheduled() {
		a.podGroups.writeCondition(g, metav1.ConditionFalse, reason, message)
	}
}

// writeCondition writes the condition PodGroupInitiallyScheduled if it has changed since it was
// last written. The API may not show that yet.
func (gs *podGroups) writeCondition(g *groups.Group, status metav1.ConditionStatus, reason, message string) {
	if g.Object == nil {
		return
	}
	condition := metav1.Condition{
		Type: schedulingv1beta1.PodGroupInitiallyScheduled, Status: status, Reason: reason, Message: message,
		ObservedGeneration: g.Object.Generation, LastTransitionTime: metav1.NewTime(gs.wallTime()),
	}

	text := func(c *metav1.Condition) string { return fmt.Sprintf("%s %s %s", c.Status, c.Reason, c.Message) }
	last := g.Said
	if old := g.Condition(); old != nil {
		if old.Status == status {
			condition.LastTransitionTime = old.LastTransitionTime
		}
		last = cmp.Or(last, text(old))
	}

	if g.Said = text(&condition); g.Said != last {
		gs.addAction(WriteGroup{Group: g.Object, Condition: condition})
	}
}

// ungrouped reports, at a pod's first attempt, that its group is ignored because groups are
// switched off.
func (as *attempts) ungrouped(item *queue.Item) {
	if as.podGroups.gates.Generic || item.Attempts > 1 || item.Class.Spec.SchedulingGroup == nil {
		return
	}
	as.addAction(Tell{
		Profile: item.Pod.Spec.SchedulerName, About: Reference(item.Pod), Type: v1.EventTypeWarning, Reason: "PodGroupIgnored",
		Message: fmt.Sprintf("the pod names pod group %q and is scheduled without it: the scheduler runs without --feature-gates=%s=true",
			groups.NameOf(item.Pod), groups.GenericWorkload),
	})
}

// describeGroup describes the state of a group.
func (gs *podGroups) describeGroup(g *groups.Group) *decision.Group {
	d := &decision.Group{
		Name: g.Name.Name, Missing: g.Object == nil, MinCount: g.MinCount(), Members: g.Count(), Scheduled: gs.isStarted(g),
	}
	d.Placed, d.Bound = gs.countPlaced(g)
	if d.Scheduled {
		return d
	}
	if condition := g.Condition(); condition != nil {
		d.Message = condition.Message
	}
	if g.Last.Tried > 0 {
		d.Tried, d.Fit, d.Needed, d.Message = g.Last.Tried, g.Last.Fit, g.Last.Needed, g.Last.Message
	}
	return d
}

// Incomplete returns why its group keeps a pending pod out of the queue: there is no PodGroup, a
// gang has too few pods, or a tree of composite groups has too few groups. It is empty if the group
// does not keep it out.
func (c *Core) Incomplete(uid types.UID) string {
	item := c.queue.Get(uid)
	if item == nil {
		return ""
	}
	g := c.groupOf(item)
	if g == nil || !c.podGroups.isIncomplete(g) {
		return ""
	}
	if g.Object == nil {
		return fmt.Sprintf("there is no PodGroup %q", g.Name.Name)
	}
	if g.Parent() != nil {
		return c.podGroups.describeIncompleteTree(g)
	}
	return fmt.Sprintf("of the %d pods that PodGroup %q asks for at once there %s", g.MinCount(), g.Name.Name, areThere(g.Count()))
}

func areThere(count int) string {
	if count == 1 {
		return "is 1"
	}
	return fmt.Sprintf("are %d", count)
}
