// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	config "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// defaultResources are scored if the arguments list no resources, as in upstream. Both weights
// are 1, which lets the fast path use a simpler rule ([LeastAllocatedRule]). Callers receive a
// clone.
var defaultResources = []config.ResourceSpec{
	{Name: string(v1.ResourceCPU), Weight: 1},
	{Name: string(v1.ResourceMemory), Weight: 1},
}

// completeArgs returns a copy of valid arguments with their defaults; nil selects all defaults.
func completeArgs[T any, P interface {
	*T
	DeepCopy() *T
}](args P,
) (P, error) {
	if args == nil {
		args = new(T)
	}
	args = args.DeepCopy()
	SetArgsDefaults(args)
	return args, ValidateArgs(nil, args)
}

// SetArgsDefaults sets the defaults of plugin arguments. It ignores values of other types.
func SetArgsDefaults(args any) {
	switch a := args.(type) {
	case *config.DefaultPreemptionArgs:
		rules.SetDefault(&a.MinCandidateNodesPercentage, 10)
		rules.SetDefault(&a.MinCandidateNodesAbsolute, 100)
	case *config.InterPodAffinityArgs:
		rules.SetDefault(&a.HardPodAffinityWeight, 1)
	case *config.VolumeBindingArgs:
		// Ten minutes, like upstream.
		rules.SetDefault(&a.BindTimeoutSeconds, 600)
		if len(a.Shape) == 0 { // prefers nodes with little storage taken
			a.Shape = []config.UtilizationShapePoint{{Utilization: 0, Score: maxShapeScore}, {Utilization: 100, Score: 0}}
		}
	case *config.NodeResourcesBalancedAllocationArgs:
		a.Resources = defaultedResources(a.Resources)
	case *config.NodeResourcesFitArgs:
		a.ScoringStrategy = cmp.Or(a.ScoringStrategy, &config.ScoringStrategy{Type: config.LeastAllocated})
		a.ScoringStrategy.Resources = defaultedResources(a.ScoringStrategy.Resources)
	case *config.PodTopologySpreadArgs:
		a.DefaultingType = cmp.Or(a.DefaultingType, config.SystemDefaulting)
	case *FragmentationArgs:
		setFragmentationDefaults(a)
	case *config.DynamicResourcesArgs:
		rules.SetDefault(&a.FilterTimeout, metav1.Duration{Duration: config.DynamicResourcesFilterTimeoutDefault})
		rules.SetDefault(&a.BindingTimeout, metav1.Duration{Duration: config.DynamicResourcesBindingTimeoutDefault})
	}
}

// defaultedResources returns the built-in resources for an empty list. It replaces weights of 0 by
// 1 in place, because the API does not distinguish them from omitted weights.
func defaultedResources(list []config.ResourceSpec) []config.ResourceSpec {
	if len(list) == 0 {
		return slices.Clone(defaultResources)
	}
	for i := range list {
		list[i].Weight = cmp.Or(list[i].Weight, 1)
	}
	return list
}

// ValidateArgs checks plugin arguments after [SetArgsDefaults], with upstream's messages. It
// dereferences pointers without a check if the field has a default. path may be nil, for arguments
// from outside a file. Values of other types are valid.
func ValidateArgs(path *field.Path, args any) error {
	var list field.ErrorList
	switch a := args.(type) {
	case *config.DefaultPreemptionArgs:
		list = validatePreemption(path, a)
	case *config.InterPodAffinityArgs:
		if w := *a.HardPodAffinityWeight; w < 0 || w > 100 {
			list = append(list, field.Invalid(path.Child("hardPodAffinityWeight"), w, "not in valid range [0, 100]"))
		}
	case *config.NodeAffinityArgs:
		// The library builds this list of errors itself, as a mix of plain errors and field errors.
		return validateAddedAffinity(path.Child("addedAffinity"), a.AddedAffinity)
	case *config.NodeResourcesBalancedAllocationArgs:
		list = validateBalanced(path.Child("resources"), a.Resources)
	case *config.NodeResourcesFitArgs:
		list = validateFit(path, a)
	case *config.PodTopologySpreadArgs:
		list = validateSpread(path, a)
	case *config.VolumeBindingArgs:
		list = validateVolumeBinding(path, a)
	case *FragmentationArgs:
		list = validateFragmentation(path, a)
	case *config.DynamicResourcesArgs:
		list = validateDynamicResources(path, a)
	}

	return list.ToAggregate()
}

