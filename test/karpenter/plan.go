// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	labels "sigs.k8s.io/karpenter/pkg/scheduling"
)

// node is the node launched for a NodeClaim.
type node struct {
	*cloudprovider.InstanceType
	offering *cloudprovider.Offering
	pods     []*corev1.Pod
}

func (n node) zone() string { return n.offering.Zone() }

// launch returns a node with the cheapest available offering of the claim's remaining instance
// types. If several zones or capacity types have the same price, as in the benchmark's catalog,
// launch takes the first of them.
func launch(claim *scheduling.NodeClaim) (node, error) {
	n := node{pods: claim.Pods}
	for _, instance := range claim.InstanceTypeOptions {
		for _, offering := range instance.Offerings {
			if offering.Available && (n.offering == nil || offering.Price < n.offering.Price) &&
				claim.Requirements.IsCompatible(offering.Requirements, labels.AllowUndefinedWellKnownLabels) {
				n.InstanceType, n.offering = instance, offering
			}
		}
	}
	if n.offering == nil {
		return n, fmt.Errorf("a NodeClaim of %d pods has no offering left", len(claim.Pods))
	}
	return n, nil
}

// plan is the result of a run of Karpenter's scheduler.
type plan struct {
	nodes   []node
	pending int     // number of pods without a node
	cost    float64 // per hour
}

func newPlan(results scheduling.Results) (plan, error) {
	p := plan{pending: len(results.PodErrors)}
	for _, claim := range results.NewNodeClaims {
		n, err := launch(claim)
		if err != nil {
			return p, err
		}
		p.nodes = append(p.nodes, n)
		p.cost += n.offering.Price
	}
	return p, nil
}
