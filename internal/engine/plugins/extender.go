// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"context"
	"fmt"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// Extender judges all nodes passed by the filters in bulk. It represents another process, so a pod
// of interest to the extender is decided node by node, no faster than the response time of that
// process.
type Extender interface {
	Name() string
	// Interested reports whether the extender must be called for the pod.
	Interested(p *cluster.Pod) bool
	// Filter returns the rejected nodes and the reasons. Messages do not count a rejection without
	// reasons.
	Filter(c *cluster.Cluster, p *cluster.Pod, nodes []*cluster.Node) (map[*cluster.Node]*Rejection, error)
	// Score returns the addition to each node's total, in the order of the nodes; nil adds nothing.
	// Its only error is a PendingQuery.
	Score(c *cluster.Cluster, p *cluster.Pod, nodes []*cluster.Node) ([]int64, error)
	// Spare filters the places for preemption, and may replace their victims.
	Spare(c *cluster.Cluster, p *cluster.Pod, places []Place) ([]Place, error)
}

// PendingQuery is the error of a pending query, for which the deciding goroutine must not wait. Run
// obtains the result on any goroutine. The pod is then decided again, with the Answers in its
// Attempt.
type PendingQuery struct {
	Target  string
	Run     func(ctx context.Context)
	Answers any
	// Done, if set, is called by the deciding goroutine after Run returned.
	Done func()
}

// Error implements error.
func (a *PendingQuery) Error() string { return fmt.Sprintf("%s was not asked yet", a.Target) }

// Preparer is a plugin with a computation about a pod, possibly slow, that precedes the decision.
type Preparer interface {
	// Prepare returns the query to run before the decision, outside the deciding goroutine, or nil.
	// Its Answers are empty.
	Prepare(c *cluster.Cluster, p *cluster.Pod) *PendingQuery
	// Forget discards prepared results. Prepare then depends only on later calls of the plugin.
	Forget()
}

// ExtenderName represents all extenders in the list of plugins rejecting a pod, as in upstream.
const ExtenderName = "Extender"

// Place is a node and the victims to evict from it, ordered from the most important.
type Place struct {
	Node       *cluster.Node
	Victims    []*cluster.Pod
	Violations int // number of violated disruption budgets
}
