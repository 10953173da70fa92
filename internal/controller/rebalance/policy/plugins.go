package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
)

// plugin is a plugin of the descheduler: its extension point, and how its arguments become a goal.
type plugin struct {
	point string
	into  func(r *reader, goal *rebalance.Goal, args *yaml.Node)
}

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

// scope are the arguments that most plugins have.
type scope struct {
	Namespaces *struct {
		Include []string `json:"include"`
		Exclude []string `json:"exclude"`
	} `json:"namespaces"`
	LabelSelector *metav1.LabelSelector `json:"labelSelector"`
}

func (s *scope) applyTo(r *reader, goal *rebalance.Goal, at *yaml.Node) {
	if s.Namespaces != nil {
		goal.Scope.Include, goal.Scope.Exclude = s.Namespaces.Include, s.Namespaces.Exclude
		if len(s.Namespaces.Include) > 0 && len(s.Namespaces.Exclude) > 0 {
			r.setError(at, "%s: namespaces: must have include or exclude, not both", goal.Name)
		}
	}
	goal.Scope.Pods = r.readSelector(at, s.LabelSelector)
}

func antiAffinity(r *reader, goal *rebalance.Goal, at *yaml.Node) {
	var args struct{ scope }
	r.decodeStrictly(at, goal.Name, &args)
	args.applyTo(r, goal, at)
	goal.Heal = &rebalance.Heal{Only: rebalance.AntiAffinity}
}

func nodeAffinity(r *reader, goal *rebalance.Goal, at *yaml.Node) {
	var args struct {
		scope
		NodeAffinityType []string `json:"nodeAffinityType"`
	}
	r.decodeStrictly(at, goal.Name, &args)
	args.applyTo(r, goal, at)
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

// anotherGoal returns the goal, or if it is taken, a second one for the same plugin: one whose
// arguments ask for what hard constraints and what preferences want.
func (r *reader) anotherGoal(goal *rebalance.Goal, taken bool) *rebalance.Goal {
	if !taken {
		return goal
	}
	second := *goal
	second.Heal = nil
	r.second = &second
	return r.second
}

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

	counts := func(t *v1.Taint) bool {
		if len(args.IncludedTaints) > 0 {
			return isNamed(args.IncludedTaints, t)
		}
		return !isNamed(args.ExcludedTaints, t)
	}

	goal.Heal = &rebalance.Heal{Only: rebalance.NodeTaints, Taints: counts}
	if args.IncludePreferNoSchedule {
		r.anotherGoal(goal, true).Return = &rebalance.Return{Taints: true, TaintCounts: counts}
	}
}

// isNamed reports whether a taint is in a list of keys and key=value.
func isNamed(list []string, t *v1.Taint) bool {
	return slices.ContainsFunc(list, func(text string) bool {
		key, value, both := strings.Cut(text, "=")
		return key == t.Key && (!both || value == t.Value)
	})
}

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
	if soft {
		r.anotherGoal(goal, hard).Heal = &rebalance.Heal{Only: rebalance.Spread, Soft: true}
	}
}

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

// utilizationArgs are those of LowNodeUtilization and HighNodeUtilization.
type utilizationArgs struct {
	Thresholds             map[v1.ResourceName]float64 `json:"thresholds"`
	TargetThresholds       map[v1.ResourceName]float64 `json:"targetThresholds"`
	UseDeviationThresholds bool                        `json:"useDeviationThresholds"`
	NumberOfNodes          uint                        `json:"numberOfNodes"`
	EvictableNamespaces    *struct {
		Exclude []string `json:"exclude"`
	} `json:"evictableNamespaces"`
	EvictionLimits *struct {
		Node *uint `json:"node"`
	} `json:"evictionLimits"`
	MetricsUtilization *struct {
		Source        string `json:"source"`
		MetricsServer bool   `json:"metricsServer"`
		Prometheus    *struct {
			Query string `json:"query"`
		} `json:"prometheus"`
	} `json:"metricsUtilization"`
	EvictionModes []string `json:"evictionModes"`
}

func readUtilization(high bool) func(r *reader, goal *rebalance.Goal, at *yaml.Node) {
	return func(r *reader, goal *rebalance.Goal, at *yaml.Node) {
		var args utilizationArgs
		r.decodeStrictly(at, goal.Name, &args)
		u := &rebalance.Utilization{
			High: high, Thresholds: args.Thresholds, Targets: args.TargetThresholds,
			Deviation: args.UseDeviationThresholds, MoreThan: int(args.NumberOfNodes),
		}

		goal.Utilization = u
		if len(args.EvictionModes) > 0 {
			r.addNote(at, "%s: evictionModes has no effect: a node is emptied of all its pods, or left alone", goal.Name)
		}

		if args.EvictableNamespaces != nil {
			goal.Scope.Exclude = args.EvictableNamespaces.Exclude
		}
		if args.EvictionLimits != nil {
			u.PerNode = toLimit(args.EvictionLimits.Node)
		}

		if args.MetricsUtilization != nil {
			r.setError(at, "%s: metricsUtilization: Berth counts by requests and knows no metrics; leave it out", goal.Name)
		}
		if len(u.Thresholds) == 0 {
			r.setError(at, "%s: thresholds: must name a resource", goal.Name)
		}

		r.checkPercentages(at, goal.Name, "thresholds", u.Thresholds)
		if high {
			if len(u.Targets) > 0 || u.Deviation {
				r.setError(at, "%s: targetThresholds and useDeviationThresholds are LowNodeUtilization's", goal.Name)
			}
			u.Targets = u.Thresholds
			return
		}

		r.checkPercentages(at, goal.Name, "targetThresholds", u.Targets)
		for name, low := range u.Thresholds {
			target, both := u.Targets[name]
			switch {
			case !both:
				r.setError(at, "%s: thresholds and targetThresholds must name the same resources: %s", goal.Name, name)
			case low > target && !u.Deviation:
				r.setError(at, "%s: thresholds: %s: %g must not be above its target %g", goal.Name, name, low, target)
			}
		}

		if len(u.Targets) != len(u.Thresholds) {
			r.setError(at, "%s: thresholds and targetThresholds must name the same resources", goal.Name)
		}
	}
}

