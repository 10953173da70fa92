// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// appliesTo reports whether a filter or scorer can have any effect on the pod.
func appliesTo(plugin any, c *cluster.Cluster, p *cluster.Pod) bool {
	s, ok := plugin.(plugins.Selective)
	return !ok || s.Applies(c, p)
}

// questions holds the judges of a plan's asked filters, for one pod.
type questions struct {
	judges []judge       // by plan.asked; an element is nil if the filter passes all nodes; the list is nil without asked filters
	surely []surely      // see plugins.Judge
	again  []func() bool // see plugins.Judge
	// releasing is set if the removal of pods also releases claims; see plugins.Judge.
	releasing func(n *cluster.Node) bool
}

type surely = func(n *cluster.Node) bool

// questionsFor prepares the judges of the asked filters. ok is false if any filter fails, rejects
// the pod on all nodes, or restricts the pod to nodes by name.
func (pl *plan) questionsFor(c *cluster.Cluster, p *cluster.Pod) (q questions, ok bool) {
	for _, a := range pl.asked {
		judge := a.filter.Filter(c, p)
		if judge.Again != nil {
			q.again = append(q.again, judge.Again)
		}
		if judge.Err != nil || judge.All != nil || judge.Only != nil {
			return questions{}, false
		}
		if judge.Releasing != nil {
			q.releasing = judge.Releasing
		}
		q.judges, q.surely = append(q.judges, judge.Node), append(q.surely, judge.Surely)
	}
	return q, true
}

// askBefore runs the questions that precede a step of the plan on a node, and returns the first
// rejection.
func (q questions) askBefore(pl *plan, before int, n *cluster.Node) *plugins.Rejection {
	for i, judge := range q.judges {
		if judge != nil && pl.asked[i].step < before {
			if rejection := judge(n); rejection != nil {
				return rejection
			}
		}
	}
	return nil
}
