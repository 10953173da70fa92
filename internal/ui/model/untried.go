// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"maps"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

// This file determines why a pending pod has not been tried: no scheduler of that name is served,
// or one of the pod's ResourceClaims does not exist.

// Serve replaces the names of the schedulers served by Berth. An empty list means that the names
// are unknown; then no pod counts as unserved.
func (c *Cluster) Serve(schedulers []string) {
	served := map[string]bool{}
	for _, name := range schedulers {
		served[name] = true
	}
	// Serve is called every few seconds, but the names rarely change.
	if maps.Equal(served, c.served) {
		return
	}
	c.served = served
	for uid := range c.queue {
		c.dirtyPods[uid] = true
	}
}

// whyUntried explains why no scheduler tries a pending pod without a condition PodScheduled; "" if
// a scheduler is still expected to try it. A pod with a missing claim is kept out of the queue and
// does not get the condition.
func (c *Cluster) whyUntried(p *Pod) string {
	if len(c.served) > 0 && !c.served[p.scheduler] {
		return fmt.Sprintf("it is for the scheduler %q, which Berth does not serve here", p.scheduler)
	}
	if p.claimFault != "" {
		return p.claimFault
	}
	for _, name := range p.claims {
		claim := types.NamespacedName{Namespace: p.eviction.Name.Namespace, Name: name}
		if _, exists := c.claims[claim]; c.claimed && !exists {
			return fmt.Sprintf("could not find ResourceClaim %q", claim)
		}
	}
	return ""
}

// takeClaims records the ResourceClaims referenced by a pending pod, or the reason that their names
// are unknown. The pod's status has the name of a claim made from a template once the claim exists.
func (p *Pod) takeClaims(object *v1.Pod) {
	for i := range object.Spec.ResourceClaims {
		switch name, _, err := resourceclaim.Name(object, &object.Spec.ResourceClaims[i]); {
		case err != nil:
			p.claimFault = internString(err.Error())
		case name != nil:
			p.claims = append(p.claims, *name)
		}
	}
}

// ClaimsListing begins a list of ResourceClaims. Claims not observed before the next ClaimsListed
// have been deleted.
func (c *Cluster) ClaimsListing() { c.claimList++ }

// ClaimsListed ends a list of ResourceClaims. Before the first list, no claim counts as missing.
// There is no list if the cluster does not serve the kind or the user has no permission to read it.
func (c *Cluster) ClaimsListed() {
	c.claimed = true
	for name, list := range c.claims {
		if list != c.claimList {
			delete(c.claims, name)
		}
	}
	c.touchClaiming()
}

// ClaimSeen applies a ResourceClaim.
func (c *Cluster) ClaimSeen(name types.NamespacedName) {
	if _, known := c.claims[name]; !known && c.claimed {
		c.touchClaiming()
	}
	c.claims[name] = c.claimList
}

// ClaimGone removes a ResourceClaim.
func (c *Cluster) ClaimGone(name types.NamespacedName) {
	delete(c.claims, name)
	c.touchClaiming()
}

// touchClaiming marks the rows of pending pods with claims as dirty.
func (c *Cluster) touchClaiming() {
	for uid := range c.queue {
		if p := c.pods[uid]; p != nil && len(p.claims) > 0 {
			c.dirtyPods[uid] = true
		}
	}
}
