// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-k8s/berth/internal/world/disruption"
)

// Nodes selects nodes by name, by zone and by labels. A node matching any of these is selected. The
// zero value selects nothing, which is an error; selecting all nodes must be explicit.
type Nodes struct {
	Node     string   `json:"node,omitempty"`
	Nodes    []string `json:"nodes,omitempty"`
	Zone     string   `json:"zone,omitempty"`
	Selector string   `json:"selector,omitempty"`
	All      bool     `json:"all,omitempty"`
}

// resolveNames returns the selected nodes by name, without duplicates. An empty selection or an
// unknown node is an error: it is probably a typo, and doing nothing would hide it.
func (n Nodes) resolveNames(all *nodes) ([]string, error) {
	found := map[string]bool{}
	names := n.Nodes
	if n.Node != "" {
		names = append(slices.Clone(names), n.Node)
	}

	for _, name := range names {
		if all.named[name] == nil {
			return nil, fmt.Errorf("there is no node %q", name)
		}
		found[name] = true
	}

	selector, err := labels.Parse(n.Selector)
	if err != nil {
		return nil, fmt.Errorf("selector %q: %w", n.Selector, err)
	}

	for name, m := range all.named {
		inZone := n.Zone != "" && m.object.Labels[v1.LabelTopologyZone] == n.Zone
		if n.All || inZone || n.Selector != "" && selector.Matches(labels.Set(m.object.Labels)) {
			found[name] = true
		}
	}

	if len(found) == 0 {
		return nil, fmt.Errorf("no node is in %s", n)
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// String describes the selection, for the error about an empty selection.
func (n Nodes) String() string {
	switch {
	case n.All:
		return "all nodes"
	case n.Zone != "":
		return fmt.Sprintf("zone %q", n.Zone)
	case n.Selector != "":
		return fmt.Sprintf("selector %q", n.Selector)
	case n.Node != "" && len(n.Nodes) == 0:
		return "node " + n.Node
	case len(n.Nodes) > 0:
		return fmt.Sprintf("nodes %v", n.Nodes)
	}
	return "an empty choice: give node, nodes, zone, selector or all"
}

// NodeLike returns a new node of that name with the labels, taints and size of the model, but
// without the taints and conditions that reflect the model's state. If the model has reported
// conditions, the new node is ready; otherwise, as with hand-written manifests, it has no
// conditions. NodeLike does not modify the model.
func NodeLike(model *v1.Node, name string) *v1.Node {
	n := model.DeepCopy()
	n.ObjectMeta = metav1.ObjectMeta{Name: name, UID: "", Labels: n.Labels, Annotations: nil}
	if _, ok := n.Labels[v1.LabelHostname]; ok {
		n.Labels[v1.LabelHostname] = name
	}
	n.Spec.Unschedulable = false
	n.Spec.ProviderID, n.Spec.PodCIDR, n.Spec.PodCIDRs = "", "", nil
	n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t v1.Taint) bool { return ofState[t.Key] })
	n.Status.Conditions, n.Status.Addresses, n.Status.VolumesAttached, n.Status.VolumesInUse = nil, nil, nil, nil
	if len(model.Status.Conditions) > 0 {
		n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "KubeletReady"}}
	}
	return n
}

// ofState holds the keys of taints that reflect a node's state. Node health manages all of them
// except out-of-service, which users set for a node that is shut down.
var ofState = map[string]bool{
	v1.TaintNodeNotReady: true, v1.TaintNodeUnreachable: true, v1.TaintNodeUnschedulable: true, v1.TaintNodeMemoryPressure: true,
	v1.TaintNodeDiskPressure: true, v1.TaintNodePIDPressure: true, v1.TaintNodeNetworkUnavailable: true, v1.TaintNodeOutOfService: true,
}

// OfState reports whether a taint reflects the node's state. Such a taint returns after it was
// removed by hand.
func OfState(t *v1.Taint) bool { return ofState[t.Key] }

// notReady reports whether the node's Ready condition marks it as not ready. A node without the
// condition counts as ready.
func notReady(n *v1.Node) bool {
	ready := disruption.ReadinessOf(n)
	return ready != "" && ready != v1.ConditionTrue
}
