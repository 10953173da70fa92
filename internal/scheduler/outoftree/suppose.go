// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package outoftree

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// supposition makes hypothetical changes of the pods in the cluster, and undoes them. With over,
// readers of the log do not see the changes, because they are removed from the log again (package
// cluster's Supposing). The changes must be undone on the same goroutine, before anything else
// reads the cluster.
type supposition struct {
	c    *cluster.Cluster
	over func()   // from Supposing; nil: readers of the log see the changes
	back []func() // undo functions, in the order of the changes
}

// undoAll undoes the changes, the last one first, and ends the supposition.
func (s *supposition) undoAll() {
	for _, back := range slices.Backward(s.back) {
		back()
	}
	if s.over != nil {
		s.over()
	}
}

// holdPods makes a node have exactly the pods of info: it removes all other pods, and adds the
// missing ones as guests.
func (s *supposition) holdPods(n *cluster.Node, info fwk.NodeInfo) {
	wanted := map[string]*v1.Pod{}
	for _, p := range info.GetPods() {
		wanted[string(p.GetPod().UID)] = p.GetPod()
	}
	for _, p := range slices.Clone(n.Pods) {
		if _, stays := wanted[string(p.UID())]; !stays {
			s.removePod(p)
		}
		delete(wanted, string(p.UID()))
	}
	for _, p := range info.GetPods() {
		if pod := wanted[string(p.GetPod().UID)]; pod != nil {
			s.addGuest(pod, n)
		}
	}
}

// applyMove makes a plugin's hypothetical change of another node. It does nothing if the node was
// deleted, or already has the result of the change.
func (s *supposition) applyMove(m move) {
	n := s.c.Node(m.node)
	if n == nil {
		return
	}
	i := slices.IndexFunc(n.Pods, func(p *cluster.Pod) bool { return p.UID() == m.pod.UID })
	switch {
	case m.there && i < 0:
		s.addGuest(m.pod, n)
	case !m.there && i >= 0:
		s.removePod(n.Pods[i])
	}
}

// removePod removes a pod from its node until undoAll.
func (s *supposition) removePod(p *cluster.Pod) {
	n := p.Node
	if s.c.Pod(p.UID()) != p { // it is only a guest
		s.c.Leave(p)
		s.back = append(s.back, func() { s.c.Visit(p, n) })
		return
	}
	s.c.RemovePod(p.UID())
	s.back = append(s.back, func() { s.c.Place(p, n) })
}

// addGuest counts a pod on the node until undoAll. The pod may also be placed on another node.
func (s *supposition) addGuest(pod *v1.Pod, n *cluster.Node) {
	guest := s.c.Visit(s.c.Pending(pod), n)
	s.back = append(s.back, func() { s.c.Leave(guest) })
}

// scoring is one run of all scorers for a plugin calling back. The lists infos, nodes and totals
// are in the same order.
type scoring struct {
	c       *cluster.Cluster
	ctx     context.Context
	state   *State
	pod     *v1.Pod
	waiting *cluster.Pod
	infos   []fwk.NodeInfo
	nodes   []*cluster.Node
	totals  []fwk.NodePluginScores
}

// addScorer runs one scorer, and adds its weighted scores to the totals. A scorer without scores
// adds nothing.
func (a *scoring) addScorer(s plugins.Weighted) error {
	var scores []int64
	var err error
	switch own := s.Scorer.(type) {
	case preScorer: // the plugin itself calls RunPreScorePlugins
		return nil
	case *scorer:
		if a.state.skipScore.Has(own.Name()) {
			return nil
		}
		scores, err = a.fromOutside(own)
	default:
		scores, _, err = decide.ScoresOf(own, a.c, a.waiting, a.nodes)
	}

	for i := range scores {
		weighted := scores[i] * s.Weight
		a.totals[i].Scores = append(a.totals[i].Scores, fwk.PluginScore{Name: s.Scorer.Name(), Score: weighted})
		a.totals[i].TotalScore += weighted
	}
	return err
}

// fromOutside runs an out-of-tree scorer on the NodeInfos passed by the caller, which may be
// hypothetical.
func (a *scoring) fromOutside(s *scorer) ([]int64, error) {
	scores := make([]int64, len(a.infos))
	for i, info := range a.infos {
		score, status := s.plugin.Score(a.ctx, a.state, a.pod, info)
		if !status.IsSuccess() {
			return nil, fmt.Errorf("running Score plugins: plugin %q failed with: %w", s.Name(), statusError(status, "Score"))
		}
		scores[i] = score
	}
	return scores, s.normalizeScores(a.ctx, a.state, a.pod, a.nodes, scores)
}
