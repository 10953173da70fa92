// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
)

// plugin is a descheduler plugin: its extension point, and the conversion of its arguments into a
// goal.
//
// This file has the arguments of each known descheduler plugin, under the names used in policies,
// and the resulting goals. Arguments are decoded strictly: like the descheduler, Berth refuses
// unknown ones, with the line.
//
//	RemovePodsViolatingNodeTaints with includePreferNoSchedule
//	-> a goal Heal for NoSchedule taints, and a goal Return for PreferNoSchedule taints
type plugin struct {
	point string // deschedule or balance
	// translate sets one field of the goal, and r.second if the arguments require two goals.
	translate func(r *reader, goal *rebalance.Goal, args *yaml.Node)
}

// catalog holds the plugins by name. Other plugins are refused, as the descheduler refuses unknown
// ones: following a policy only in part would move pods against its intent.
var catalog = map[string]plugin{
	"RemoveDuplicates":                            {"balance", readDuplicates},
	"LowNodeUtilization":                          {"balance", readUtilization(false)},
	"HighNodeUtilization":                         {"balance", readUtilization(true)},
	"RemovePodsViolatingTopologySpreadConstraint": {"balance", readSpread},
	"RemovePodsViolatingInterPodAntiAffinity":     {"deschedule", antiAffinity},
	"RemovePodsViolatingNodeAffinity":             {"deschedule", nodeAffinity},
	"RemovePodsViolatingNodeTaints":               {"deschedule", nodeTaints},
	"RemovePodsHavingTooManyRestarts":             {"deschedule", readRestarts},
	"PodLifeTime":                                 {"deschedule", readLifetime},
	"RemoveFailedPods":                            {"deschedule", readFailed},
}

// scope holds the arguments common to most plugins. labelSelector selects pods; namespaces has a
// list to include, or one to exclude.
type scope struct {
	Namespaces *struct {
		Include []string `json:"include"`
		Exclude []string `json:"exclude"`
	} `json:"namespaces"`
	LabelSelector *metav1.LabelSelector `json:"labelSelector"`
}

// applyTo limits a goal to the pods selected by the scope. Without a scope, all pods are included.
// An invalid label selector is a fault, with the line of the arguments.
func (s *scope) applyTo(r *reader, goal *rebalance.Goal, at *yaml.Node) {
	if s.Namespaces != nil {
		goal.Scope.Include, goal.Scope.Exclude = s.Namespaces.Include, s.Namespaces.Exclude
		if len(s.Namespaces.Include) > 0 && len(s.Namespaces.Exclude) > 0 {
			r.setError(at, "%s: namespaces: must have include or exclude, not both", goal.Name)
		}
	}
	goal.Scope.Pods = r.readSelector(at, s.LabelSelector)
}

// antiAffinity reads RemovePodsViolatingInterPodAntiAffinity, which has only the common arguments.
func antiAffinity(r *reader, goal *rebalance.Goal, at *yaml.Node) {
	var args struct{ scope }
	r.decodeStrictly(at, goal.Name, &args)
	args.applyTo(r, goal, at)
	goal.Heal = &rebalance.Heal{Only: rebalance.AntiAffinity}
}

// nodeAffinity reads RemovePodsViolatingNodeAffinity. Required affinity results in a goal Heal, and
// preferred affinity in a goal Return. With both types there are two goals.
func nodeAffinity(r *reader, goal *rebalance.Goal, at *yaml.Node) {
	var args struct {
		scope
		NodeAffinityType []string `json:"nodeAffinityType"`
	}
	r.decodeStrictly(at, goal.Name, &args)
	args.applyTo(r, goal, at)
	// As in the descheduler, at least one of the two types must be named, and unknown types do not
	// count.
	required := slices.Contains(args.NodeAffinityType, "requiredDuringSchedulingIgnoredDuringExecution")
	preferred := slices.Contains(args.NodeAffinityType, "preferredDuringSchedulingIgnoredDuringExecution")
	if required {
		goal.Heal = &rebalance.Heal{Only: rebalance.NodeAffinity}
	}

	switch {
	case !required && !preferred:
		r.setError(at, "%s: nodeAffinityType: must be requiredDuringSchedulingIgnoredDuringExecution or "+
			"preferredDuringSchedulingIgnoredDuringExecution", goal.Name)
	case preferred:
		r.anotherGoal(goal, required).Return = &rebalance.Return{Weights: true}
	}
}

