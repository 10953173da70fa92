// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance

import (
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// leaving is the victim of a move that is being judged for each possible node. From the first
// judged node until undo, the gauges do not count the pod on its own node. The cluster itself is
// not changed.
type leaving struct {
	*world
	p, next *pod
	from    *cluster.Node
	before  []int64 // the gauges with the pod on its node; nil while they still count it
}

// countGone removes the pod from the gauges.
func (l *leaving) countGone() {
	if l.before != nil {
		return
	}
	l.before = l.gaugeValues()
	l.hard.watchGroups()
	for _, g := range l.gauges {
		g.countPod(l.p, l.from, -1)
	}
}

// undo adds the pod to the gauges again.
func (l *leaving) undo() {
	if l.before == nil {
		return
	}
	for _, g := range l.gauges {
		g.countPod(l.p, l.from, 1)
	}
	l.hard.touched = nil
}

// judgeNode counts a move to one node in the gauges, undoes it, and returns the gauges after the
// move. It does not check whether the successor fits, because the scheduler has already decided
// that.
func (l *leaving) judgeNode(n *cluster.Node, is requirements) ([]int64, proof) {
	// A pod to be renewed may return to its node: only a new pod is wanted.
	if !is.renews {
		if n == l.from || slices.Contains(l.p.been, n.Name) {
			return nil, refuseMove(ReturnsToSameNode, "the scheduler may put it on %s again", n.Name)
		}
		if is.allowed != nil && !is.allowed(n) {
			return nil, refuseMove(NoBetterNode, "%s is no better", n.Name)
		}
	}

	if why := l.whyUnfit(n, is.settled); why != "" {
		return nil, refuseMove(NoBetterNode, "%s %s", n.Name, why)
	}
	l.countGone()
	for _, g := range l.gauges {
		g.countPod(l.next, n, 1)
	}
	before, after, raised := l.before, l.gaugeValues(), l.hard.worstRaised()
	for _, g := range l.gauges {
		g.countPod(l.next, n, -1)
	}

	if raised != nil {
		return after, refuseMove(NoBetterNode, "on %s it would violate the %s", n.Name, raised.text)
	}
	// Only the gauges before the goal's own are protected. Later ones are less important, and may
	// rise.
	for i := range is.gauge {
		if after[i] > before[i] {
			return after, refuseMove(Contradiction, "on %s it would raise %s from %d to %d", n.Name,
				l.gauges[i].gaugeName(), before[i], after[i])
		}
	}

	lowered, kept := before[is.gauge]-after[is.gauge] >= max(1, is.least), after[is.gauge] <= before[is.gauge]
	switch {
	case !lowered && !(is.within && kept) && after[is.gauge] < before[is.gauge]:
		return after, refuseMove(NoBetterNode, "%s would lower %s by only %d, and at least %d is required", n.Name,
			l.gauges[is.gauge].gaugeName(), before[is.gauge]-after[is.gauge], is.least)
	case !lowered && !(is.within && kept):
		return after, refuseMove(NoBetterNode, "%s is no better", n.Name)
	}
	return after, proof{}
}

// gaugeValues returns the current value of each gauge. Such slices are compared lexicographically,
// because the gauges are in the order of the policy's goals.
func (w *world) gaugeValues() []int64 {
	return rules.Mapped(w.gauges, gauge.currentValue)
}
