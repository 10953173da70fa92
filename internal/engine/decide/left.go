// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import "github.com/berth-k8s/berth/internal/engine/decide/effort"

// askNodes runs the questions on the nodes with room, in parallel, and returns the nodes that
// remain feasible. It also runs the questions on infeasible nodes if a question precedes the filter
// that rejects them, because an error of that question makes the attempt fail.
func (r *ranking) askNodes(q questions) (left []int32, failed bool) {
	nodes := r.space.asked[:0]
	for i, bucket := range r.bucket {
		if bucket >= 0 || bucket > ^settled && r.plan.asksEarly {
			nodes = append(nodes, int32(i))
		}
	}

	r.space.asked = nodes
	r.ix.meter.Work += effort.CostOfPod(r.plan.example) * len(nodes)
	before := make([]int, len(r.groups))
	for i, g := range r.groups {
		if before[i] = len(r.plan.steps); g.ok > 0 && !g.feasible || g.ok == 0 && r.plan.asksEarly {
			if plugin, rejection := r.judgeGroup(g); rejection != nil {
				before[i] = r.plan.stepOf(plugin)
			}
		}
	}

	verdicts := make([]verdict, len(nodes))
	askAll(len(nodes), q.again, func(i int) {
		group, bucket := r.groupAt(nodes[i]), r.bucket[nodes[i]]
		step := before[group]
		if bucket < 0 {
			step = min(step, r.plan.stepOf(r.reasons.list[reasonIn(bucket)].plugin))
		}
		switch rejection := q.askBefore(r.plan, step, r.ix.c.Nodes[nodes[i]]); {
		case rejection != nil && rejection.Err != nil:
			verdicts[i] = fails
		case rejection == nil && bucket >= 0 && r.groups[group].feasible:
			verdicts[i] = passes
		default:
			verdicts[i] = rejects
		}
	})

	left = nodes[:0]
	for i, v := range verdicts {
		switch v {
		case fails:
			return nil, true
		case passes:
			left = append(left, nodes[i])
		}
	}

	return left, false
}

type verdict uint8

const (
	rejects verdict = iota
	passes
	fails
)

// scoreNodes computes the scores that the ranking would assign if only these nodes were feasible.
func (r *ranking) scoreNodes(nodes []int32) []int64 {
	ok := make([]int32, len(r.groups))
	for i, g := range r.groups {
		ok[i], g.ok = g.ok, 0
	}

	for _, node := range nodes {
		r.groups[r.groupAt(node)].ok++
	}
	r.weighSpread(r.weighConstraints(nodes))
	b := r.findBounds()
	fixed := make([]int64, len(r.groups))

	for i, g := range r.groups {
		if g.ok > 0 {
			fixed[i] = r.fixedScore(g, &b)
		}
		g.ok = ok[i]
	}

	totals := make([]int64, len(nodes))
	for i, node := range nodes {
		totals[i] = fixed[r.groupAt(node)] + int64(r.bucket[node])
	}
	return totals
}