// anotherGoal returns the goal itself, or a second goal for the same plugin if the first is taken.
// A plugin needs two goals if its arguments cover both hard constraints and preferences.
//
// The second goal is a copy of the first: it has the same name, scope and evictor.
func (r *reader) anotherGoal(goal *rebalance.Goal, taken bool) *rebalance.Goal {
	if !taken {
		return goal
	}
	second := *goal
	second.Heal = nil
	r.second = &second
	return r.second
}

// nodeTaints reads RemovePodsViolatingNodeTaints. NoSchedule taints result in a goal Heal.
// PreferNoSchedule taints, if included, result in a goal Return.
func nodeTaints(r *reader, goal *rebalance.Goal, at *yaml.Node) {
	var args struct {
		scope
		IncludePreferNoSchedule bool     `json:"includePreferNoSchedule"`
		ExcludedTaints          []string `json:"excludedTaints"`
		IncludedTaints          []string `json:"includedTaints"`
	}
	r.decodeStrictly(at, goal.Name, &args)
	args.applyTo(r, goal, at)
	if len(args.ExcludedTaints) > 0 && len(args.IncludedTaints) > 0 {
		r.setError(at, "%s: must have includedTaints or excludedTaints, not both", goal.Name)
	}

	// One of the lists is empty. With both empty, all taints count.
	counts := func(t *v1.Taint) bool {
		if len(args.IncludedTaints) > 0 {
			return isNamed(args.IncludedTaints, t)
		}
		return !isNamed(args.ExcludedTaints, t)
	}

	// By default the descheduler considers only NoSchedule taints.
	goal.Heal = &rebalance.Heal{Only: rebalance.NodeTaints, Taints: counts}
	if args.IncludePreferNoSchedule {
		r.anotherGoal(goal, true).Return = &rebalance.Return{Taints: true, TaintCounts: counts}
	}
}

// isNamed reports whether a taint matches an entry of a list; an entry is KEY or KEY=VALUE.
//
//	"dedicated"       any taint of that key
//	"dedicated=gpu"   only with that value
func isNamed(list []string, t *v1.Taint) bool {
	return slices.ContainsFunc(list, func(text string) bool {
		key, value, both := strings.Cut(text, "=")
		return key == t.Key && (!both || value == t.Value)
	})
}

// readSpread reads RemovePodsViolatingTopologySpreadConstraint. By default only hard constraints
// count, as in the descheduler.
func readSpread(r *reader, goal *rebalance.Goal, at *yaml.Node) {
	var args struct {
		scope
		Constraints            []string `json:"constraints"`
		TopologyBalanceNodeFit *bool    `json:"topologyBalanceNodeFit"`
	}
	r.decodeStrictly(at, goal.Name, &args)
	args.applyTo(r, goal, at)
	if fit := args.TopologyBalanceNodeFit; fit != nil && !*fit {
		r.addNote(at, "%s: topologyBalanceNodeFit false has no effect: every move is proved", goal.Name)
	}

	hard, soft := len(args.Constraints) == 0, false
	for _, c := range args.Constraints {
		switch v1.UnsatisfiableConstraintAction(c) {
		case v1.DoNotSchedule:
			hard = true
		case v1.ScheduleAnyway:
			soft = true
		default:
			r.setError(at, "%s: constraints: %q: must be DoNotSchedule or ScheduleAnyway", goal.Name, c)
		}
	}

	if hard {
		goal.Heal = &rebalance.Heal{Only: rebalance.Spread}
	}
	// Soft constraints have a separate gauge, which is less important than the gauge of hard
	// constraints.
	if soft {
		r.anotherGoal(goal, hard).Heal = &rebalance.Heal{Only: rebalance.Spread, Soft: true}
	}
}

// readDuplicates reads RemoveDuplicates, which has namespaces but no label selector.
func readDuplicates(r *reader, goal *rebalance.Goal, at *yaml.Node) {
	var args struct {
		Namespaces *struct {
			Include []string `json:"include"`
			Exclude []string `json:"exclude"`
		} `json:"namespaces"`
		ExcludeOwnerKinds []string `json:"excludeOwnerKinds"`
	}
	r.decodeStrictly(at, goal.Name, &args)
	(&scope{Namespaces: args.Namespaces}).applyTo(r, goal, at)
	goal.Duplicates = &rebalance.Duplicates{ExcludeOwners: args.ExcludeOwnerKinds}
}

