// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-k8s/berth/internal/inspect/manifest"
)

// TestUnknownFieldsOfNodePools verifies that a NodePool of the cluster with fields of a newer
// version offers no nodes, and that a note names it and the field. Its known rules for the removal
// of nodes hold. Only a catalog that depends on this NodePool is refused.
func TestUnknownFieldsOfNodePools(t *testing.T) {
	types := `[{"name": "c-4", "architecture": "amd64", "operatingSystems": ["linux"], "resources": {"cpu": "4", "memory": "8Gi"},
		"offerings": [{"Price": 0.1, "Requirements": [{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a"]}]}]}]`
	pool := func(name, spec string) manifest.Document {
		return manifest.Document{File: "NodePools of test", Text: []byte(`{"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "` +
			name + `"}, "spec": {"template": {"spec": {"requirements": [], "nodeClassRef": {}}}, ` + spec + `}}`)}
	}
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	known := pool("known", `"disruption": {"consolidateAfter": "0s"}`)
	newer := pool("newer", `"placement": "dense", "disruption": {"consolidateAfter": "Never"}`)
	odd := pool("odd", `"disruption": {"budgets": 5}`)
	template := "kind: Node\napiVersion: v1\nmetadata: {name: a, annotations: {berth.dev/price: \"1\"}}\nstatus: {allocatable: {cpu: \"4\"}}\n"

	for _, test := range []struct {
		name, catalog string
		found         []manifest.Document
		offers, fault string
	}{
		{"another pool is known", types, []manifest.Document{newer, known, odd}, "known", ""},
		{"the catalog has its own nodes", template, []manifest.Document{newer, odd}, "a", ""},
		{"the plan would use the pool", types, []manifest.Document{newer}, "", `spec.placement`},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, err := assemble(documentsOf("catalog", test.catalog), []string{"catalog"})
			if err != nil {
				t.Fatal(err)
			}
			if err = c.complete(test.found); test.fault != "" {
				if err == nil || !strings.Contains(err.Error(), test.fault) {
					t.Fatalf("want an error with %s, got: %v", test.fault, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if len(c.Offers) == 0 || slices.ContainsFunc(c.Offers, func(o Offer) bool { return o.Pool != test.offers }) {
				t.Errorf("offers %+v, want only those of %s", c.Offers, test.offers)
			}
			for name, field := range map[string]string{"newer": "spec.placement", "odd": "spec.disruption"} {
				if !slices.ContainsFunc(c.Notes, func(note string) bool {
					return strings.Contains(note, "NodePool "+name) && strings.Contains(note, field)
				}) {
					t.Errorf("no note names %s and %s: %q", name, field, c.Notes)
				}
			}
			if why := c.rules["newer"].WhyStays("", now, now); !strings.Contains(why, "Never") {
				t.Errorf("nodes of newer stay: %q", why)
			}
			if allowed := c.rules["odd"].Allowed(nil, "", now); allowed != 0 {
				t.Errorf("%d nodes of odd may be removed, although its budgets cannot be read", allowed)
			}
		})
	}
}
