// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	config "k8s.io/kube-scheduler/config/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/plugins"
)

var scorers = []string{
	"TaintToleration", "NodeAffinity", "NodeResourcesFit", "PodTopologySpread", "InterPodAffinity",
	"NodeResourcesBalancedAllocation", "ImageLocality",
}

// drawArguments gives half of the worlds a non-default profile.
func (g *generator) drawArguments() {
	if g.withChance(0.5) {
		return
	}
	if g.withChance(0.2) {
		g.w.Weights = map[string]int64{pickOne(g, scorers...): int64(g.drawBetween(1, 10)), pickOne(g, scorers...): 100}
		g.w.Unscored = drawSome(g, 0.1, scorers...)
		g.w.Unfiltered = drawSome(g, 0.1, "NodeUnschedulable", "TaintToleration", "NodeAffinity", "NodePorts",
			"NodeResourcesFit", "PodTopologySpread", "InterPodAffinity")
		if g.anyHuge() { // without NodeResourcesFit they could share a node, and their sums would overflow in upstream
			g.w.Unfiltered = slices.DeleteFunc(g.w.Unfiltered, func(name string) bool { return name == "NodeResourcesFit" })
		}
	}
	if g.withChance(0.15) {
		g.w.FilterOrder = slices.Clone(plugins.Default().At[plugins.Filters])
		g.Shuffle(len(g.w.FilterOrder), func(i, j int) {
			g.w.FilterOrder[i], g.w.FilterOrder[j] = g.w.FilterOrder[j], g.w.FilterOrder[i]
		})
	}
	if g.withChance(0.6) {
		g.w.Args["NodeResourcesFit"] = g.fitArgs()
	}
	if g.withChance(0.3) {
		// Exclude resources backed by devices: upstream's plugin panics for them, because it has no
		// cache of CEL expressions.
		specs := slices.DeleteFunc(g.resourceSpecs(false),
			func(s config.ResourceSpec) bool { return s.Name == string(g.devices.counted) || s.Name == string(fpga) })
		g.w.Args["NodeResourcesBalancedAllocation"] = &config.NodeResourcesBalancedAllocationArgs{Resources: specs}
	}
	if g.withChance(0.4) {
		g.w.Args["InterPodAffinity"] = &config.InterPodAffinityArgs{
			HardPodAffinityWeight: ptr.To(int32(pickOne(g, 0, 1, 5, 100))), IgnorePreferredTermsOfExistingPods: g.withChance(0.5),
		}
	}
	if g.withChance(0.3) {
		g.w.Args["NodeAffinity"] = &config.NodeAffinityArgs{AddedAffinity: g.addedAffinity()}
	}
	if g.withChance(0.5) {
		g.w.Args["PodTopologySpread"] = g.spreadArgs()
	}
	if g.withChance(0.2) {
		g.w.Args["VolumeBinding"] = &config.VolumeBindingArgs{BindTimeoutSeconds: ptr.To(int64(g.drawBetween(1, 600)))}
	}
}

func (g *generator) resourceSpecs(weighted bool) (specs []config.ResourceSpec) {
	for _, name := range drawSome(g, 0.5, v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage, gpu, fpga, "example.com/foo") {
		weight := int64(1)
		if weighted {
			weight = int64(g.drawBetween(1, 5))
		}
		specs = append(specs, config.ResourceSpec{Name: string(name), Weight: weight})
	}
	if len(specs) == 0 && g.withChance(0.5) {
		return []config.ResourceSpec{{Name: string(v1.ResourceCPU), Weight: 1}}
	}
	return specs
}

func (g *generator) fitArgs() *config.NodeResourcesFitArgs {
	args := &config.NodeResourcesFitArgs{}
	if g.withChance(0.3) {
		args.IgnoredResources = drawSome(g, 0.5, string(gpu), "example.com/foo", "example.com/nowhere")
	}

	if g.withChance(0.2) {
		args.IgnoredResourceGroups = []string{"example.com"}
	}
	if g.anyHuge() {
		args.IgnoredResources, args.IgnoredResourceGroups = nil, nil
	}

	switch g.IntN(4) {
	case 0:
		args.ScoringStrategy = &config.ScoringStrategy{Type: config.LeastAllocated, Resources: g.resourceSpecs(true)}
	case 1:
		args.ScoringStrategy = &config.ScoringStrategy{Type: config.MostAllocated, Resources: g.resourceSpecs(true)}
	case 2:
		shape := []config.UtilizationShapePoint{{Utilization: 0, Score: int32(g.drawBetween(0, 10))}}
		for u := g.drawBetween(1, 60); u <= 100; u += g.drawBetween(1, 60) {
			shape = append(shape, config.UtilizationShapePoint{Utilization: int32(u), Score: int32(g.drawBetween(0, 10))})
		}
		args.ScoringStrategy = &config.ScoringStrategy{
			Type: config.RequestedToCapacityRatio, Resources: g.resourceSpecs(true),
			RequestedToCapacityRatio: &config.RequestedToCapacityRatioParam{Shape: shape},
		}
	}

	return args
}

func (g *generator) addedAffinity() *v1.NodeAffinity {
	a := &v1.NodeAffinity{}
	if g.withChance(0.6) {
		a.RequiredDuringSchedulingIgnoredDuringExecution = &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
			MatchExpressions: []v1.NodeSelectorRequirement{{Key: "disk", Operator: v1.NodeSelectorOpNotIn, Values: []string{"hdd"}}},
		}}}
		if g.withChance(0.3) {
			// A term that cannot match because of a non-numeric value is allowed in a pod. In
			// arguments, both schedulers would refuse it at startup.
			term := g.terms.nodeTerm(g.withChance(0.3))
			if _, err := nodeaffinity.NewNodeSelector(&v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{term}}); err == nil {
				terms := &a.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
				*terms = append(*terms, term)
			}
		}
	}
	if g.withChance(0.6) || a.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		a.PreferredDuringSchedulingIgnoredDuringExecution = []v1.PreferredSchedulingTerm{{Weight: 20, Preference: v1.NodeSelectorTerm{
			MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelTopologyZone, Operator: v1.NodeSelectorOpIn,
				Values: []string{"z1", "z2"}}},
		}}}
	}
	return a
}

func (g *generator) spreadArgs() *config.PodTopologySpreadArgs {
	if g.withChance(0.3) {
		return &config.PodTopologySpreadArgs{DefaultingType: config.SystemDefaulting}
	}
	args := &config.PodTopologySpreadArgs{DefaultingType: config.ListDefaulting}
	seen := map[string]bool{}
	for range g.drawBetween(0, 3) {
		c := v1.TopologySpreadConstraint{
			MaxSkew: int32(g.drawBetween(1, 4)), TopologyKey: pickOne(g, topologyKeys...),
			WhenUnsatisfiable: pickOne(g, v1.DoNotSchedule, v1.ScheduleAnyway, v1.ScheduleAnyway),
		}
		if id := c.TopologyKey + string(c.WhenUnsatisfiable); !seen[id] {
			seen[id] = true
			args.DefaultConstraints = append(args.DefaultConstraints, c)
		}
	}
	return args
}
