// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"errors"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// refuser rejects every pod before any node is considered.
type refuser string

func (r refuser) Name() string      { return string(r) }
func (refuser) Reads() plugins.Part { return plugins.Labels }
func (r refuser) Filter(*cluster.Cluster, *cluster.Pod) plugins.Judge {
	return plugins.Judge{All: &plugins.Rejection{Reasons: []string{string(r)}, Unresolvable: true}}
}

// TestPodIsRejectedInTheOrderAtPreFilter verifies that the order at PreFilter, not at Filter,
// determines which of two plugins rejects a pod before any node is considered.
func TestPodIsRejectedInTheOrderAtPreFilter(t *testing.T) {
	for _, first := range []string{"A", "B"} {
		profile := &plugins.Profile{
			Filters: []plugins.Filter{refuser("A"), refuser("B")},
			At:      map[plugins.Point][]string{plugins.PreFilter: {"B", "A"}, plugins.Filters: {"A", "B"}},
		}
		if first == "A" {
			profile.At[plugins.PreFilter] = []string{"A", "B"}
		}
		c := benchCluster(1, false)
		p := c.Pending(benchPod(0, "plain"))
		if e := NewPlain(c, profile).Evaluate(p); e.Rejector != first {
			t.Errorf("%s rejects the pod, want %s", e.Rejector, first)
		}
		d := New(c, profile, 1)
		d.Decide(p)
		if f := d.Diagnose(p); f.Rejector != first {
			t.Errorf("the fast way: %s rejects the pod, want %s", f.Rejector, first)
		}
	}
}

// failing fails on one node, or on nodes with a certain pod.
type failing struct{ node, pod string }

func (failing) Name() string        { return "Failing" }
func (failing) Reads() plugins.Part { return plugins.Contents | plugins.Objects }
func (f failing) Filter(*cluster.Cluster, *cluster.Pod) plugins.Judge {
	return plugins.Judge{Node: func(n *cluster.Node) *plugins.Rejection {
		if n.Name == f.node || slices.ContainsFunc(n.Pods, func(p *cluster.Pod) bool { return p.Name() == f.pod }) {
			return &plugins.Rejection{Err: errors.New("it cannot be judged")}
		}
		return nil
	}}
}

// TestPluginFailsOnNodeThatAnotherRejects verifies that the attempt fails if and only if the
// failing plugin precedes the plugin that rejects the node. This includes failures caused only by a
// pod nominated to the node.
func TestPluginFailsOnNodeThatAnotherRejects(t *testing.T) {
	for _, f := range []failing{{node: "node-0"}, {pod: "nominated"}} {
		for _, before := range []bool{true, false} {
			profile := plugins.Default()
			if before {
				profile.Filters = append([]plugins.Filter{f}, profile.Filters...)
			} else {
				profile.Filters = append(slices.Clone(profile.Filters), f)
			}
			c := benchCluster(3, false)
			full, nominated := benchPod(0, "plain"), benchPod(2, "plain")
			full.UID, full.Spec.NodeName = "full", "node-0"
			full.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse("32")}
			c.SetPod(full)
			nominated.Name, nominated.UID = "nominated", "nominated"
			c.Nominate(c.Pending(nominated), "node-0")
			d := New(c, profile, 1)
			p := c.Pending(benchPod(1, "plain"))
			fast, plain := d.Decide(p), NewPlain(c, profile).Evaluate(p)
			if (fast.Err != nil) != before || (plain.Err != nil) != before {
				t.Errorf("%+v, asked before: %t; the fast way fails with %v, the plain way with %v", f, before, fast.Err, plain.Err)
			}
		}
	}
}
