package provision

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// Scored is what happens on the nodes of a plan where the scheduler chooses among them by its
// scores, in the order of its queue, instead of being told.
//
// A plan fits pods tightly, and each is told its node. A scheduler that chooses by scores, whose
// defaults spread pods, may leave large ones without room. This says how much that costs.
type Scored struct {
	// Pending is how many of the pods that new nodes help are left without a node.
	Pending int `json:"pending"`
	// Nodes are those to buy beside the plan's so that they run, too, and Hour what these cost.
	Nodes []Node  `json:"nodes"`
	Hour  float64 `json:"costPerHour"`
	// Left are the pods that stay pending with these, too, and that have a node in the plan.
	Left []Waiting `json:"left"`
}

// Score adds the plan's nodes to a world that is as the plan's was before, lets the scheduler place
// all pods, and buys nodes for what it leaves. It sets p.Scored, and changes nothing else of the
// plan.
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

	// Pods that stay pending in the plan, too, are not counted against the scores.
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

// pendingNames are the pods that stay pending in the plan.
func (p *Plan) pendingNames() map[simulate.Name]bool {
	names := map[simulate.Name]bool{}
	for _, waiting := range p.Pending {
		names[simulate.Name{Namespace: waiting.Namespace, Name: waiting.Name}] = true
	}
	return names
}
