// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package pluginparity

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-k8s/berth/examples/plugin/powerbudget"
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/scheduler/outoftree"
	"github.com/berth-k8s/berth/test/conformance"
)

var (
	worlds = flag.Int("worlds", 30, "how many random clusters both schedulers are asked about")
	seed   = flag.Uint64("seed", 1, "the first of them")
)

// file enables the tested out-of-tree plugins and the upstream plugins that need only nodes and
// pods. It omits plugins whose state upstream does not fully adjust when it adds or removes pods
// hypothetically (see package conformance).
const file = `
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- plugins:
    multiPoint:
      disabled: [{name: "*"}]
      enabled:
      - {name: PrioritySort}
      - {name: DefaultBinder}
      - {name: NodeUnschedulable}
      - {name: NodeName}
      - {name: TaintToleration, weight: 3}
      - {name: PowerBudget, weight: 4}
      - {name: NodeAffinity, weight: 2}
      - {name: NodePorts}
      - {name: NodeResourcesFit, weight: 1}
      - {name: Digest, weight: 2}
      - {name: NodeResourcesBalancedAllocation, weight: 1}
  pluginConfig:
  - name: PowerBudget
    args: {racks: {r0: 900, r1: 2000, r2: 5000}}
`

var factories = map[string]outoftree.Factory{powerbudget.Name: powerbudget.New, digestName: newDigest}

// TestPluginsFareTheSame verifies that both schedulers have the same verdict on every node, the
// same scores and consistent preemptions, for every pod of every world.
func TestPluginsFareTheSame(t *testing.T) {
	var total totals
	for n := range *worlds {
		w := conformance.Generate(*seed + uint64(n))
		electrify(w)
		u, err := newUpstream(t.Context(), w)
		if err != nil {
			t.Fatal(err)
		}
		b, err := newBerth(t.Context(), w)
		if err != nil {
			t.Fatal(err)
		}
		for _, pod := range w.Pending {
			if pod.Spec.NodeName != "" {
				continue
			}
			total.pods++
			if got, want := b.judge(pod, &total), u.judge(t.Context(), pod); got != want {
				t.Fatalf("world %d, pod %s:\n berth says %s\nupstream says %s", *seed+uint64(n), pod.Name, got, want)
			}
			if differs := b.preempts(t.Context(), u, pod, &total); differs != "" {
				t.Fatalf("world %d, pod %s: %s", *seed+uint64(n), pod.Name, differs)
			}
		}
		b.set.Close()
	}
	t.Logf("%d worlds: %d pods, %d verdicts on nodes, %d of them rejections by plugins from outside, %d scores, %d preemptions",
		*worlds, total.pods, total.verdicts, total.rejections, total.scores, total.preemptions)
	if total.rejections < *worlds || total.preemptions < *worlds/10 {
		t.Error("too little was compared")
	}
}

type totals struct{ pods, verdicts, rejections, scores, preemptions int }

// electrify assigns nodes to racks and sets the watts of some pods.
func electrify(w *conformance.World) {
	rng := rand.New(rand.NewPCG(w.Seed, 1))
	for _, n := range w.Nodes {
		n.Labels = maps.Clone(n.Labels)
		if n.Labels == nil {
			n.Labels = map[string]string{}
		}
		n.Labels["example.com/rack"] = fmt.Sprint("r", rng.IntN(4))
	}
	for _, list := range [][]*v1.Pod{w.Placed, w.Nominated, w.Pending} {
		for _, p := range list {
			if rng.IntN(3) > 0 {
				p.Annotations = map[string]string{"example.com/watts": fmt.Sprint(rng.IntN(8) * 100)}
			}
		}
	}
}

// berth is Berth's scheduler with the plugins.
type berth struct {
	set     *outoftree.Set
	cluster *cluster.Cluster
	store   *outoftree.Store
	profile cycle.Profile
	decider *decide.Decider
}

func newBerth(ctx context.Context, w *conformance.World) (*berth, error) {
	b := &berth{cluster: cluster.New(), store: outoftree.NewStore()}
	b.set = outoftree.New(ctx, outoftree.Options{Factories: factories, Store: b.store, Client: fake.NewClientset()})
	c, err := config.Parse("file", []byte(file), config.Options{Probe: b.set.Probe})
	if err != nil {
		return nil, err
	}
	profiles, err := b.set.Profiles(c)
	if err != nil {
		return nil, err
	}
	if err := b.store.Need(ctx, nil); err != nil {
		return nil, err
	}
	for _, budget := range budgetsOf(w) {
		b.cluster.Budgets.Set(budget)
	}
	for _, n := range w.Nodes {
		b.store.Node(n)
		b.cluster.SetNode(n)
	}
	for _, p := range w.Placed {
		b.store.Pod(p)
		b.cluster.SetPod(p)
	}
	for _, p := range waiting(w) {
		b.store.Pod(p)
		b.cluster.Nominate(b.cluster.Pending(p), p.Status.NominatedNodeName)
	}
	b.profile = profiles[0]
	b.decider = decide.New(b.cluster, b.profile.Profile, w.Seed)
	return b, nil
}

