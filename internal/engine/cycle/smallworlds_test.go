// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

var smallWorlds = flag.Uint64("small-worlds", 24, "worlds of TestSmallWorldsAreSearchedToTheEnd, and an eighth of those of TestVictimsOfAGangAreAllNeeded")

// TestSmallWorldsAreSearchedToTheEnd verifies the completeness of the search on up to six nodes,
// for a gang of up to six differing pods, some with mutual affinity, anti-affinity, or topology
// spread. The gang is placed if and only if the plain evaluator can place the required number of
// pods in some order and with some choice of nodes.
func TestSmallWorldsAreSearchedToTheEnd(t *testing.T) {
	possible, impossible := 0, 0
	for seed := range *smallWorlds {
		rng := rand.New(rand.NewPCG(seed, 7))
		nodes, pods := smallWorld(rng)
		truth := cluster.New()
		for _, n := range nodes {
			truth.SetNode(n)
		}
		need := len(pods) - rng.IntN(2)
		want := placeable(truth, pods, need)
		got, text := placedByCore(t, nodes, pods, need)
		if want {
			possible++
		} else {
			impossible++
		}
		if got != 0 && got < need {
			t.Fatalf("seed %d: %d of %d pods are placed", seed, got, need)
		}
		if (got > 0) != want {
			t.Fatalf("seed %d: %d of %d pods are placed, and there is a placement of %d: %t\n%s", seed, got, len(pods), need, want, text)
		}
	}
	t.Logf("%d gangs can be placed, %d cannot", possible, impossible)
	if possible < int(*smallWorlds)/4 || impossible < int(*smallWorlds)/4 {
		t.Errorf("the worlds do not try both: %d gangs can be placed, %d cannot", possible, impossible)
	}
}

// smallWorld returns a tight world: the pods request nearly all capacity.
func smallWorld(rng *rand.Rand) (nodes []*v1.Node, pods []*v1.Pod) {
	for i := range 1 + rng.IntN(6) {
		n := aNode(fmt.Sprintf("n%d", i), fmt.Sprint(1+rng.IntN(5)))
		n.Labels["zone"] = string(rune('a' + rng.IntN(2)))
		nodes = append(nodes, n)
	}
	for i := range 2 + rng.IntN(5) {
		p := aPod(fmt.Sprintf("p%d", i), fmt.Sprint(1+rng.IntN(4)))
		p.Labels = map[string]string{"app": string(rune('x' + rng.IntN(3)))}
		p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: new("g")}
		term := v1.PodAffinityTerm{
			TopologyKey:   []string{v1.LabelHostname, "zone"}[rng.IntN(2)],
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": string(rune('x' + rng.IntN(3)))}},
		}
		switch rng.IntN(7) {
		case 0:
			p.Spec.Affinity = &v1.Affinity{PodAffinity: &v1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{term}}}
		case 1:
			p.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{term}}}
		case 2:
			p.Spec.NodeSelector = map[string]string{"zone": string(rune('a' + rng.IntN(2)))}
		case 3:
			p.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{
				MaxSkew: 1, TopologyKey: term.TopologyKey, WhenUnsatisfiable: v1.DoNotSchedule, LabelSelector: term.LabelSelector,
			}}
		}
		pods = append(pods, p)
	}
	return nodes, pods
}

// placeable tries every order and every node until need more pods are placed.
func placeable(truth *cluster.Cluster, rest []*v1.Pod, need int) bool {
	if need == 0 {
		return true
	}
	for i, p := range rest {
		asked := truth.Pending(p)
		e := decide.NewPlain(truth, plugins.Default()).Evaluate(asked)
		others := append(append([]*v1.Pod{}, rest[:i]...), rest[i+1:]...)
		for j := range e.Nodes {
			if e.Nodes[j].Rejection != nil {
				continue
			}
			truth.Place(asked, e.Nodes[j].Node)
			found := placeable(truth, others, need-1)
			truth.RemovePod(p.UID)
			if found {
				return true
			}
		}
	}
	return false
}

// placedByCore returns the number of pods bound by a core, and its message about the group.
func placedByCore(t *testing.T, nodes []*v1.Node, pods []*v1.Pod, need int) (placed int, text string) {
	t.Helper()
	core, err := New(Options{Profiles: []Profile{{Profile: plugins.Default()}}, Groups: groups.Gates{Generic: true}})
	if err != nil {
		t.Fatal(err)
	}
	core.Step(begin, Follows{})
	core.Step(begin, Led{})
	for _, n := range nodes {
		core.Step(begin, Seen{Nodes, n})
	}
	core.Step(begin, Seen{PodGroups, gangOf("g", need)})
	for _, p := range pods {
		core.Step(begin, Seen{Pods, p})
	}
	bound := map[types.UID]bool{}
	for range 3 {
		for _, action := range core.Step(begin, Tick{}) {
			switch a := action.(type) {
			case Bind:
				bound[a.Attempt.Pod.UID] = true
			case WriteGroup:
				text = a.Condition.Message
			}
		}
	}
	return len(bound), text
}
