// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestNodesOfATemplate verifies which existing nodes count towards a template's maximum and minimum
// number.
func TestNodesOfATemplate(t *testing.T) {
	type labels = map[string]string
	web := labels{"pool": "web", v1.LabelHostname: "template", v1.LabelOSStable: "linux"}
	for name, c := range map[string]struct {
		template, node labels
		group          string // group in the node's annotation
		counts         bool
	}{
		"all labels, and another":   {web, labels{"pool": "web", v1.LabelOSStable: "linux", v1.LabelHostname: "n", "disk": "ssd"}, "", true},
		"another value":             {web, labels{"pool": "db", v1.LabelOSStable: "linux"}, "", false},
		"a label less":              {web, labels{"pool": "web"}, "", false},
		"its group":                 {web, labels{}, "small", true},
		"another group":             {web, web, "large", false},
		"a template without labels": {labels{}, web, "", false},
		"one with common labels":    {labels{v1.LabelOSStable: "linux"}, web, "", false},
	} {
		o := &Offer{Pool: "small", Node: &v1.Node{ObjectMeta: metav1.ObjectMeta{Labels: c.template}}, pool: -1}
		n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Labels: c.node, Annotations: map[string]string{groupAnnotation: c.group}}}
		if o.has(n) != c.counts {
			t.Errorf("%s: counts: %v, want %v", name, !c.counts, c.counts)
		}
		if o.pool = 0; o.has(n) {
			t.Errorf("%s: counts for a NodePool", name)
		}
	}
}