// validatePreemption checks the two bounds on candidates. At least one must be above zero, or
// upstream would search no node.
func validatePreemption(path *field.Path, a *config.DefaultPreemptionArgs) (list field.ErrorList) {
	percentagePath, absolutePath := path.Child("minCandidateNodesPercentage"), path.Child("minCandidateNodesAbsolute")
	percentage, absolute := *a.MinCandidateNodesPercentage, *a.MinCandidateNodesAbsolute
	if percentage < 0 || percentage > 100 {
		list = append(list, field.Invalid(percentagePath, percentage, "not in valid range [0, 100]"))
	}
	if absolute < 0 {
		list = append(list, field.Invalid(absolutePath, absolute, "not in valid range [0, inf)"))
	}
	if percentage == 0 && absolute == 0 {
		list = append(list,
			field.Invalid(percentagePath, percentage, "cannot be zero at the same time as minCandidateNodesAbsolute"),
			field.Invalid(absolutePath, absolute, "cannot be zero at the same time as minCandidateNodesPercentage"))
	}
	return list
}

// validateAddedAffinity parses the affinity added by a profile to all of its pods, with the
// matching library of upstream. It refuses an unparsable affinity, which would fail every attempt.
func validateAddedAffinity(path *field.Path, a *v1.NodeAffinity) error {
	if a == nil {
		return nil
	}
	var errs []error
	if required := a.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
		_, err := nodeaffinity.NewNodeSelector(required, field.WithPath(path.Child("requiredDuringSchedulingIgnoredDuringExecution")))
		errs = append(errs, err)
	}

	if preferred := a.PreferredDuringSchedulingIgnoredDuringExecution; len(preferred) > 0 {
		_, err := nodeaffinity.NewPreferredSchedulingTerms(preferred,
			field.WithPath(path.Child("preferredDuringSchedulingIgnoredDuringExecution")))
		errs = append(errs, err)
	}

	if all := utilerrors.Flatten(utilerrors.NewAggregate(errs)); all != nil {
		return all
	}
	return nil
}

// validateBalanced refuses weights other than 1: the balance is a standard deviation over plain
// shares, where weights are meaningless. It also refuses a resource listed twice, which would count
// twice.
func validateBalanced(path *field.Path, resources []config.ResourceSpec) (list field.ErrorList) {
	seen := sets.New[string]()
	for i, r := range resources {
		if seen.Has(r.Name) {
			list = append(list, field.Duplicate(path.Index(i).Child("name"), r.Name))
		}
		seen.Insert(r.Name)
		if r.Weight != 1 {
			list = append(list, field.Invalid(path.Index(i).Child("weight"), r.Weight, "must be 1"))
		}
	}
	return list
}

// validateFit checks the resources to ignore, by name and by group (the prefix before the slash),
// and the scoring strategy.
func validateFit(path *field.Path, a *config.NodeResourcesFitArgs) (list field.ErrorList) {
	for i, name := range a.IgnoredResources {
		list = append(list, metavalidation.ValidateLabelName(name, path.Child("ignoredResources").Index(i))...)
	}
	for i, group := range a.IgnoredResourceGroups {
		path := path.Child("ignoredResourceGroups").Index(i)
		if strings.Contains(group, "/") {
			list = append(list, field.Invalid(path, group, "resource group name can't contain '/'"))
		}
		list = append(list, metavalidation.ValidateLabelName(group, path)...)
	}
	return append(list, validateStrategy(path.Child("scoringStrategy"), a.ScoringStrategy)...)
}

// validateStrategy checks the scoring strategy. It refuses a shape for strategies that would
// silently ignore it.
func validateStrategy(path *field.Path, s *config.ScoringStrategy) (list field.ErrorList) {
	known := []config.ScoringStrategyType{config.LeastAllocated, config.MostAllocated, config.RequestedToCapacityRatio}
	if !slices.Contains(known, s.Type) {
		list = append(list, field.NotSupported(path.Child("type"), s.Type, known))
	}

	for i, r := range s.Resources {
		if r.Weight <= 0 || r.Weight > 100 {
			message := fmt.Sprintf("resource weight of %v not in valid range (0, 100]", r.Name)
			list = append(list, field.Invalid(path.Child("resources").Index(i).Child("weight"), r.Weight, message))
		}
	}

	switch ratioPath := path.Child("requestedToCapacityRatio"); {
	case s.Type == config.RequestedToCapacityRatio && s.RequestedToCapacityRatio == nil:
		list = append(list, field.Required(ratioPath, "must be specified when type is RequestedToCapacityRatio"))
	case s.Type == config.RequestedToCapacityRatio:
		list = append(list, validateShape(ratioPath.Child("shape"), s.RequestedToCapacityRatio.Shape)...)
	case s.RequestedToCapacityRatio != nil:
		list = append(list, field.Forbidden(ratioPath, "must be nil when type is not RequestedToCapacityRatio"))
	}

	return list
}

