// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

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
