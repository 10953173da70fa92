// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package provision

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// Scored is the outcome on the nodes of a plan if the scheduler chooses among them by its scores,
// in the order of its queue, instead of following the plan.
//
// A plan fits pods tightly and dictates each pod's node. A scheduler that chooses by scores, with
// defaults that spread pods, may leave large pods without room. Scored quantifies the resulting
// cost.
type Scored struct {
	// Pending is the number of pods that new nodes could help but that stay pending.
	Pending int `json:"pending"`
	// Nodes lists the nodes to buy for these pods in addition to the plan's nodes, and Hour is
	// their cost.
	Nodes []Node  `json:"nodes"`
	Hour  float64 `json:"costPerHour"`
	// Left lists the pods with a node in the plan that stay pending even with these additional
	// nodes.
	Left []Waiting `json:"left"`
}

// Score adds the plan's nodes to a world equal to the plan's initial world, lets the scheduler
// place all pods, and buys nodes for the remaining ones. It sets p.Scored, and does not change the
// rest of the plan.
func (p *Plan) Score(w *simulate.World, o Options) error {
	m := newMaker(w, p.catalog, o)
	m.scored = true
	var made []metav1.Object
	for _, n := range p.Nodes {
		made = append(made, p.catalog.Offers[n.offer].named(n.Name, w))
		m.bought, m.named[n.Name] = append(m.bought, n.offer), true
	}

	if _, err := w.Apply(manifest.Assemble("the plan", made)); err != nil {
		return err
	}
	w.Settle()

	// Pods that are also pending in the plan are not attributed to the scores.
	before := p.pendingNames()
	scored := &Scored{Nodes: []Node{}, Left: []Waiting{}}
	for _, pod := range m.pending() {
		if !before[simulate.Name{Namespace: pod.Namespace(), Name: pod.Name}] {
			scored.Pending++
		}
	}

	if scored.Pending > 0 {
		more, err := m.make()
		if err != nil {
			return err
		}
		scored.Nodes, scored.Hour = more.Nodes, more.Hour
		for _, waiting := range more.Pending {
			if !before[simulate.Name{Namespace: waiting.Namespace, Name: waiting.Name}] {
				scored.Left = append(scored.Left, waiting)
			}
		}
	}

	p.Scored = scored
	return w.Err()
}

// pendingNames returns the pods that stay pending in the plan.
func (p *Plan) pendingNames() map[simulate.Name]bool {
	names := map[simulate.Name]bool{}
	for _, waiting := range p.Pending {
		names[simulate.Name{Namespace: waiting.Namespace, Name: waiting.Name}] = true
	}
	return names
}
