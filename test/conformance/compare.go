// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// Totals counts the comparisons.
type Totals struct {
	Clusters, Nodes, Pods int
	Verdicts, Rejections  int
	Scores                int
	Messages, Choices     int
	Preemptions, Victims  int
	// Ambiguous counts preemptions in which upstream chooses at random.
	Ambiguous      int
	UpstreamErrors int
	Differences    int
	// OnPurpose counts the differences of each kind in docs/reference/differences.md.
	OnPurpose map[string]int
}

// Add adds o to the counts.
func (t *Totals) Add(o Totals) {
	t.Clusters += o.Clusters
	t.Nodes += o.Nodes
	t.Pods += o.Pods
	t.Verdicts += o.Verdicts
	t.Rejections += o.Rejections
	t.Scores += o.Scores
	t.Messages += o.Messages
	t.Choices += o.Choices
	t.Preemptions += o.Preemptions
	t.Victims += o.Victims
	t.UpstreamErrors += o.UpstreamErrors
	t.Differences += o.Differences
	t.Ambiguous += o.Ambiguous
	for kind, n := range o.OnPurpose {
		t.onPurpose(kind, n)
	}
}

func (t *Totals) onPurpose(kind string, n int) {
	if t.OnPurpose == nil {
		t.OnPurpose = map[string]int{}
	}
	t.OnPurpose[kind] += n
}

func (t Totals) String() string {
	return fmt.Sprintf("%d clusters, %d nodes, %d pods: %d node verdicts (%d rejections), %d scores, %d messages, %d choices, "+
		"%d preemptions with %d victims compared, %d of them by chance; %d differences, and on purpose %v",
		t.Clusters, t.Nodes, t.Pods, t.Verdicts, t.Rejections, t.Scores, t.Messages, t.Choices, t.Preemptions,
		t.Victims, t.Ambiguous, t.Differences, t.OnPurpose)
}

// comparison compares both schedulers, the two sides, in one world.
type comparison struct {
	world    *World
	only     []string
	upstream *upstream
	berth    *berth
	rand     *rand.Rand
	totals   Totals
	found    []Difference
}

// Compare evaluates every pending pod of the world by both schedulers, with the named plugins, or
// with all plugins if none is named.
func Compare(ctx context.Context, w *World, only []string) (Totals, []Difference, error) {
	if len(only) == 0 {
		only = presentPlugins()
	}
	u, err := newUpstream(ctx, w, only)
	if err != nil {
		return Totals{}, nil, fmt.Errorf("seed %d: upstream: %w", w.Seed, err)
	}
	defer u.stop()
	b, err := newBerth(w, only)
	if err != nil {
		return Totals{}, nil, fmt.Errorf("seed %d: berth: %w", w.Seed, err)
	}
	return compareWorld(ctx, w, u, b, only)
}

func compareWorld(ctx context.Context, w *World, u *upstream, b *berth, only []string) (Totals, []Difference, error) {
	c := &comparison{world: w, only: only, upstream: u, berth: b, rand: rand.New(rand.NewPCG(w.Seed, 1))}
	c.totals.Clusters, c.totals.Nodes = 1, len(w.Nodes)
	names := slices.DeleteFunc(Plugins(), func(n string) bool {
		return !slices.Contains(only, n) || slices.Contains(w.Unscored, n) || slices.Contains(w.Unfiltered, n)
	})
	for _, pod := range w.Pending {
		c.totals.Pods++
		c.compareGates(ctx, pod)
		node, state := c.comparePod(ctx, pod)
		// A plugin that runs individually evaluates nodes that it would otherwise skip, and stores
		// state for them. reserveOnBoth must not use that state.
		for _, name := range names {
			c.comparePlugin(ctx, name, pod)
		}
		if err := c.placeOnBoth(ctx, pod, node, state); err != nil {
			return Totals{}, nil, fmt.Errorf("seed %d: %w", w.Seed, err)
		}
	}
	c.totals.Differences = len(c.found)
	return c.totals, c.found, nil
}

func (c *comparison) addDifference(pod *v1.Pod, node, plugin, what, upstream, berth string) {
	c.found = append(c.found, Difference{Seed: c.world.Seed, Pod: pod.Name, Node: node, Plugin: plugin, What: what,
		Upstream: upstream, Berth: berth})
}

// placeOnBoth places the pod on the same node on both sides, and occasionally removes a placed pod.
func (c *comparison) placeOnBoth(ctx context.Context, pod *v1.Pod, node string, state fwk.CycleState) error {
	if !c.world.Sequence {
		return nil
	}
	w := *c.world
	if node != "" {
		placed := pod.DeepCopy()
		placed.Spec.NodeName = node
		if !c.reserveOnBoth(ctx, placed, state) {
			return nil
		}
		w.Placed = append(slices.Clone(w.Placed), placed)
		if err := c.upstream.placePod(ctx, placed); err != nil {
			return err
		}
		c.berth.cluster.Place(c.berth.cluster.Pending(pod), c.berth.cluster.Node(node))
	}

	if i := c.rand.IntN(1 + 4*len(c.world.Placed)); i < len(c.world.Placed) {
		gone := c.world.Placed[i]
		w.Placed = slices.DeleteFunc(slices.Clone(w.Placed), func(p *v1.Pod) bool { return p == gone })
		if err := c.upstream.removePod(ctx, gone); err != nil {
			return err
		}
		c.berth.cluster.RemovePod(gone.UID)
	}

	c.world = &w
	return nil
}

