package plugins

import (
	"context"
	"fmt"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// Extender is asked about many nodes at once: those that all filters let pass. It stands for
// another process, so a pod that it is interested in is decided node by node, and no faster than it
// answers.
type Extender interface {
	Name() string
	// Interested reports whether the extender is to be asked about the pod.
	Interested(p *cluster.Pod) bool
	// Filter returns the nodes that it rejects, and why. A rejection without reasons is not counted
	// in messages.
	Filter(c *cluster.Cluster, p *cluster.Pod, nodes []*cluster.Node) (map[*cluster.Node]*Rejection, error)
	// Score returns what to add to each node's total, in the order of the nodes; nil adds nothing.
	// Its only error is an Aside.
	Score(c *cluster.Cluster, p *cluster.Pod, nodes []*cluster.Node) ([]int64, error)
	// Spare filters the places where preemption could make room, and may name other victims for
	// them.
	Spare(c *cluster.Cluster, p *cluster.Pod, places []Place) ([]Place, error)
}

// Aside is the error of a question that has not been answered yet, and for which the goroutine that
// decides must not wait: Ask gets the answer on any goroutine. Then the pod is decided again, with
// the Answers in its Attempt.
type Aside struct {
	Whom    string
	Ask     func(ctx context.Context)
	Answers any
	// Done, if set, is called when Ask has returned, by the goroutine that decides.
	Done func()
}

// Error implements error.
func (a *Aside) Error() string { return fmt.Sprintf("%s was not asked yet", a.Whom) }

// Preparer is a plugin that computes something about a pod, which may take long, before the pod is
// decided.
type Preparer interface {
	// Prepare returns the question to ask aside first, which has no answers; nil if there is none.
	Prepare(c *cluster.Cluster, p *cluster.Pod) *Aside
	// Forget forgets what was prepared. Then Prepare depends on nothing but what the plugin is
	// asked from now on.
	Forget()
}

// ExtenderName stands for all extenders in the list of plugins that reject a pod, as upstream.
const ExtenderName = "Extender"

// Place is a node with the pods that would have to leave it, the most important first.
type Place struct {
	Node       *cluster.Node
	Victims    []*cluster.Pod
	Violations int // of disruption budgets
}