// validateShape requires strictly increasing utilisations, because interpolation between two points
// divides by their distance. It reports only the first pair out of order.
func validateShape(path *field.Path, points []config.UtilizationShapePoint) (list field.ErrorList) {
	if len(points) == 0 {
		return field.ErrorList{field.Required(path, "at least one point must be specified")}
	}
	for i := 1; i < len(points); i++ {
		if points[i-1].Utilization >= points[i].Utilization {
			list = append(list, field.Invalid(path.Index(i).Child("utilization"), points[i].Utilization,
				"values must be sorted in increasing order"))
			break
		}
	}

	for i, p := range points {
		if p.Utilization < 0 || p.Utilization > 100 {
			list = append(list, field.Invalid(path.Index(i).Child("utilization"), p.Utilization, "not in valid range [0, 100]"))
		}
		if p.Score < 0 || p.Score > maxShapeScore {
			list = append(list, field.Invalid(path.Index(i).Child("score"), p.Score, "not in valid range [0, 10]"))
		}
	}

	return list
}

// validateSpread checks the default constraints. It refuses constraints with defaultingType System,
// which would ignore them.
func validateSpread(path *field.Path, a *config.PodTopologySpreadArgs) (list field.ErrorList) {
	types := []config.PodTopologySpreadConstraintsDefaulting{config.SystemDefaulting, config.ListDefaulting}
	switch {
	case !slices.Contains(types, a.DefaultingType):
		list = append(list, field.NotSupported(path.Child("defaultingType"), a.DefaultingType, types))
	case a.DefaultingType == config.SystemDefaulting && len(a.DefaultConstraints) > 0:
		list = append(list, field.Invalid(path.Child("defaultingType"), a.DefaultingType, "when .defaultConstraints are not empty"))
	}
	for i := range a.DefaultConstraints {
		list = append(list, validateConstraint(path.Child("defaultConstraints").Index(i), &a.DefaultConstraints[i],
			a.DefaultConstraints[:i])...)
	}
	return list
}

// validateConstraint checks one default constraint; before holds its predecessors in the list. The
// constraint must not have a selector, which is derived for each pod from its Services and its
// controller.
func validateConstraint(path *field.Path, c *v1.TopologySpreadConstraint, before []v1.TopologySpreadConstraint) (list field.ErrorList) {
	if c.MaxSkew <= 0 {
		list = append(list, field.Invalid(path.Child("maxSkew"), c.MaxSkew, "not in valid range (0, inf)"))
	}
	if c.TopologyKey == "" {
		list = append(list, field.Required(path.Child("topologyKey"), "can not be empty"))
	} else {
		list = append(list, metavalidation.ValidateLabelName(c.TopologyKey, path.Child("topologyKey"))...)
	}

	actions := []v1.UnsatisfiableConstraintAction{v1.DoNotSchedule, v1.ScheduleAnyway}
	if c.WhenUnsatisfiable == "" {
		list = append(list, field.Required(path.Child("whenUnsatisfiable"), "can not be empty"))
	} else if !slices.Contains(actions, c.WhenUnsatisfiable) {
		list = append(list, field.NotSupported(path.Child("whenUnsatisfiable"), c.WhenUnsatisfiable, actions))
	}

	if c.LabelSelector != nil {
		list = append(list, field.Forbidden(path.Child("labelSelector"),
			"constraint must not define a selector, as they deduced for each pod"))
	}

	for i := range before {
		if before[i].TopologyKey == c.TopologyKey && before[i].WhenUnsatisfiable == c.WhenUnsatisfiable {
			list = append(list, field.Duplicate(path, fmt.Sprintf("{%v, %v}", c.TopologyKey, c.WhenUnsatisfiable)))
			break
		}
	}
	return list
}

// validateVolumeBinding accepts a timeout of zero seconds, like upstream.
func validateVolumeBinding(path *field.Path, a *config.VolumeBindingArgs) (list field.ErrorList) {
	if t := *a.BindTimeoutSeconds; t < 0 {
		list = append(list, field.Invalid(path.Child("bindTimeoutSeconds"), t,
			"invalid BindTimeoutSeconds, should not be a negative value"))
	}
	return append(list, validateShape(path.Child("shape"), a.Shape)...)
}

// validateDynamicResources accepts a filterTimeout of zero, which configures no limit. See
// boundedSearch for the bound Berth then applies.
func validateDynamicResources(path *field.Path, a *config.DynamicResourcesArgs) (list field.ErrorList) {
	if t := a.FilterTimeout; t.Duration < 0 {
		list = append(list, field.Invalid(path.Child("filterTimeout"), t, "must be zero or positive"))
	}
	if t := a.BindingTimeout; t.Duration < time.Second {
		list = append(list, field.Invalid(path.Child("bindingTimeout"), t, "must be at least 1 second"))
	}
	return list
}
