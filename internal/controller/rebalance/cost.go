// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance

import (
	"cmp"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/world/disruption"
)

// Cost is the cost of a move. Its exported fields are listed in the order of comparison, the most
// important first; avoid is compared before them.
//
// It decides between candidates of equal gain, and shows the user the disruption of a move. Costs
// are compared field by field, not added up: no number of volumes outweighs the only replica of a
// workload.
type Cost struct {
	// Sole marks the only pod of its workload. Stateful marks a pod of a StatefulSet, which creates
	// the successor only after the pod's deletion.
	Sole     bool `json:"sole,omitempty"`
	Stateful bool `json:"stateful,omitempty"`
	// Budget is the disruption budget used by the move. Left is the number of disruptions allowed
	// after it.
	Budget string `json:"budget,omitempty"`
	Left   int32  `json:"left,omitempty"`
	// Volumes counts the volumes to detach and attach.
	Volumes  int   `json:"volumes,omitempty"`
	Priority int32 `json:"priority"`
	// DeletionCost is the pod's annotation controller.kubernetes.io/pod-deletion-cost.
	DeletionCost int32 `json:"deletionCost,omitempty"`
	// AgeSeconds is the time since the pod became ready; 0 if it is not. GraceSeconds is its grace
	// period.
	AgeSeconds   int64 `json:"ageSeconds"`
	GraceSeconds int64 `json:"graceSeconds"`

	avoid bool // the pod is annotated prefer-no-eviction
}

// costOf returns the current cost of moving a pod. The disruptions allowed by its budget come
// from the status before the plan, adjusted for pods recovered since.
func (pt *protections) costOf(p *pod) Cost {
	own := pt.costs[p]
	if own == nil {
		if pt.costs == nil {
			pt.costs = map[*pod]*Cost{}
		}
		own = new(pt.ownCost(p))
		pt.costs[p] = own
	}

	c := *own
	if list := pt.budgetsOf(p); len(list) == 1 && !disruption.Ungoverned(p.object) {
		c.Budget, c.Left = list[0].Name, max(list[0].Status.DisruptionsAllowed-1, 0)
	}
	return c
}

// ownCost returns the cost except for the budget and its remaining disruptions.
func (pt *protections) ownCost(p *pod) Cost {
	c := Cost{
		Priority: p.Class.Priority, Stateful: rules.ControllerKind(p.object) == rules.StatefulSet,
		GraceSeconds: ptr.Deref(p.object.Spec.TerminationGracePeriodSeconds, v1.DefaultTerminationGracePeriodSeconds),
	}
	c.Sole = pt.w.countSiblings(p) == 1 && !rules.IsTerminal(p.object)

	for i := range p.object.Spec.Volumes {
		if v := &p.object.Spec.Volumes[i]; v.PersistentVolumeClaim != nil || v.Ephemeral != nil {
			c.Volumes++
		}
	}

	c.DeletionCost = rules.DeletionCost(p.object)
	if disruption.IsReady(p.object) {
		c.AgeSeconds = max(int64(disruption.AgeOf(p.object, pt.w.now).Seconds()), 0)
	}
	c.avoid = prefersNoEviction(p)
	return c
}

// prefersNoEviction reports whether a pod has the annotation preferNoAnnotation with any value.
func prefersNoEviction(p *pod) bool {
	_, is := p.object.Annotations[preferNoAnnotation]
	return is
}

// compare compares two costs and returns the deciding difference. The text describes the more
// expensive cost, to explain why its move was not chosen; the result is 0 for equal costs.
func (c *Cost) compare(o *Cost) (int, string) {
	if *c == *o { // the most frequent case
		return 0, asGood
	}
	for _, of := range []struct {
		what string
		a, b int64
	}{
		{"it is annotated prefer-no-eviction", boolToInt(c.avoid), boolToInt(o.avoid)},
		{"it is the only pod of its workload", boolToInt(c.Sole), boolToInt(o.Sole)},
		{"it belongs to a StatefulSet", boolToInt(c.Stateful), boolToInt(o.Stateful)},
		{"it uses up its disruption budget", boolToInt(c.Budget != "" && c.Left == 0), boolToInt(o.Budget != "" && o.Left == 0)},
		{"its volumes have to be attached again", int64(c.Volumes), int64(o.Volumes)},
		{"its priority is higher", int64(c.Priority), int64(o.Priority)},
		{"its deletion cost is higher", int64(c.DeletionCost), int64(o.DeletionCost)},
		{"it has been running longer", c.AgeSeconds, o.AgeSeconds},
		{"its grace period is longer", c.GraceSeconds, o.GraceSeconds},
	} {
		if d := cmp.Compare(of.a, of.b); d != 0 {
			return d, of.what
		}
	}

	return 0, asGood
}

// asGood is the reason for the choice between moves of the same cost.
const asGood = "equal cost; the order of names decides"

// boolToInt returns 1 for true and 0 for false, so that booleans can be compared and counted.
func boolToInt(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
