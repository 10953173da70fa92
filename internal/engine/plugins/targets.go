// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// Toward returns a copy of the profile with new plugins that prefers nodes with fewer pods of a
// controller than intended.
func (p *Profile) Toward(targets Targets) (*Profile, error) {
	toward, err := p.Fresh()
	if err == nil && len(targets) > 0 {
		toward.Scorers = append(toward.Scorers, Weighted{targets, targetWeight})
	}
	return toward, err
}

// Targets holds the intended numbers of pods by the UID of their controller, and by node.
type Targets map[types.UID]map[string]int

// targetWeight is more than the weights of all other scorers.
const targetWeight = 1_000_000

// Name implements [Scorer].
func (Targets) Name() string { return "Targets" }

// Count sets the pods of a node as the intended ones.
func (t Targets) Count(n *cluster.Node) {
	for _, counts := range t {
		delete(counts, n.Name)
	}
	for _, p := range n.Pods {
		if owner := p.Class.Controller; owner != nil {
			if t[owner.UID] == nil {
				t[owner.UID] = map[string]int{}
			}
			t[owner.UID][n.Name]++
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

// Score implements [Scorer].
func (t Targets) Score(c *cluster.Cluster, p *cluster.Pod, _ []*cluster.Node) Scoring {
	owner, wanted := p.Class.Controller, map[*cluster.Node]int64{}
	if owner == nil {
		return Scoring{}
	}
	for name, missing := range t[owner.UID] {
		n := c.Node(name)
		for i := 0; n != nil && missing > 0 && i < len(n.Pods); i++ {
			if other := n.Pods[i].Class.Controller; other != nil && other.UID == owner.UID {
				missing--
			}
		}
		if n != nil && missing > 0 {
			wanted[n] = MaxScore
		}
	}
	if len(wanted) == 0 {
		return Scoring{}
	}
	return Scoring{Node: func(n *cluster.Node) (int64, error) { return wanted[n], nil }}
}