func (b *berth) begin(pod *v1.Pod) *cluster.Pod {
	b.store.Pod(pod)
	a := &cycle.Attempt{Pod: pod, Waiting: b.cluster.Pending(pod), Cluster: b.cluster}
	for _, e := range b.profile.Extensions {
		if begins, ok := e.(cycle.Beginner); ok {
			begins.Begin(a)
		}
	}
	return a.Waiting
}

func (b *berth) judge(pod *v1.Pod, total *totals) string {
	p := b.begin(pod)
	// Decide comes first, as in a live scheduler. Evaluate then returns the results of all nodes.
	decision := b.decider.Decide(p)
	e := b.decider.Plain().Evaluate(p)
	switch {
	case e.Err != nil:
		return "error: " + e.Err.Error()
	case e.Rejection != nil:
		return "all: " + strings.Join(e.Rejection.Reasons, ", ")
	case (decision.Node == nil) != (e.Feasible == 0):
		return fmt.Sprintf("decided for %v, and %d nodes can take the pod", decision.Node, e.Feasible)
	}
	said := map[string]string{}
	for i := range e.Nodes {
		v := &e.Nodes[i]
		total.verdicts++
		if r := v.Rejection; r != nil {
			if _, ok := factories[v.Plugin]; ok {
				total.rejections++
			}
			said[v.Node.Name] = rejects(v.Plugin, r.Unresolvable, r.Reasons)
			if v.Plugin == "" {
				said[v.Node.Name] = "not looked at"
			}
			continue
		}
		said[v.Node.Name] = "passes"
		for _, s := range v.Scores {
			total.scores++
			said[v.Node.Name] += fmt.Sprintf(" %s %d", s.Plugin, s.Score)
		}
		if e.Feasible > 1 {
			said[v.Node.Name] += fmt.Sprintf(" total %d", v.Total)
		}
		if decision.Node == v.Node && decision.Total != 0 && decision.Total != e.Best()[0].Total {
			return fmt.Sprintf("decided for %s with %d, and the best has %d", v.Node.Name, decision.Total, e.Best()[0].Total)
		}
	}
	return inOrder(said)
}

// preempts compares preemptions. On Berth's node, the victims must be the pods that upstream would
// remove from that node. If Berth finds no node, upstream must not find one either.
func (b *berth) preempts(ctx context.Context, u *upstream, pod *v1.Pod, total *totals) string {
	p := b.begin(pod)
	if d := b.decider.Decide(p); d.Node != nil || d.Err != nil {
		return ""
	}
	if pod.Spec.PreemptionPolicy != nil && *pod.Spec.PreemptionPolicy == v1.PreemptNever || pod.Status.NominatedNodeName != "" {
		return ""
	}
	found := b.decider.Preempt(p)
	state, said, _, err := u.filter(ctx, pod)
	if err != "" {
		return ""
	}
	for _, node := range u.nodes {
		name := node.Node().Name
		if !strings.Contains(said[name], "rejects, false") {
			continue
		}
		victims, violations, status := u.victims(ctx, state.Clone(), pod, node)
		helps := status.IsSuccess() && len(victims) > 0
		switch {
		case found.Node == nil && helps:
			return fmt.Sprintf("upstream makes room on %s, Berth nowhere: %s", name, found.Message)
		case found.Node == nil || found.Node.Name != name:
			continue
		case !helps:
			return fmt.Sprintf("Berth makes room on %s, upstream does not: %s", name, status.Message())
		}
		total.preemptions++
		if got, want := names(found.Victims), namesOf(victims); got != want || found.Violations != violations {
			return fmt.Sprintf("on %s Berth removes %s (%d violations), upstream %s (%d)", name, got, found.Violations, want, violations)
		}
	}
	return ""
}

func names(list []*cluster.Pod) string {
	var all []string
	for _, p := range list {
		all = append(all, p.Name())
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func namesOf(list []*v1.Pod) string {
	var all []string
	for _, p := range list {
		all = append(all, p.Name)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}
