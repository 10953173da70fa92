// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simkubelet

import (
	"net/netip"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestNodesOfOneClusterShareNoAddresses verifies that the nodes of several prefixes, sizes and runs
// have different addresses and disjoint pod ranges in a cluster that also has a real node, and that
// a node keeps its address.
func TestNodesOfOneClusterShareNoAddresses(t *testing.T) {
	w := newWorld(testShape())
	w.storeNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "real"}, Spec: v1.NodeSpec{PodCIDR: "10.128.5.0/24", PodCIDRs: []string{"10.128.5.0/24"}}})
	before := map[string]string{}
	for _, run := range []struct {
		prefix string
		count  int
		pods   string
	}{{"node-", 3, "110"}, {"gpu-", 20, "8"}, {"node-", 6, "110"}, {"gpu-", 40, "8"}, {"big-", 2, "250"}, {"node-", 9, "110"}} {
		w.shape = testShape()
		w.shape.Prefix, w.shape.Count, w.shape.Capacity[v1.ResourcePods] = run.prefix, run.count, resource.MustParse(run.pods)
		w.start()
		ranges, addresses := map[netip.Prefix]string{}, map[string]string{}
		for name, n := range w.nodes {
			own := netip.MustParsePrefix(n.Spec.PodCIDR)
			for other, by := range ranges {
				if other.Overlaps(own) {
					t.Errorf("%s: the pods of %s are in %s, those of %s in %s", run.prefix, name, own, by, other)
				}
			}
			ranges[own] = name
			for _, a := range n.Status.Addresses {
				if a.Type == v1.NodeInternalIP && addresses[a.Address] != "" {
					t.Errorf("%s: %s and %s have the address %s", run.prefix, name, addresses[a.Address], a.Address)
				}
				if addresses[a.Address] = name; a.Type == v1.NodeInternalIP && before[name] != "" && before[name] != a.Address {
					t.Errorf("%s: %s had the address %s, and has %s", run.prefix, name, before[name], a.Address)
				}
				if a.Type == v1.NodeInternalIP {
					before[name] = a.Address
				}
			}
		}
	}

	// If no range is free, no node is registered.
	w.storeNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "all"}, Spec: v1.NodeSpec{PodCIDR: "10.0.0.0/8", PodCIDRs: []string{"10.0.0.0/8"}}})
	w.shape.Prefix, w.trace = "late-", nil
	if w.start(); w.nodes["late-1"] != nil || !strings.Contains(strings.Join(w.trace, "\n"), "no address range is left") {
		t.Errorf("with all addresses taken: %q", w.trace)
	}
}
