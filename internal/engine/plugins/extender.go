package plugins

import (
	"context"
	"fmt"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// Extender is asked about many nodes at once: those that all filters let pass. It stands for a
// process of its own, so that a pod that it is interested in is decided node by node and no faster
// than it answers.
type Extender interface {
	Name() string
	// Interested tells whether the extender has a say in where the pod goes.
	Interested(p *cluster.Pod) bool
	// Filter says why it rejects nodes; those that are not in the answer pass. A rejection without
	// reasons is counted nowhere.
	Filter(c *cluster.Cluster, p *cluster.Pod, nodes []*cluster.Node) (map[*cluster.Node]*Rejection, error)
	// Score returns what is added to each node's total, in the order of the nodes; nil adds
	// nothing. Its only error is an Aside.
	Score(c *cluster.Cluster, p *cluster.Pod, nodes []*cluster.Node) ([]int64, error)
	// Spare looks at where preemption could make room, and returns what is left of that, with other
	// victims where it knows better.
	Spare(c *cluster.Cluster, p *cluster.Pod, places []Place) ([]Place, error)
}

// Aside is the error of a question whose answer is not there yet, and that is not to be waited for
// by whoever decides: Ask gets the answer, on any goroutine. Then the pod is decided anew, with the
// Answers in its Attempt.
type Aside struct {
	Whom    string
	Ask     func(ctx context.Context)
	Answers any
}

// Error says that it was not answered.
func (a *Aside) Error() string { return fmt.Sprintf("%s was not asked yet", a.Whom) }

// ExtenderName stands for all extenders among the plugins that reject a pod, as upstream has it.
const ExtenderName = "Extender"

// Place is a node with the pods that would have to leave it, the most important first.
type Place struct {
	Node       *cluster.Node
	Victims    []*cluster.Pod
	Violations int // of disruption budgets
}
