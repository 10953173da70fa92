// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/internal/world/disruption"
	"github.com/berth-k8s/berth/internal/world/virtual"
)

// TestRollsOfRandomWorlds rolls nodes of random clusters, while it kills and restarts the process
// at random. It verifies that a roll ends completely or with a known reason, that nodes outside an
// unfinished turn have their original cordons, that scales have their original values, and that
// after a complete roll no further pod is pending.
func TestRollsOfRandomWorlds(t *testing.T) {
	rolled, evicted := 0, 0
	injected := map[virtual.Injection]int{}
	seed, end, runs := seeds(300, 60)
	for ; seed < end; seed++ {
		s := randomStage(t, seed)
		s.policy.Goals = nil
		s.draining, s.statuses, s.keeps = true, true, seed%2 == 0
		s.count()
		s.Run(10 * time.Second)
		options, nodes := s.drawRoll(seed)
		pending, scales := s.homeless(), maps.Clone(s.replicas)
		if seed%3 == 1 {
			s.injectPassing()
		}
		if seed%3 == 0 {
			kills := 0
			s.faults.request = func() bool {
				if kills == 5 || s.Rand.IntN(20) > 0 {
					return true
				}
				kills++
				s.process.Kill()
				return s.Rand.IntN(2) == 0
			}
		}

		for try := 0; len(s.rolls) == 0 && try < 60; try++ {
			if !s.process.Running() {
				s.begin(execute.NewRoller(options))
			}
			s.Run(2 * time.Minute)
		}
		s.judgeRandomRoll(nodes, pending)
		s.judgeScales(scales)
		if len(s.rolls) == 1 && s.rolls[0].Stopped == "" {
			rolled++
		}
		virtual.Add(injected, s.line.Injected)
		evicted += len(s.evicted)
		s.report(seed)
		if t.Failed() {
			return
		}
	}
	t.Logf("%d worlds, %d rolled, %d pods evicted%s", runs, rolled, evicted, virtual.Summary(injected))
	if rolled < runs/10 || evicted < runs/10 {
		t.Errorf("%d rolls and %d evictions in %d worlds: they are too quiet to show anything", rolled, evicted, runs)
	}
}

// drawRoll draws the nodes to roll. It returns the options of the roll, and for each node whether
// it is cordoned.
func (s *stage) drawRoll(seed uint64) (o execute.RollOptions, nodes map[string]bool) {
	nodes = map[string]bool{}
	for _, name := range s.nodeNames() {
		if s.Rand.IntN(2) == 0 {
			n := s.node(name).DeepCopy()
			n.Labels["pool"] = "roll"
			s.write(n)
			nodes[name] = n.Spec.Unschedulable
		}
	}
	atOnce := 1 + s.Rand.IntN(2)
	o = execute.RollOptions{
		Selector: labels.SelectorFromSet(labels.Set{"pool": "roll"}), Until: execute.UntilDrained, AtOnce: func(int) int { return atOnce },
		DrainOptions: execute.DrainOptions{Timeout: 20 * time.Minute, Leaving: rebalance.Leaving{
			Surge: seed%4 < 2, DrainRules: disruption.DrainRules{DeleteEmptyDirData: true, IgnoreDaemonSets: true, Force: true},
		}},
	}
	return o, nodes
}

// judgeRandomRoll verifies the invariants of a finished roll.
func (s *stage) judgeRandomRoll(nodes map[string]bool, pending map[string]bool) {
	if len(s.rolls) != 1 {
		s.fail("ended %d times", len(s.rolls))
		return
	}
	done := s.rolls[0]
	for name, cordoned := range nodes {
		n := s.node(name)
		switch {
		case n == nil || slices.Contains(done.Turn, name):
		case n.Spec.Unschedulable != cordoned:
			s.fail("%s is cordoned: %v, and was: %v", name, n.Spec.Unschedulable, cordoned)
		case done.Stopped == "" && n.Annotations[execute.RollAnnotation] != "":
			s.fail("%s still has the note %s", name, n.Annotations[execute.RollAnnotation])
		}
	}
	known := []string{"no other node", "more than one disruption budget", "not done within", "allows no disruption at all"}
	if done.Stopped != "" && !slices.ContainsFunc(known, func(why string) bool { return strings.Contains(done.Stopped, why) }) {
		s.fail("stopped: %s", done.Stopped)
	}
	if done.Stopped == "" {
		for name := range s.homeless() {
			if !pending[name] {
				s.fail("%s is pending", name)
			}
		}
	}
	if slices.ContainsFunc(s.pods(), func(p *v1.Pod) bool { return p.DeletionTimestamp != nil }) && done.Stopped == "" {
		s.fail("a pod has not ended")
	}
}
