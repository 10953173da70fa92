// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance

import (
	"cmp"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// renewal is a gauge of the pods to replace, and of the terminal pods to remove.
type renewal struct {
	tally
	ended []*pod
	left  map[*pod]bool // terminal pods not removed yet
}

// currentValue implements gauge: both kinds of pods count alike.
func (r *renewal) currentValue() int64 { return r.sum + int64(len(r.left)) }

// setupRenew sets up the goal of replacing the pods that the policy selects by age, restarts or
// state, and of removing terminal pods.
func (st *strategy) setupRenew() {
	wants := func(p *pod) string {
		object := p.object
		// A policy may look at the phase: a new successor is Pending, but it must be judged in its
		// running state.
		if p.victim != p {
			object = object.DeepCopy()
			object.Status.Phase = v1.PodRunning
		}
		return st.Renew.Wants(object, st.w.now)
	}
	st.gauge = &renewal{left: map[*pod]bool{}, tally: tally{title: cmp.Or(st.Renew.Title, "pods to renew"),
		// Successors count 0 even if the policy would renew them: refusalOf does not begin such
		// moves.
		countOf: func(p *pod, n *cluster.Node) int64 {
			return boolToInt(p.victim == p && st.sees(n) && st.Scope.includesPod(p) && wants(p) != "")
		}}}
	st.renews = true
	st.gain = func(p *pod) int64 { return boolToInt(wants(p) != "") }
	st.says = wants
	if st.Renew.Before != nil {
		st.order = func(a, b *pod) int { return st.Renew.Before(a.object, b.object) }
	}
}

// nominateEnded finds the terminal pods to remove, skipping those on unready nodes, which cannot be
// deleted. The engine's cluster does not have terminal pods on its nodes, so countPod does not
// count them.
func (st *strategy) nominateEnded() {
	g, renews := st.gauge.(*renewal)
	if !renews {
		return
	}
	for _, p := range st.w.ended {
		n := st.w.c.Node(p.object.Spec.NodeName)
		if n != nil && st.sees(n) && st.w.isReady(n) && st.Scope.includesPod(p) && st.says(p) != "" {
			g.ended, g.left[p] = append(g.ended, p), true
		}
	}
	if st.order != nil {
		slices.SortStableFunc(g.ended, st.order)
	}
}
