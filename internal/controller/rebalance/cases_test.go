// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/controller/rebalance/policy"
	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/world"
)

// TestCases runs testdata/*.txt. A case consists of these commands:
//
//	world                   begins a cluster; each line is an object (see object): node, pod, ...
//	change                  adds or replaces objects by name; "gone NAME" removes one
//	deschedule              plans by the given DeschedulerPolicy, which omits its first two lines
//	plan GOAL...            plans: heal, spread, return, consolidate=N, defragment[=POD+POD]; held, sampled;
//	                        most-allocated, fragmentation, added-affinity (the scheduler's profile);
//	                        apply replaces the state by the plan's result
//	roll [at-once=N] [FLAG...]  plans to roll the nodes with the label pool:roll
//
// The output of a plan lists its moves, the pods that stay with the reasons, and the measures.
func TestCases(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		if strings.HasSuffix(path, executions) {
			return
		}
		s := &rebalance.State{AsOf: begin, World: world.Open(nil)}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return tell(t, s, d) })
	})
}

// put adds objects to a state, or replaces the objects of the same kind and name.
func put(s *rebalance.State, objects ...metav1.Object) {
	for _, o := range objects {
		s.World.Put(o)
	}
}

func tell(t *testing.T, s *rebalance.State, d *datadriven.TestData) string {
	switch d.Cmd {
	case "world":
		s.World = world.Open(nil)
		fallthrough
	case "change":
		for line := range strings.Lines(d.Input) {
			if name, gone := strings.CutPrefix(strings.TrimSpace(line), "gone "); gone {
				for o := range s.World.Objects() {
					if o.GetName() == name {
						s.World.Delete(o)
					}
				}
				continue
			}
			put(s, object(t, strings.TrimSpace(line))...)
		}
		return ""
	case "plan", "deschedule":
		goals, options := &rebalance.Policy{}, rebalance.Options{Profiles: profiles(t, "")}
		apply := false
		for _, arg := range d.CmdArgs {
			switch arg.Key {
			case "held":
				options.Placing = rebalance.Held
			case "sampled":
				options.Placing = rebalance.Sampled
			case "apply":
				apply = true
			case "most-allocated":
				options.Profiles = profiles(t, mostAllocated)
			case "fragmentation":
				options.Profiles = profiles(t, fragmentation)
			case "added-affinity":
				options.Profiles = profiles(t, addedAffinity)
			default:
				goals.Goals = append(goals.Goals, goalOf(t, arg))
			}
		}
		if d.Cmd == "deschedule" {
			var err error
			if goals, err = policy.Read("policy.yaml", []byte("apiVersion: descheduler/v1alpha2\nkind: DeschedulerPolicy\n"+d.Input), nil); err != nil {
				return err.Error() + "\n"
			}
		}
		plan := rebalance.Make(s, goals, options)
		if apply {
			*s = *plan.After(s)
		}
		return show(plan)
	}
	if d.Cmd == "drain" {
		options := draining(t, d.CmdArgs)
		return showDraining(rebalance.PlanDrain(s, &options.Leaving, rebalance.Options{Profiles: profiles(t, "")})) + "\n"
	}
	if d.Cmd == "roll" {
		rolling := rollingOf(t, slices.Collect(s.World.Objects()), d.CmdArgs)
		return showRoll(rebalance.PlanRoll(s, &rolling.Rolling, rebalance.Options{Profiles: profiles(t, "")}))
	}
	return "unknown command " + d.Cmd
}

func goalOf(t *testing.T, arg datadriven.CmdArg) rebalance.Goal {
	number := 0
	if len(arg.Vals) > 0 {
		number, _ = strconv.Atoi(arg.Vals[0])
	}
	goal := rebalance.OwnGoal(arg.Key, number)
	if goal == nil {
		t.Fatalf("unknown goal %s", arg.Key)
	}
	if goal.Defragment != nil && len(arg.Vals) > 0 {
		for _, name := range strings.Split(arg.Vals[0], "+") {
			goal.Defragment.Pods = append(goal.Defragment.Pods, types.NamespacedName{Namespace: "default", Name: name})
		}
	}
	return *goal
}

func show(plan *rebalance.Plan) string {
	var b strings.Builder
	for i := range plan.Moves {
		m := &plan.Moves[i]
		fmt.Fprintf(&b, "%d. %s %s -> %s", m.Number, m.Name, m.From, m.To)
		if len(m.Or) > 0 {
			fmt.Fprintf(&b, " (or %s)", strings.Join(m.Or, ", "))
		}
		for _, measure := range m.Improves {
			fmt.Fprintf(&b, " [%s %d->%d]", measure.Name, measure.Before, measure.After)
		}
		if m.Attempt != "" {
			fmt.Fprintf(&b, " to %s", m.Attempt)
		}
		if m.Detail != "" {
			fmt.Fprintf(&b, ": %s", m.Detail)
		}
		b.WriteString("\n")
		if m.Next != nil {
			fmt.Fprintf(&b, "   next %s: %s\n", m.Next.Name, m.Next.Why)
		}
	}
	for _, stay := range plan.Stays {
		name := stay.Name
		if name == "" {
			name = "node " + stay.Node
		}
		fmt.Fprintf(&b, "%s stays: %s: %s\n", name, stay.Code, stay.Message)
	}
	for _, note := range plan.Notes {
		fmt.Fprintf(&b, "note: %s\n", note)
	}
	for _, m := range plan.Measures {
		if m.Before != m.After {
			fmt.Fprintf(&b, "%s: %d -> %d\n", m.Name, m.Before, m.After)
		}
	}
	if b.Len() == 0 {
		return "nothing\n"
	}
	return b.String()
}

const mostAllocated = `
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- pluginConfig:
  - name: NodeResourcesFit
    args: {scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 1}, {name: memory, weight: 1}]}}
`

// fragmentation expects pods with eight, four and one GPU.
const fragmentation = `
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- plugins:
    multiPoint: {enabled: [{name: Fragmentation}]}
    score: {disabled: [{name: "*"}], enabled: [{name: Fragmentation}]}
  pluginConfig:
  - name: Fragmentation
    args:
      resource: example.com/gpu
      tasks:
      - {weight: 1, requests: {example.com/gpu: "8"}}
      - {weight: 1, requests: {example.com/gpu: "4"}}
      - {weight: 1, requests: {example.com/gpu: "1"}}
`

// addedAffinity makes all pods prefer nodes with disk:ssd.
const addedAffinity = `
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- pluginConfig:
  - name: NodeAffinity
    args:
      addedAffinity:
        preferredDuringSchedulingIgnoredDuringExecution:
        - {weight: 10, preference: {matchExpressions: [{key: disk, operator: In, values: [ssd]}]}}
`

// read caches the profiles of parsed configurations.
var read = map[string][]*plugins.Profile{}

func profiles(t testing.TB, text string) []*plugins.Profile {
	t.Helper()
	if known := read[text]; known != nil {
		return known
	}
	c, err := config.Default(config.Options{})
	if text != "" {
		c, err = config.Parse("test", []byte(text), config.Options{})
	}
	if err != nil {
		t.Fatal(err)
	}
	read[text] = c.Profiles
	return c.Profiles
}
