// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"
)

var census = flag.Int("census", 0, "in how many clusters TestEveryTraitMatters counts the traits")

// trait is a feature of worlds that can affect results. The function without removes the trait from
// a world, and reports whether the world had it.
type trait struct {
	name    string
	without func(*World) (had bool)
}

// TestEveryTraitMatters verifies that the removal of each trait changes upstream's results in some
// worlds. A feature that is never drawn, or never affects a result, would not be compared.
func TestEveryTraitMatters(t *testing.T) {
	if *census == 0 {
		t.Skip("each cluster is decided anew without each of its traits, which takes seconds: give -census")
	}
	drawn, decisive := map[string]int{}, map[string]int{}
	left := func() []string {
		return slices.DeleteFunc(names(traits), func(name string) bool { return decisive[name] > 0 })
	}
	for seed := *first; seed < *first+uint64(*census); seed++ {
		w := Generate(seed)
		w.Sequence = false
		text := ""
		for _, f := range traits {
			other := w.copy()
			if !f.without(other) {
				continue
			}
			drawn[f.name]++
			if text == "" {
				text = answers(t, w)
			}
			if answers(t, other) != text {
				decisive[f.name]++
			}
		}
	}
	for _, name := range names(traits) {
		t.Logf("%-40s drawn in %d clusters, decisive in %d", name, drawn[name], decisive[name])
	}
	if never := left(); len(never) > 0 {
		t.Errorf("of %d clusters there is none in which it matters that there are: %s", *census, strings.Join(never, ", "))
	}
}

func names(list []trait) (names []string) {
	for _, f := range list {
		names = append(names, f.name)
	}
	return names
}

// answers formats upstream's complete results for the pending pods of a world.
func answers(t *testing.T, w *World) string {
	t.Helper()
	ctx := context.Background()
	u, err := newUpstream(ctx, w, nil)
	if err != nil {
		t.Fatalf("seed %d: %v", w.Seed, err)
	}
	defer u.stop()
	var text strings.Builder
	for _, pod := range w.Pending {
		a := u.attemptPod(ctx, pod)
		fmt.Fprintln(&text, pod.Name, a.failed != nil, a.all)
		for _, name := range slices.Sorted(maps.Keys(a.nodes)) {
			v := a.nodes[name]
			if v != nil {
				v = &Verdict{Plugin: v.Plugin, Reasons: slices.Sorted(slices.Values(v.Reasons)), Unresolvable: v.Unresolvable}
			}
			fmt.Fprintln(&text, name, v)
		}
		slices.SortFunc(a.scores, func(x, y fwk.NodePluginScores) int { return strings.Compare(x.Name, y.Name) })
		for _, s := range a.scores {
			fmt.Fprintln(&text, s.Name, s.TotalScore)
		}
		if a.failed == nil && len(a.feasible) == 0 {
			candidates, _ := u.preemptFor(ctx, w, a, pod)
			slices.SortFunc(candidates, func(x, y victims) int { return strings.Compare(x.node, y.node) })
			for _, c := range candidates {
				if !c.ambiguous {
					fmt.Fprintln(&text, c, c.ordinal)
				}
			}
		}
	}
	return text.String()
}

// copy returns a copy of the world with copies of its objects.
func (w *World) copy() *World {
	c := *w
	c.Nodes, c.Placed, c.Nominated, c.Pending = copies(w.Nodes), copies(w.Placed), copies(w.Nominated), copies(w.Pending)
	c.Others = copies(w.Others)
	c.Args, c.Weights = maps.Clone(w.Args), maps.Clone(w.Weights)
	return &c
}

func copies[T runtime.Object](list []T) []T {
	made := make([]T, len(list))
	for i := range list {
		made[i] = list[i].DeepCopyObject().(T)
	}
	return made
}

// ofNodes makes a trait from a function that removes it from one node. The functions below do the
// same for other objects.
func ofNodes(name string, do func(*v1.Node) bool) trait {
	return trait{name, func(w *World) bool { return each(w.Nodes, do) }}
}

func ofPods(name string, do func(*v1.Pod) bool) trait {
	return trait{name, func(w *World) bool {
		return slices.Contains([]bool{each(w.Placed, do), each(w.Nominated, do), each(w.Pending, do)}, true)
	}}
}

func ofContainers(name string, do func(*v1.Container) bool) trait {
	return ofPods(name, func(p *v1.Pod) (had bool) {
		for _, list := range [][]v1.Container{p.Spec.InitContainers, p.Spec.Containers} {
			for i := range list {
				had = do(&list[i]) || had
			}
		}
		return had
	})
}

