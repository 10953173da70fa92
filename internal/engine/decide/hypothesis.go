// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// precedes reports whether the plugin that rejects a group of nodes precedes the plugin that
// rejects some of these nodes because of their pods.
func (pl *plan) precedes(plugin string, own *reason) bool {
	return plugin != "" && !pl.usualOrder && pl.stepOf(plugin) < pl.stepOf(own.plugin)
}

// hypothesis is a node with some of its pods hypothetically removed.
//
// It works on a copy of the node and on separate counts, and does not change the cluster or the
// ranking. Adding and removing the same pod restores the previous state.
type hypothesis struct {
	r *ranking
	p *cluster.Pod

	// questions holds the judges of the asked filters; questions.judges is nil if there are no
	// asked filters, or if they are ignored. plain holds the judges of all filters, prepared on
	// first use for the unmodified cluster.
	questions questions
	profile   *plugins.Profile // set with questions
	plain     *judges

	node   *cluster.Node // copy of the node
	counts domainCounts
	static *static
	guests []*cluster.Pod // pods nominated to the node; p must leave room for them
	judged int            // number of potential victims of the last node examined
}

// beginNode starts a hypothesis with an unmodified node. It copies the counts from the tallies, so
// the hypothesis is valid only until the ranking changes.
func (t *hypothesis) beginNode(n *cluster.Node) {
	r := t.r
	t.node = n.Copy(t.node)
	t.static = r.statics[r.groups[r.groupAt(n.Index)].key.static]
	t.guests = nominatedBefore(n, t.p)
	t.counts.fitTallies(len(r.tallies))
	for k, tally := range r.tallies {
		domain := tally.topology.domain[n.Index]
		t.counts.none[k], t.counts.count[k], t.counts.shift[k] = domain == none, 0, 0
		if domain != none {
			t.counts.count[k] = tally.count[domain]
		}
	}
}

func (t *hypothesis) addPod(o *cluster.Pod)    { t.node.Add(o); t.countPod(o, 1) }
func (t *hypothesis) removePod(o *cluster.Pod) { t.node.Take(o); t.countPod(o, -1) }

// countPod counts a pod of the hypothesis in the domains of its node only. The tallies remain
// unchanged: shift is the difference from their counts, for comparisons with other domains.
func (t *hypothesis) countPod(o *cluster.Pod, sign int64) {
	if len(t.r.tallies) == 0 {
		return
	}
	for _, e := range t.r.effectsOf(o.Class) {
		if t.counts.none[e.tally] {
			continue
		}
		of := t.r.tallies[e.tally]
		if of.parts != nil && of.parts[e.part].domain[t.node.Index] == none {
			continue
		}

		spreads := of.purpose <= spreadSoft
		if spreads && (o.Terminating || !t.r.counted.tallies.tallies(t.node.Index).has(e.tally)) {
			continue
		}

		t.counts.count[e.tally] += sign * e.weight
		t.counts.shift[e.tally] += sign * e.weight
	}
}

// findRejection judges the node of the hypothesis twice: with and without the pods nominated to it.
// It returns the plugin that rejects the node first, and the rejection.
func (t *hypothesis) findRejection() (plugin string, rejection *plugins.Rejection) {
	if len(t.guests) > 0 {
		for _, g := range t.guests {
			t.addPod(g)
		}
		plugin, rejection = t.judgeNode()
		for _, g := range t.guests {
			t.removePod(g)
		}
		if rejection != nil {
			return plugin, rejection
		}
	}
	return t.judgeNode()
}

// judgeNode judges the node of the hypothesis in the order of the profile: events report the first
// rejecting plugin, so a cheaper order would change messages.
func (t *hypothesis) judgeNode() (plugin string, rejection *plugins.Rejection) {
	if t.questions.judges != nil || !t.r.plan.usualOrder {
		return t.judgeInOrder()
	}
	if early := t.static.early; early != nil {
		return early.plugin, early.rejection
	}

	for _, f := range t.r.plan.contents {
		if rejection := f.judge(t.node); rejection != nil {
			return f.name, rejection
		}
	}

	if len(t.r.tallies) > 0 {
		if plugin, rejection := t.r.judgeTallies(&t.counts); rejection != nil {
			return plugin, rejection
		}
	}

	if late := t.static.late; late != nil {
		return late.plugin, late.rejection
	}
	return "", nil
}

// judgeInOrder is the variant of judgeNode for filters in an unusual order and for asked filters,
// which may be at any position.
func (t *hypothesis) judgeInOrder() (plugin string, rejection *plugins.Rejection) {
	for i := range t.r.plan.steps {
		step := &t.r.plan.steps[i]
		plugin = step.name
		switch {
		case step.asked != none:
			if t.questions.judges != nil && t.questions.judges[step.asked] != nil {
				rejection = t.questions.judges[step.asked](t.node)
			}
		case step.judge != nil:
			rejection = step.judge(t.node)
		case plugin == t.r.plan.spreadPlugin:
			rejection = t.r.judgeSpread(&t.counts)
		case plugin == t.r.plan.affinityPlugin:
			rejection = t.r.judgeAffinity(&t.counts)
		}
		if rejection != nil {
			return plugin, rejection
		}
	}

	return "", nil
}