// utilizationArgs are the arguments of LowNodeUtilization and HighNodeUtilization. Thresholds are
// percentages of allocatable, by resource.
type utilizationArgs struct {
	Thresholds             map[v1.ResourceName]float64 `json:"thresholds"`
	TargetThresholds       map[v1.ResourceName]float64 `json:"targetThresholds"`
	UseDeviationThresholds bool                        `json:"useDeviationThresholds"`
	NumberOfNodes          uint                        `json:"numberOfNodes"`
	EvictableNamespaces    *struct {
		Exclude []string `json:"exclude"`
	} `json:"evictableNamespaces"`
	// EvictionLimits bound this plugin's evictions from one node.
	EvictionLimits *struct {
		Node *uint `json:"node"`
	} `json:"evictionLimits"`
	// MetricsUtilization is refused: the scheduler places pods by requests, not by usage.
	MetricsUtilization *struct {
		Source        string `json:"source"`
		MetricsServer bool   `json:"metricsServer"`
		Prometheus    *struct {
			Query string `json:"query"`
		} `json:"prometheus"`
	} `json:"metricsUtilization"`
	// EvictionModes has no effect; a note states this.
	EvictionModes []string `json:"evictionModes"`
}

// readUtilization returns the function that reads LowNodeUtilization or, with high,
// HighNodeUtilization.
func readUtilization(high bool) func(r *reader, goal *rebalance.Goal, at *yaml.Node) {
	return func(r *reader, goal *rebalance.Goal, at *yaml.Node) {
		var args utilizationArgs
		r.decodeStrictly(at, goal.Name, &args)
		u := &rebalance.Utilization{
			High: high, Thresholds: args.Thresholds, Targets: args.TargetThresholds,
			Deviation: args.UseDeviationThresholds, MoreThan: int(args.NumberOfNodes),
		}

		// Faults below are recorded, and reading continues: the policy is refused in the end.
		goal.Utilization = u
		if len(args.EvictionModes) > 0 {
			r.addNote(at, "%s: evictionModes has no effect: a node is emptied of all its pods, or left alone", goal.Name)
		}

		// Pods of these namespaces are not evicted, but still count towards the utilization of
		// nodes.
		if args.EvictableNamespaces != nil {
			goal.Scope.Exclude = args.EvictableNamespaces.Exclude
		}
		if args.EvictionLimits != nil {
			u.PerNode = toLimit(args.EvictionLimits.Node)
		}

		if args.MetricsUtilization != nil {
			r.setError(at, "%s: metricsUtilization: not supported, because Berth counts by requests; remove it", goal.Name)
		}
		// Without a resource every node would be below all thresholds.
		if len(u.Thresholds) == 0 {
			r.setError(at, "%s: thresholds: must name a resource", goal.Name)
		}

		r.checkPercentages(at, goal.Name, "thresholds", u.Thresholds)
		if high {
			if len(u.Targets) > 0 || u.Deviation {
				r.setError(at, "%s: targetThresholds and useDeviationThresholds are LowNodeUtilization's", goal.Name)
			}
			// HighNodeUtilization empties nodes and does not use targets. The gauge needs a number
			// for each resource.
			u.Targets = u.Thresholds
			return
		}

		r.checkPercentages(at, goal.Name, "targetThresholds", u.Targets)
		// Deviations are distances from the average in opposite directions, so they are not
		// compared with each other.
		for name, low := range u.Thresholds {
			target, both := u.Targets[name]
			switch {
			case !both:
				r.setError(at, "%s: thresholds and targetThresholds must name the same resources: %s", goal.Name, name)
			// The plugin ignores nodes between the threshold and the target, so the threshold must
			// not be above the target.
			case low > target && !u.Deviation:
				r.setError(at, "%s: thresholds: %s: %g must not be above its target %g", goal.Name, name, low, target)
			}
		}

		if len(u.Targets) != len(u.Thresholds) {
			r.setError(at, "%s: thresholds and targetThresholds must name the same resources", goal.Name)
		}
	}
}

// checkPercentages refuses values outside the range of percentages.
func (r *reader) checkPercentages(at *yaml.Node, plugin, field string, list map[v1.ResourceName]float64) {
	for name, value := range list {
		if value < 0 || value > 100 {
			r.setError(at, "%s: %s: %s: %g must be from 0 to 100", plugin, field, name, value)
		}
	}
}
