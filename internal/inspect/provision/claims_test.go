// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"encoding/json"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/internal/world/disruption"
)

// TestClaimsOfAnExchange verifies the NodeClaims of an exchange: unique names, the marks by which a
// later process finds unused ones, and the pool's own labels. The pool is not changed.
func TestClaimsOfAnExchange(t *testing.T) {
	pool := Pool{Name: "general"}
	pool.claim.Metadata.Annotations = map[string]string{"team": "a"}
	node := &v1.Node{}
	node.Labels = map[string]string{v1.LabelInstanceTypeStable: "c-4"}
	plan := &Plan{catalog: &Catalog{Pools: []Pool{pool}, Offers: []Offer{{Pool: "general", Type: "c-4", Node: node}, {Type: "bare", Node: node, pool: -1}}}}

	claims, err := plan.Claims(&Exchange{Nodes: []Node{{Name: "general-new-1"}, {Name: "general-new-2"}}}, "-x")
	if err != nil || len(claims) != 2 {
		t.Fatal(claims, err)
	}
	var claim nodeClaim
	if err := json.Unmarshal(claims["general-new-2-x"], &claim); err != nil {
		t.Fatal(err)
	}
	if claim.Name != "general-new-2-x" || claim.Kind != "NodeClaim" || claim.Labels[nodePoolLabel] != "general" || claim.Labels[execute.BoughtLabel] == "" ||
		claim.Annotations[disruption.KarpenterAnnotation] != "true" || claim.Annotations["team"] != "a" || len(claim.Spec.Requirements) == 0 {
		t.Errorf("%s", claims["general-new-2-x"])
	}
	if strings.Contains(string(claims["general-new-2-x"]), "creationTimestamp") {
		t.Errorf("a field of the server is set: %s", claims["general-new-2-x"])
	}
	if len(pool.claim.Metadata.Annotations) != 1 {
		t.Errorf("the pool has the annotations %v", pool.claim.Metadata.Annotations)
	}

	if _, err := plan.Claims(&Exchange{Nodes: []Node{{Name: "bare-new-1", Type: "bare", offer: 1}}}, "-x"); err == nil || !strings.Contains(err.Error(), "bare-new-1") {
		t.Errorf("a node without a NodePool: %v", err)
	}
}
