// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Targets holds the intended numbers of pods by the UID of their controller, and by node.
type Targets map[types.UID]map[string]int

// Count sets the pods of a node as the intended ones.
func (t Targets) Count(n *cluster.Node) {
	for _, counts := range t {
		delete(counts, n.Name)
	}
	for _, p := range n.Pods {
		if owner := p.Class.Controller; owner != nil {
			rules.Inner(t, owner.UID)[n.Name]++
		}
	}
}

// Copy gives a node the intended pods of another one.
func (t Targets) Copy(from, to string) {
	for _, counts := range t {
		if count := counts[from]; count > 0 {
			counts[to] = count
		}
	}
}

// Wanted returns the nodes with fewer pods of the pod's controller than intended, by name.
func (t Targets) Wanted(c *cluster.Cluster, p *cluster.Pod) (nodes []*cluster.Node) {
	owner := p.Class.Controller
	if owner == nil {
		return nil
	}
	for name, missing := range t[owner.UID] {
		n := c.Node(name)
		for i := 0; n != nil && missing > 0 && i < len(n.Pods); i++ {
			if other := n.Pods[i].Class.Controller; other != nil && other.UID == owner.UID {
				missing--
			}
		}
		if n != nil && missing > 0 {
			nodes = append(nodes, n)
		}
	}
	slices.SortFunc(nodes, func(a, b *cluster.Node) int { return cmp.Compare(a.Name, b.Name) })
	return nodes
}
