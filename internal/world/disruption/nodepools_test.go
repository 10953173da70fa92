// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package disruption

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestBudgetsOfANodePool verifies the allowed removals of a pool with 15 nodes (one is not ready,
// and one is terminating) at 12:30 UTC on a Saturday.
func TestBudgetsOfANodePool(t *testing.T) {
	now := time.Date(2026, 11, 28, 13, 30, 0, 0, time.FixedZone("CET", 3600))
	var nodes []*v1.Node
	for i := range 20 {
		n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i), Labels: map[string]string{NodePoolLabel: map[bool]string{true: "main", false: "other"}[i < 15]}}}
		n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}
		switch i {
		case 3:
			n.Status.Conditions[0].Status = v1.ConditionUnknown
		case 4:
			n.DeletionTimestamp = &metav1.Time{Time: now}
		}
		nodes = append(nodes, n)
	}
	const all = math.MaxInt - 2
	for budgets, want := range map[string]int{
		``:                              0, // 10 %, rounded up: 2
		`"budgets": []`:                 all,
		`"budgets": [{"nodes": "20%"}]`: 1,
		`"budgets": [{"nodes": "21%"}]`: 2, // 3.15, rounded up
		`"budgets": [{"nodes": "5"}, {"nodes": "0", "reasons": ["Drifted"]}, {"nodes": "4", "reasons": ["Underutilized"]}]`: 2,
		`"budgets": [{"nodes": "1"}]`: 0, // not less than none
		`"budgets": [{"nodes": "0", "schedule": "0 12 * * *", "duration": "31m"}, {"nodes": "9"}]`: 0, // still active
		`"budgets": [{"nodes": "0", "schedule": "0 12 * * *", "duration": "30m"}, {"nodes": "9"}]`: 7,
		`"budgets": [{"nodes": "0", "schedule": "0 13 * * *", "duration": "1h"}, {"nodes": "9"}]`:  7, // 13:00 is in UTC
		`"budgets": [{"nodes": "0", "schedule": "@daily", "duration": "13h"}]`:                     0,
		`"budgets": [{"nodes": "0", "schedule": "0 9 * * mon-fri", "duration": "8h"}]`:             all, // Saturday
		`"budgets": [{"nodes": "0", "schedule": "never", "duration": "8h"}]`:                       0,
		`"budgets": [{"nodes": "many"}]`:                                                              0,
		`"budgets": [{"nodes": "9", "schedule": "0 12 * * *"}]`:                                       0, // without duration
		`"budgets": [{"nodes": "9", "of a newer version": {}}], "also of a newer version": "for now"`: 7,
	} {
		p := &NodePool{}
		if err := json.Unmarshal([]byte(`{"metadata": {"name": "main"}, "spec": {"disruption": {`+budgets+`}}}`), p); err != nil {
			t.Fatal(err)
		}
		if got := p.Allowed(nodes, Underutilized, now); got != want {
			t.Errorf("%s: %d nodes are allowed, want %d", budgets, got, want)
		}
	}
}

// TestConsolidationOfANodePool verifies the reasons for which nodes stay.
func TestConsolidationOfANodePool(t *testing.T) {
	now := time.Now()
	for spec, why := range map[string]string{
		`"disruption": {"consolidateAfter": "0s"}`:                                        "",
		`"disruption": {"consolidateAfter": "Never"}`:                                     "NodePool main has consolidateAfter: Never",
		`"disruption": {"consolidateAfter": "1h"}`:                                        "",
		`"disruption": {"consolidateAfter": "2h"}`:                                        "NodePool main has consolidateAfter: 2h, and a pod arrived later",
		`"disruption": {"consolidateAfter": "0s", "consolidationPolicy": "WhenEmpty"}`:    "NodePool main has consolidationPolicy: WhenEmpty, and the node has pods",
		`"disruption": {"consolidateAfter": "0s", "consolidationPolicy": "Balanced"}`:     "",
		`"replicas": 3, "disruption": {"consolidateAfter": "0s"}`:                         "NodePool main has a fixed number of nodes",
		`"disruption": {"consolidationPolicy": "WhenEmptyOrUnderutilized", "newer": [1]}`: "",
	} {
		p := &NodePool{}
		if err := json.Unmarshal([]byte(`{"metadata": {"name": "main"}, "spec": {`+spec+`}}`), p); err != nil {
			t.Fatal(err)
		}
		if got := p.WhyStays(Underutilized, now.Add(-90*time.Minute), now); got != why {
			t.Errorf("%s: %q, want %q", spec, got, why)
		}
		if got := p.WhyStays(Empty, now.Add(-90*time.Minute), now); p.Spec.Disruption.Policy == "WhenEmpty" && got != "" {
			t.Errorf("%s: an empty node stays: %q", spec, got)
		}
	}
	for after, why := range map[string]string{
		"0s": "", "2h": "NodePool main has berth.dev/consolidate-after: 2h, and a pod arrived later",
		"Never": "NodePool main has berth.dev/consolidate-after: Never", "soon": "NodePool main has berth.dev/consolidate-after: soon",
	} {
		p := &NodePool{}
		p.Name, p.Annotations, p.Spec.Disruption.After = "main", map[string]string{ConsolidateAfter: after}, "Never"
		if got := p.WhyStays(Underutilized, now.Add(-90*time.Minute), now); got != why {
			t.Errorf("annotation %s: %q, want %q", after, got, why)
		}
	}
}
