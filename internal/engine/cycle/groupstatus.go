// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/engine/groups"
)

// writeUnscheduled records the reason why a group is not scheduled, and writes it to the group's
// condition. As upstream, the condition of a group that was scheduled once is kept.
func (a *groupAttempt) writeUnscheduled(reason, message string) {
	g := a.group
	if a.podGroups.progress.isPlaced(g) || a.podGroups.progress.isStarted(g) {
		return
	}
	verdict := a.attempt.Verdict()
	g.Last = groups.Attempt{Tried: verdict.Tried, Needed: verdict.Needed, Message: message}
	if reason != v1.PodReasonSchedulerError { // after an error, the state is unknown
		g.Last.Fit = verdict.Fit
	}
	if !g.Done && !g.Scheduled() {
		a.podGroups.writeCondition(g, metav1.ConditionFalse, reason, message)
	}
}

// describeGroup describes the state of a group.
func (gs *podGroups) describeGroup(g *groups.Group) *decision.Group {
	d := &decision.Group{
		Name: g.Name.Name, Missing: g.Object == nil, MinCount: g.MinCount(), Members: g.Count(), Scheduled: gs.progress.isStarted(g),
	}
	d.Placed, d.Bound = gs.progress.countPlaced(g)
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
