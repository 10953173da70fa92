// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package evictionrequest

import (
	"cmp"
	"maps"
	"slices"

	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/response"
)

// decideRequests writes the status of the first request with an outdated status. The response
// queues the target again for the next request.
func (c *Core) decideRequests(t *target) {
	names := slices.SortedFunc(maps.Keys(t.requests), func(a, b types.NamespacedName) int { return cmp.Compare(a.Name, b.Name) })
	for _, name := range names {
		if next := c.answerOf(t, t.requests[name]); next != nil {
			if c.do(t, "request", next, func(ticket response.Ticket) Action { return WriteRequest{ticket, next} }) {
				return
			}
		}
	}
}

// answerOf returns a request with its new status, or nil if the status is current. The status
// mirrors the Eviction. Without an Eviction it reports only final states: the pod was deleted,
// cannot be evicted by request, or is no longer requested to leave.
func (c *Core) answerOf(t *target, r *lifecyclev1alpha1.EvictionRequest) *lifecyclev1alpha1.EvictionRequest {
	next := r.DeepCopy()
	next.Status.ObservedGeneration = ptr.To(max(1, r.Generation))
	reason, message := t.ending()
	e := t.current()
	_, over := t.over()
	switch {
	case over, t.invalid() != "", e == nil && !t.wanted():
	case e != nil: // mirrors the Eviction, also after its end
		told := meta.FindStatusCondition(e.Status.Conditions, string(lifecyclev1alpha1.EvictionConditionFailed))
		if told == nil {
			return nil
		}
		reason, message = lifecyclev1alpha1.EvictionConditionReason(told.Reason), told.Message
	default:
		return nil
	}

	for _, condition := range conditionsOf(reason, message) {
		condition.ObservedGeneration, condition.LastTransitionTime = r.Generation, *c.stamp()
		meta.SetStatusCondition(&next.Status.Conditions, condition)
	}
	if equality.Semantic.DeepEqual(r.Status, next.Status) {
		return nil
	}
	return next
}
