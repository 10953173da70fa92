// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package outoftree

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/engine/decide"
)

// onlyScoring is a profile that leaves the decision between nodes to the test's plugins.
const onlyScoring = "plugins: {multiPoint: {enabled: [{name: A, weight: 3}, {name: B}]}, score: {disabled: [{name: NodeResourcesFit}, " +
	"{name: NodeResourcesBalancedAllocation}, {name: ImageLocality}, {name: TaintToleration}, {name: NodeAffinity}, {name: PodTopologySpread}, " +
	"{name: InterPodAffinity}, {name: VolumeBinding}, {name: DynamicResources}]}}"

func TestScoresAreNormalisedAndWeighted(t *testing.T) {
	a := &fakePlugin{name: "A", quiet: true, score: preferring("n1"), normalize: func(scores fwk.NodeScoreList) *fwk.Status {
		for i := range scores {
			if scores[i].Name != "n1" && scores[i].Name != "n2" {
				return fwk.AsStatus(errors.New("a score without its node"))
			}
			scores[i].Score = 100 - scores[i].Score
		}
		return nil
	}}
	b := &fakePlugin{name: "B", quiet: true, score: func(fwk.CycleState, fwk.NodeInfo) (int64, *fwk.Status) { return 7, nil }}
	f := newConfigured(t, onlyScoring, a, b)
	f.node("n1", 4)
	f.node("n2", 4)
	attempt, got := f.decide(pod("p", "1"))
	f.expect("node", got, "n2")
	f.expect("calls", f.taken(), "A PreFilter p; B PreFilter p; A PreScore 2; B PreScore 2; A NormalizeScore")
	e := f.decider.Plain().Evaluate(attempt.Waiting)
	f.expect("scores", describe(e), "n1: A 0, B 7, total 7; n2: A 300, B 7, total 307")
}

func describe(e *decide.Evaluation) string {
	var nodes []string
	for i := range e.Nodes {
		v := &e.Nodes[i]
		line := v.Node.Name + ": "
		for _, s := range v.Scores {
			line += s.Plugin + " " + fmt.Sprint(s.Score) + ", "
		}
		nodes = append(nodes, line+"total "+fmt.Sprint(v.Total))
	}
	return strings.Join(nodes, "; ")
}

func TestASingleFeasibleNodeIsNotScored(t *testing.T) {
	f := newConfigured(t, onlyScoring, &fakePlugin{name: "A"}, &fakePlugin{name: "B"})
	f.node("n1", 4)
	_, got := f.decide(pod("p", "1"))
	f.expect("node", got, "n1")
	f.expect("calls", f.taken(), "A PreFilter p; B PreFilter p; A Filter n1 ; B Filter n1 ")
}

// TestStatusesOfScoring verifies that failures are errors with upstream's messages.
func TestStatusesOfScoring(t *testing.T) {
	broken := fwk.AsStatus(errors.New("broken"))
	for _, c := range []struct {
		name   string
		plugin fakePlugin
		want   string
	}{
		{"PreScore skip leaves out Score", fakePlugin{preScore: func(fwk.CycleState, []fwk.NodeInfo) *fwk.Status { return fwk.NewStatus(fwk.Skip) }, score: failing}, "n2"},
		{"PreScore error", fakePlugin{preScore: func(fwk.CycleState, []fwk.NodeInfo) *fwk.Status { return broken }}, `error: running PreScore plugin "A": broken`},
		{"PreScore rejection", fakePlugin{preScore: func(fwk.CycleState, []fwk.NodeInfo) *fwk.Status { return fwk.NewStatus(fwk.Unschedulable, "no") }},
			`error: running PreScore plugin "A": no`},
		{"Score error", fakePlugin{score: failing}, `error: running Score plugins: plugin "A" failed with: broken`},
		{"Normalize error", fakePlugin{normalize: func(fwk.NodeScoreList) *fwk.Status { return broken }},
			`error: running Normalize on Score plugins: plugin "A" failed with: broken`},
		{"too high", fakePlugin{score: constantly(101)}, `error: applying score defaultWeights on Score plugins: plugin "A" returns an invalid score 101, ` +
			`it should in the range of [0, 100] after normalizing`},
		{"too low", fakePlugin{score: constantly(-1)}, `error: applying score defaultWeights on Score plugins: plugin "A" returns an invalid score -1, ` +
			`it should in the range of [0, 100] after normalizing`},
		{"brought within bounds", fakePlugin{score: constantly(500), normalize: func(scores fwk.NodeScoreList) *fwk.Status {
			for i := range scores {
				scores[i].Score = 1
			}
			return nil
		}}, "n2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := &c.plugin
			a.name, a.quiet = "A", true
			f := newConfigured(t, onlyScoring, a, &fakePlugin{name: "B", quiet: true, score: preferring("n2")})
			f.node("n1", 4)
			f.node("n2", 4)
			_, got := f.decide(pod("p", "1"))
			f.expect("result", got, c.want)
		})
	}
}

func failing(fwk.CycleState, fwk.NodeInfo) (int64, *fwk.Status) {
	return 0, fwk.AsStatus(errors.New("broken"))
}

func constantly(score int64) func(fwk.CycleState, fwk.NodeInfo) (int64, *fwk.Status) {
	return func(fwk.CycleState, fwk.NodeInfo) (int64, *fwk.Status) { return score, nil }
}

// TestWhatAllPreScoresWriteAnyScoreReads verifies that a plugin at Score can read data written at
// PreScore by a plugin later in the order.
func TestWhatAllPreScoresWriteAnyScoreReads(t *testing.T) {
	a := &fakePlugin{name: "A", quiet: true, score: func(state fwk.CycleState, n fwk.NodeInfo) (int64, *fwk.Status) {
		best, err := state.Read("best")
		if err != nil {
			return 0, fwk.AsStatus(err)
		}
		if string(best.(text)) == n.Node().Name {
			return 100, nil
		}
		return 0, nil
	}}
	b := &fakePlugin{name: "B", quiet: true, preScore: func(state fwk.CycleState, _ []fwk.NodeInfo) *fwk.Status {
		state.Write("best", text("n2"))
		return nil
	}}
	f := newConfigured(t, onlyScoring, a, b)
	for _, name := range []string{"n1", "n2", "n3"} {
		f.node(name, 4)
	}
	_, got := f.decide(pod("p", "1"))
	f.expect("node", got, "n2")
}

type text string

func (t text) Clone() fwk.StateData { return t }