func ofKindThere[T runtime.Object](name string, do func(T) bool) trait {
	return trait{name, func(w *World) bool { return each(ofKind[T](w), do) }}
}

// ofTerms makes a trait from a function that removes it from one pod affinity term.
func ofTerms(name string, do func(*v1.PodAffinityTerm) bool) trait {
	return ofPods(name, func(p *v1.Pod) (had bool) {
		a := p.Spec.Affinity
		if a == nil {
			return false
		}
		some := func(terms []v1.PodAffinityTerm, weighted []v1.WeightedPodAffinityTerm) {
			for i := range terms {
				had = do(&terms[i]) || had
			}
			for i := range weighted {
				had = do(&weighted[i].PodAffinityTerm) || had
			}
		}
		if b := a.PodAffinity; b != nil {
			some(b.RequiredDuringSchedulingIgnoredDuringExecution, b.PreferredDuringSchedulingIgnoredDuringExecution)
		}
		if b := a.PodAntiAffinity; b != nil {
			some(b.RequiredDuringSchedulingIgnoredDuringExecution, b.PreferredDuringSchedulingIgnoredDuringExecution)
		}
		return had
	})
}

func ofConstraints(name string, do func(*v1.TopologySpreadConstraint) bool) trait {
	return ofPods(name, func(p *v1.Pod) bool {
		had := false
		for i := range p.Spec.TopologySpreadConstraints {
			had = do(&p.Spec.TopologySpreadConstraints[i]) || had
		}
		return had
	})
}

// ofNodeTerms makes a trait from a function that removes it from one node selector term.
func ofNodeTerms(name string, do func(*v1.NodeSelectorTerm) bool) trait {
	return ofPods(name, func(p *v1.Pod) (had bool) {
		if p.Spec.Affinity == nil || p.Spec.Affinity.NodeAffinity == nil {
			return false
		}
		a := p.Spec.Affinity.NodeAffinity
		if a.RequiredDuringSchedulingIgnoredDuringExecution != nil {
			terms := a.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
			for i := range terms {
				had = do(&terms[i]) || had
			}
		}
		for i := range a.PreferredDuringSchedulingIgnoredDuringExecution {
			had = do(&a.PreferredDuringSchedulingIgnoredDuringExecution[i].Preference) || had
		}
		return had
	})
}

func ofTolerations(name string, gone func(*v1.Toleration) bool) trait {
	return ofPods(name, func(p *v1.Pod) bool {
		return dropped(&p.Spec.Tolerations, func(t v1.Toleration) bool { return gone(&t) })
	})
}

func ofDevices(name string, do func(*resourcev1.Device) bool) trait {
	return ofKindThere(name, func(s *resourcev1.ResourceSlice) (had bool) {
		for i := range s.Spec.Devices {
			had = do(&s.Spec.Devices[i]) || had
		}
		return had
	})
}

func ofRequests(name string, do func(*resourcev1.DeviceRequest) bool) trait {
	return ofKindThere(name, func(c *resourcev1.ResourceClaim) (had bool) {
		for i := range c.Spec.Devices.Requests {
			had = do(&c.Spec.Devices.Requests[i]) || had
		}
		return had
	})
}

// ofResource makes a trait of the container requests for which does returns true.
func ofResource(name string, does func(v1.ResourceName, resource.Quantity) bool) trait {
	return ofContainers(name, func(c *v1.Container) (had bool) {
		for r, q := range c.Resources.Requests {
			if does(r, q) {
				delete(c.Resources.Requests, r)
				had = true
			}
		}
		return had
	})
}

func each[T any](list []T, do func(T) bool) (had bool) {
	for _, item := range list {
		had = do(item) || had
	}
	return had
}

// dropped removes items from a list, and reports whether there were any.
func dropped[T any](list *[]T, gone func(T) bool) bool {
	before := len(*list)
	*list = slices.DeleteFunc(*list, gone)
	return len(*list) < before
}

// cleared sets a field to its zero value, and reports whether that changed it.
func cleared[T comparable](field *T) bool {
	var zero T
	had := *field != zero
	*field = zero
	return had
}

func clearedList[T any](field *[]T) bool {
	had := len(*field) > 0
	*field = nil
	return had
}

// argument makes a trait of the non-default arguments of a plugin.
func argument(plugin string) trait {
	return trait{plugin + "Args", func(w *World) bool {
		_, had := w.Args[plugin]
		delete(w.Args, plugin)
		return had
	}}
}

func pointers[T any](list []T) []*T {
	made := make([]*T, len(list))
	for i := range list {
		made[i] = &list[i]
	}
	return made
}