// reserveOnBoth reserves volumes and devices for the pod on both sides, or on neither side if one
// of them fails.
func (c *comparison) reserveOnBoth(ctx context.Context, placed *v1.Pod, state fwk.CycleState) bool {
	status := c.upstream.framework.RunReservePluginsReserve(ctx, state, placed, placed.Spec.NodeName)
	undo, err := c.berth.reserveFor(placed)
	if status.IsSuccess() && err == nil {
		return true
	}
	if status.IsSuccess() != (err == nil) {
		c.addDifference(placed, placed.Spec.NodeName, "", "reserve", status.Message(), fmt.Sprint(err))
	}
	if !status.IsSuccess() {
		c.upstream.framework.RunReservePluginsUnreserve(ctx, state, placed, placed.Spec.NodeName)
	}
	undo()
	return false
}

// comparePlugin compares one plugin individually, so that rejections or scores by other plugins do
// not hide its result.
func (c *comparison) comparePlugin(ctx context.Context, name string, pod *v1.Pod) {
	want, state := c.upstream.filterByPlugin(ctx, name, pod)
	waiting := c.berth.cluster.Pending(pod)
	got := c.berth.filterNodes(name, waiting)
	if want.All.inFlight() {
		c.totals.onPurpose(allocatedAtOnce, 1)
		return
	}
	if !want.All.equal(got.All) {
		c.addDifference(pod, "", name, "prefilter", "all "+want.All.String(), "all "+got.All.String())
		return
	}
	if want.All != nil {
		c.totals.Verdicts++
		c.totals.Rejections++
		return
	}
	if u, b := c.knownNodes(want.Only), c.knownNodes(got.Only); u != b {
		c.addDifference(pod, "", name, "prefilter nodes", u, b)
		return
	}
	var passed []fwk.NodeInfo
	for _, node := range c.upstream.nodes {
		nodeName := node.Node().Name
		if want.Only != nil && !want.Only.Has(nodeName) {
			continue
		}
		u, b := want.Nodes[nodeName], got.Nodes[nodeName]
		c.totals.Verdicts++
		if !u.equal(b) {
			c.addDifference(pod, nodeName, name, "filter", u.String(), b.String())
		}
		switch {
		case u == nil:
			passed = append(passed, node)
		case u.Failed:
			c.totals.UpstreamErrors++
		default:
			c.totals.Rejections++
		}
	}
	c.compareScores(ctx, name, pod, waiting, state, passed)
	if len(passed) > 3 && c.rand.IntN(3) == 0 {
		// Also compare the scores of a random subset: in a full attempt, other plugins reduce the
		// set of nodes, which changes the minimum and maximum for normalisation.
		c.compareScores(ctx, name, pod, waiting, state,
			slices.DeleteFunc(slices.Clone(passed), func(fwk.NodeInfo) bool { return c.rand.IntN(2) == 0 }))
	}
}

// knownNodes formats the names in a set that belong to existing nodes.
func (c *comparison) knownNodes(names sets.Set[string]) string {
	if names == nil {
		return "all"
	}
	known := slices.DeleteFunc(slices.Sorted(maps.Keys(names)), func(name string) bool { return c.berth.cluster.Node(name) == nil })
	return fmt.Sprintf("[%s]", strings.Join(known, " "))
}

func (c *comparison) compareScores(ctx context.Context, name string, pod *v1.Pod, waiting *cluster.Pod, state fwk.CycleState,
	passed []fwk.NodeInfo) {
	if len(passed) < 2 {
		return
	}
	nodes := make([]*cluster.Node, len(passed))
	for i, n := range passed {
		nodes[i] = c.berth.cluster.Node(n.Node().Name)
	}

	want := c.upstream.scoreByPlugin(ctx, name, state, pod, passed)
	got := c.berth.scoreNodes(name, waiting, nodes)
	if want.isZero() && got.isZero() {
		return
	}
	if want.Failed != got.Failed || want.Skipped != got.Skipped {
		c.addDifference(pod, "", name, "scoring", want.describe(), got.describe())
		return
	}

	if want.Failed {
		c.totals.UpstreamErrors++
		return
	}

	for i, score := range want.Scores {
		c.totals.Scores++
		if score != got.Scores[i] {
			c.addDifference(pod, nodes[i].Name, name, "score", fmt.Sprint(score), fmt.Sprint(got.Scores[i]))
		}
	}
}

// isZero reports whether the plugin gives every node the score 0, as if it were not enabled.
func (s Scoring) isZero() bool {
	return !s.Failed && !slices.ContainsFunc(s.Scores, func(score int64) bool { return score != 0 })
}

func (s Scoring) describe() string {
	switch {
	case s.Failed:
		return "error: " + s.Err
	case s.Skipped:
		return "skipped"
	}
	return fmt.Sprint(s.Scores)
}
