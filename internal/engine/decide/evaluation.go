// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"cmp"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// Evaluation is the verdict of all plugins on a pod, for every node.
type Evaluation struct {
	// Err is the reason why the pod could not be judged. If it is set, all other fields are unset.
	Err error
	// Rejector is the plugin that rejected the pod as a whole, before any node was considered.
	// Rejection is its rejection, repeated in all entries of Nodes.
	Rejector  string
	Rejection *plugins.Rejection
	// Nodes holds the verdict on every node, in the order of the nodes' indices in the cluster.
	Nodes []NodeVerdict
	// Feasible counts the nodes that can take the pod.
	Feasible int
}

// NodeVerdict is the verdict of all plugins on a pod and a node.
type NodeVerdict struct {
	Node *cluster.Node
	// Plugin is the first plugin to reject the node, and Rejection is its rejection; "" and nil if
	// the node can take the pod.
	Plugin    string
	Rejection *plugins.Rejection
	// Scores are the plugins' scores times their weights, in the order of the profile, and Total is
	// their sum. They are empty if only one node is feasible.
	Scores []Score
	Total  int64
	// Fine is the sum of the fine scores. It breaks ties among nodes with the same total; see
	// plugins.Scoring.
	Fine int64
}

// Score is a plugin's normalized score times its weight.
type Score struct {
	Plugin string
	Score  int64
}

// Best returns the feasible verdicts with the highest total.
func (e *Evaluation) Best() []*NodeVerdict {
	var best []*NodeVerdict
	for i := range e.Nodes {
		v := &e.Nodes[i]
		if v.Rejection != nil {
			continue
		}
		if len(best) > 0 && v.Compare(best[0]) > 0 {
			best = best[:0]
		}
		if len(best) == 0 || v.Compare(best[0]) == 0 {
			best = append(best, v)
		}
	}
	return best
}

// Compare orders verdicts on feasible nodes: better ones are greater.
func (v *NodeVerdict) Compare(o *NodeVerdict) int {
	return cmp.Or(cmp.Compare(v.Total, o.Total), cmp.Compare(v.Fine, o.Fine))
}

// Verdict returns the verdict on one node, or nil.
func (e *Evaluation) Verdict(node *cluster.Node) *NodeVerdict {
	for i := range e.Nodes {
		if e.Nodes[i].Node == node {
			return &e.Nodes[i]
		}
	}
	return nil
}

// Decision is the node for a pod, if there is one.
type Decision struct {
	// Node is nil if no node can take the pod; Diagnose reports the reasons.
	Node *cluster.Node
	// Total is the node's score, or 0 for the only feasible node or the nominated node.
	Total int64
	// Feasible counts the feasible nodes among those examined.
	Feasible int
	// Err is the reason why the pod could not be judged.
	Err error
}

// decisionBy chooses one of the best nodes.
func (e *Evaluation) decisionBy(t *tie) Decision {
	if e.Err != nil || e.Feasible == 0 {
		return Decision{Err: e.Err}
	}
	best := e.Best()
	v := best[t.draw(len(best))]
	for _, other := range best {
		if other.Node.Index == t.preferred {
			v = other
		}
	}
	return Decision{Node: v.Node, Total: v.Total, Feasible: e.Feasible}
}

// isInterested reports whether an extender is interested in the pod.
func isInterested(profile *plugins.Profile, p *cluster.Pod) bool {
	return slices.ContainsFunc(profile.Extenders, func(x plugins.Extender) bool { return x.Interested(p) })
}

// extenderRejections calls the extenders in sequence, each with the nodes not yet rejected.
func extenderRejections(j *judges, nodes []*cluster.Node) (map[*cluster.Node]*plugins.Rejection, error) {
	rejected := map[*cluster.Node]*plugins.Rejection{}
	for _, x := range j.profile.Extenders {
		if len(nodes) == 0 || !x.Interested(j.p) {
			continue
		}
		more, err := x.Filter(j.c, j.p, nodes)
		if err != nil {
			return nil, err
		}
		left := make([]*cluster.Node, 0, len(nodes))
		for _, n := range nodes {
			if r := more[n]; r != nil {
				rejected[n] = r
			} else {
				left = append(left, n)
			}
		}
		nodes = left
	}

	return rejected, nil
}

// askExtenders calls the extenders and records their rejections.
func (e *Evaluation) askExtenders(j *judges) {
	if e.Feasible == 0 || !isInterested(j.profile, j.p) {
		return
	}
	var nodes []*cluster.Node
	for i := range e.Nodes {
		if e.Nodes[i].Rejection == nil {
			nodes = append(nodes, e.Nodes[i].Node)
		}
	}

	rejected, err := extenderRejections(j, nodes)
	if err != nil {
		*e = Evaluation{Err: err}
		return
	}

	for i := range e.Nodes {
		if v := &e.Nodes[i]; v.Rejection == nil && rejected[v.Node] != nil {
			v.Plugin, v.Rejection = plugins.ExtenderName, rejected[v.Node]
			e.Feasible--
		}
	}
}

func addExtenderScores(c *cluster.Cluster, profile *plugins.Profile, p *cluster.Pod, feasible []*cluster.Node,
	verdicts []*NodeVerdict) error {
	for _, x := range profile.Extenders {
		if !x.Interested(p) {
			continue
		}
		scores, err := x.Score(c, p, feasible)
		if err != nil {
			return err
		}
		for i, score := range scores {
			verdicts[i].Scores = append(verdicts[i].Scores, Score{x.Name(), score})
			verdicts[i].Total += score
		}
	}
	return nil
}