func (r *reader) checkPercentages(at *yaml.Node, plugin, field string, list map[v1.ResourceName]float64) {
	for name, value := range list {
		if value < 0 || value > 100 {
			r.setError(at, "%s: %s: %s: %g must be from 0 to 100", plugin, field, name, value)
		}
	}
}

func readRestarts(r *reader, goal *rebalance.Goal, at *yaml.Node) {
	var args struct {
		scope
		PodRestartThreshold     int32    `json:"podRestartThreshold"`
		IncludingInitContainers bool     `json:"includingInitContainers"`
		States                  []string `json:"states"`
	}
	r.decodeStrictly(at, goal.Name, &args)
	args.applyTo(r, goal, at)
	if args.PodRestartThreshold < 1 {
		r.setError(at, "%s: podRestartThreshold: must be 1 or more", goal.Name)
	}

	r.checkStates(at, goal.Name, args.States, restartStates)
	count := func(o *v1.Pod) int32 { return restartsOf(o, args.IncludingInitContainers) }
	goal.Renew = &rebalance.Renew{
		Wants: func(o *v1.Pod, _ time.Time) string {
			if n := count(o); n >= args.PodRestartThreshold && inState(o, args.States, args.IncludingInitContainers, false) {
				return fmt.Sprintf("its containers were restarted %d times", n)
			}
			return ""
		},
		Before: func(a, b *v1.Pod) int { return cmp.Compare(count(b), count(a)) },
	}
}

func readLifetime(r *reader, goal *rebalance.Goal, at *yaml.Node) {
	var args struct {
		scope
		MaxPodLifeTimeSeconds *uint       `json:"maxPodLifeTimeSeconds"`
		States                []string    `json:"states"`
		Conditions            []condition `json:"conditions"`
		ExitCodes             []int32     `json:"exitCodes"`
		OwnerKinds            *struct {
			Include []string `json:"include"`
			Exclude []string `json:"exclude"`
		} `json:"ownerKinds"`
		IncludingInitContainers      bool `json:"includingInitContainers"`
		IncludingEphemeralContainers bool `json:"includingEphemeralContainers"`
	}

	r.decodeStrictly(at, goal.Name, &args)
	args.applyTo(r, goal, at)
	if args.MaxPodLifeTimeSeconds == nil && len(args.States) == 0 && len(args.Conditions) == 0 && len(args.ExitCodes) == 0 {
		r.setError(at, "%s: must have maxPodLifeTimeSeconds, states, conditions or exitCodes", goal.Name)
	}

	r.checkStates(at, goal.Name, args.States, lifetimeStates)
	if slices.Contains(args.Conditions, condition{}) {
		r.setError(at, "%s: conditions: each must have a type, status, reason or minTimeSinceLastTransitionSeconds", goal.Name)
	}

	kinds := args.OwnerKinds
	if kinds != nil && len(kinds.Include) > 0 && len(kinds.Exclude) > 0 {
		r.setError(at, "%s: ownerKinds: must have include or exclude, not both", goal.Name)
	}

	goal.Renew = &rebalance.Renew{
		Wants: func(o *v1.Pod, now time.Time) string {
			age := now.Sub(o.CreationTimestamp.Time)
			switch {
			case args.MaxPodLifeTimeSeconds != nil && !isOlder(age, *args.MaxPodLifeTimeSeconds),
				!inState(o, args.States, args.IncludingInitContainers, args.IncludingEphemeralContainers),
				!hasExited(o, args.ExitCodes, args.IncludingInitContainers),
				!hasCondition(o, args.Conditions, now),
				kinds != nil && !ofKind(o, kinds.Include, kinds.Exclude):
				return ""
			}
			if args.MaxPodLifeTimeSeconds == nil {
				return "its status is one that the policy names"
			}
			return fmt.Sprintf("it is %s old", age.Truncate(time.Second))
		},
		Before: func(a, b *v1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) },
	}
}

func readFailed(r *reader, goal *rebalance.Goal, at *yaml.Node) {
	args := struct {
		scope
		MinPodLifetimeSeconds   *uint    `json:"minPodLifetimeSeconds"`
		Reasons                 []string `json:"reasons"`
		ExitCodes               []int32  `json:"exitCodes"`
		IncludingInitContainers bool     `json:"includingInitContainers"`
		ExcludeOwnerKinds       []string `json:"excludeOwnerKinds"`
	}{}

	r.decodeStrictly(at, goal.Name, &args)
	args.applyTo(r, goal, at)
	age := uint(3600)
	if args.MinPodLifetimeSeconds != nil {
		age = *args.MinPodLifetimeSeconds
	}

	goal.Renew = &rebalance.Renew{
		Title: "failed pods",
		Wants: func(o *v1.Pod, now time.Time) string {
			switch {
			case o.Status.Phase != v1.PodFailed, now.Sub(o.CreationTimestamp.Time).Seconds() < float64(age),
				!ofKind(o, nil, args.ExcludeOwnerKinds),
				len(args.Reasons) > 0 &&
					!slices.ContainsFunc(args.Reasons,
						func(reason string) bool { return hasReason(o, reason, args.IncludingInitContainers) }),
				!hasExited(o, args.ExitCodes, args.IncludingInitContainers):
				return ""
			}
			return "it has failed"
		},
		Before: func(a, b *v1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) },
	}
}
