// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package question

import (
	"math"
	"strings"
	"testing"

	berthv1alpha1 "github.com/berth-k8s/berth/api/berth/v1alpha1"
	"github.com/berth-k8s/berth/internal/inspect/provision"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/inspect/whatif"
)

func TestAForecastIsBoundedInSum(t *testing.T) {
	nodes := func(n int) whatif.Step {
		return whatif.Step{Words: "nodes", Operation: &simulate.Operation{AddNodes: &simulate.AddNodes{Count: n}}}
	}
	pods := func(n int) whatif.Step {
		return whatif.Step{Words: "pods", Operation: &simulate.Operation{AddPods: &simulate.AddPods{Count: n}}}
	}
	scale := func(n int) whatif.Step {
		return whatif.Step{Words: "scale", Operation: &simulate.Operation{Scale: &simulate.Scale{Replicas: n}}}
	}
	for _, c := range []struct {
		name  string
		steps []whatif.Step
		says  string
	}{
		{"as much as it may", []whatif.Step{nodes(MostAddedNodes), pods(MostAddedPods / 2), scale(MostAddedPods / 2)}, ""},
		{"nodes", []whatif.Step{nodes(MostAddedNodes), nodes(1)}, "at most 10000 nodes in sum"},
		{"pods and replicas", []whatif.Step{pods(MostAddedPods), scale(1)}, "at most 100000 pods in sum"},
		{"beyond what a number holds", []whatif.Step{pods(math.MaxInt), pods(math.MaxInt)}, "at most 100000 pods in sum"},
		{"a negative count pays nothing back", []whatif.Step{pods(math.MinInt), pods(MostAddedPods + 1)}, "in sum"},
		{"operations", make([]whatif.Step, mostOperations+1), "201 operations"},
	} {
		err := checkAffordable(c.steps)
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// TestAForecastHasAnAllowance verifies that a forecast has an allowance, which also bounds pods
// that cannot be counted in advance, such as daemon pods on new nodes.
func TestAForecastHasAnAllowance(t *testing.T) {
	if a := newAllowance(t.Context()); a.Pods != MostAddedPods || a.Nodes != MostAddedNodes || a.Stop == nil {
		t.Errorf("it may add %d pods and %d nodes, and is stopped: %t", a.Pods, a.Nodes, a.Stop != nil)
	}
}

func TestAManifestIsRefusedBeforeItIsExpanded(t *testing.T) {
	const deployment = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: NAME}\nspec: {replicas: 60000, selector: {matchLabels: {a: b}}, " +
		"template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}\n---\n"
	q := WhatIf{WhatIfRequest: &berthv1alpha1.WhatIfRequest{Manifest: strings.Replace(deployment, "NAME", "one", 1)}}
	for range mostApplied {
		if _, err := q.ReadApplied([]string{"-"}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := q.ReadApplied([]string{"-"}, nil); err == nil || !strings.Contains(err.Error(), "at most 4 times") {
		t.Errorf("once more: %v", err)
	}
	q = WhatIf{WhatIfRequest: &berthv1alpha1.WhatIfRequest{Manifest: strings.Replace(deployment, "NAME", "one", 1) + strings.Replace(deployment, "NAME", "two", 1)}}
	if _, err := q.ReadApplied([]string{"-"}, nil); err == nil || !strings.Contains(err.Error(), "asks for 120000 pods") {
		t.Errorf("two that are too much together: %v", err)
	}
}

// TestCatalogsAreEntered verifies that forecasts buy nodes from the submitted catalog, and that
// errors in it are reported with the line.
func TestCatalogsAreEntered(t *testing.T) {
	node := "kind: Node\napiVersion: v1\nmetadata: {name: a, annotations: {berth.dev/price: \"1\"}}\nstatus: {allocatable: {cpu: 4}}\n"
	for _, c := range []struct {
		text  string
		steps []whatif.Step
		says  string
	}{
		{node, []whatif.Step{{Catalog: &provision.Catalog{}}}, ""},
		{"", []whatif.Step{{Choose: 1}}, ""},
		{"", []whatif.Step{{Catalog: &provision.Catalog{}}}, "offers no node"},
		{node + "---\n" + strings.Replace(node, "metadata", "metadate", 1), []whatif.Step{{Catalog: &provision.Catalog{}}}, "-:8: metadate: unknown field"},
		{node, []whatif.Step{{Catalog: &provision.Catalog{}}, {Choose: 1}}, "name it last"},
	} {
		err := (&WhatIf{WhatIfRequest: &berthv1alpha1.WhatIfRequest{Catalog: c.text}}).readCatalog(c.steps)
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v, want %q", c.text, err, c.says)
		}
		if c.says == "" && c.text != "" && len(c.steps[0].Catalog.Offers) != 1 {
			t.Errorf("%d offers", len(c.steps[0].Catalog.Offers))
		}
	}
}
