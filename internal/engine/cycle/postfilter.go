// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"fmt"

	resourcev1 "k8s.io/api/resource/v1"

	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// This file runs the plugins at PostFilter for a pod that fits on no node.

// runPostFilters runs PostFilter plugins in order until one is final. If one fails, the nominations
// of earlier plugins are discarded, and the pod keeps its previous nomination.
func (s *attempts) runPostFilters(a *podAttempt) (nominate *string, messages, rejectors []string) {
	began := s.clock()
	helped := false
	for _, rescue := range a.profile.postFilters {
		done := s.startTiming(a, rescue.plugin, plugins.PostFilter)
		r := s.runPostFilter(&rescue, a)
		done(r.Nominate != nil && *r.Nominate != "")
		if r.Nominate != nil {
			nominate = r.Nominate
		}
		rejectors = append(rejectors, r.Rejectors...)
		switch {
		case r.Err != nil:
			a.unasked = r.Err
			return nil, []string{r.Err.Error()}, rejectors
		case r.Final:
			helped = r.Nominate != nil && *r.Nominate != ""
			messages = nil
			if r.Message != "" {
				messages = []string{r.Message}
			}
		case r.Message != "":
			messages = append(messages, r.Message)
		}
		if r.Final {
			break
		}
	}

	if len(a.profile.postFilters) > 0 {
		s.observer().Ran(a.Profile, plugins.PostFilter, helped, s.clock().Sub(began))
	}
	return nominate, messages, rejectors
}

// runPostFilter runs one plugin. An out-of-tree plugin takes precedence over Berth's own plugin
// with the same name.
func (s *attempts) runPostFilter(by *postFilter[PostFilterer], a *podAttempt) PostFilterResult {
	switch {
	case by.isOutside:
		return by.outOfTree.RunPostFilter(&a.Attempt, func() *decide.Evaluation { return a.profile.Plain().Evaluate(a.Waiting) })
	case by.releaser != nil:
		return s.giveBackDevices(a, by.releaser)
	}
	return s.preemptions.preemptFor(a)
}

// DeallocateClaim frees the devices of a claim unusable for a pending pod, by writing the status in
// Claim or deleting the claim.
type DeallocateClaim struct {
	Ticket Ticket
	Claim  *resourcev1.ResourceClaim
	Delete bool
}

func (a DeallocateClaim) String() string {
	how := "deallocate"
	if a.Delete {
		how = "delete"
	}
	return fmt.Sprintf("%s claim %s/%s #%d", how, a.Claim.Namespace, a.Claim.Name, a.Ticket)
}

// giveBackDevices runs a plugin's PostFilter, which releases the devices of a claim that the pod
// cannot use. If they cannot be released, the pod is retried after its back-off.
func (s *attempts) giveBackDevices(a *podAttempt, plugin plugins.ClaimReleaser) PostFilterResult {
	message, change, remove := plugin.PostFilter(s.cluster, a.Waiting, s.placements.isUnused(&a.placement))
	if change != nil {
		uid, ended := a.Pod.UID, func(Outcome) {}
		if claim, ok := s.cluster.ResourceClaims.Get(change.Namespace, change.Name); ok && !remove {
			if group, ok := plugins.GroupOf(claim); ok {
				ended = s.placements.claims.beginRelease(nameOf(claim), group.UID)
			}
		}
		ticket := s.issueHandled(nil, func(o Outcome) {
			ended(o)
			if o.Fault != nil { // the change that would wake the pod will not happen
				s.queue.Retry(uid, queue.ForceActivate, s.now)
			}
		})
		s.addAction(DeallocateClaim{ticket, change, remove})
	}
	// The claim left by an earlier attempt is the reason of all rejections. The pod keeps its
	// nomination, so that no other pod gets the devices before the next attempt.
	keeps := remove && a.Waiting.Nominated != "" && a.profile.Profile.PreemptedDevices(s.cluster, a.Waiting) != nil
	return PostFilterResult{Message: message, Final: keeps}
}
