// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"strings"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	componentbase "k8s.io/component-base/config/v1alpha1"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// validateSpec checks everything except the existence of the plugins (see resolvePlugins). All
// problems are reported, in upstream's words and order. Defaults must be set: pointers are
// dereferenced.
func validateSpec(spec *configv1.KubeSchedulerConfiguration) error {
	var list field.ErrorList
	if spec.ClientConnection.Burst < 0 {
		list = append(list, field.Invalid(field.NewPath("clientConnection", "burst"), spec.ClientConnection.Burst, "must be non-negative"))
	}
	list = append(list, validateElection(field.NewPath("leaderElection"), &spec.LeaderElection)...)
	if *spec.Parallelism <= 0 {
		list = append(list, field.Invalid(field.NewPath("parallelism"), *spec.Parallelism, "should be an integer value greater than zero"))
	}
	// Errors are collected in three parts, because profiles are checked in the middle and some of
	// their errors do not concern fields.
	errs := []error{list.ToAggregate(), validateProfiles(field.NewPath("profiles"), spec.Profiles)}

	list = validatePercentage(field.NewPath("percentageOfNodesToScore"), spec.PercentageOfNodesToScore)
	first, longest := *spec.PodInitialBackoffSeconds, *spec.PodMaxBackoffSeconds
	if first <= 0 {
		list = append(list, field.Invalid(field.NewPath("podInitialBackoffSeconds"), first, "must be greater than 0"))
	}
	// As in upstream, check the second value even if the first is invalid.
	if longest < first {
		list = append(list, field.Invalid(field.NewPath("podMaxBackoffSeconds"), longest,
			"must be greater than or equal to PodInitialBackoffSeconds"))
	}
	list = append(list, validateExtenders(field.NewPath("extenders"), spec.Extenders)...)
	return flattenErrors(append(errs, list.ToAggregate()))
}

// flattenErrors joins errors into one. It returns nil if there are no errors.
func flattenErrors(errs []error) error {
	if all := utilerrors.Flatten(utilerrors.NewAggregate(errs)); all != nil {
		return all
	}
	return nil
}

// validatePercentage checks a share of the nodes. It has no effect in Berth, but Berth refuses the
// same values as upstream.
func validatePercentage(path *field.Path, percentage *int32) field.ErrorList {
	if percentage != nil && (*percentage < 0 || *percentage > 100) {
		return field.ErrorList{field.Invalid(path, *percentage, "not in valid range [0-100]")}
	}
	return nil
}

// validateElection checks the timing of leader election, if it is on. A lease must outlast its
// holder's attempts to renew it, or two schedulers could lead.
func validateElection(path *field.Path, e *componentbase.LeaderElectionConfiguration) (list field.ErrorList) {
	if !*e.LeaderElect {
		return nil
	}
	if e.LeaseDuration.Duration <= 0 {
		list = append(list, field.Invalid(path.Child("leaseDuration"), e.LeaseDuration, "must be greater than zero"))
	}

	if e.RenewDeadline.Duration <= 0 {
		list = append(list, field.Invalid(path.Child("renewDeadline"), e.RenewDeadline, "must be greater than zero"))
	}
	if e.RetryPeriod.Duration <= 0 {
		list = append(list, field.Invalid(path.Child("retryPeriod"), e.RetryPeriod, "must be greater than zero"))
	}

	// Otherwise a leader could continue working while another scheduler acquires its Lease.
	if e.LeaseDuration.Duration <= e.RenewDeadline.Duration {
		list = append(list, field.Invalid(path.Child("leaseDuration"), e.LeaseDuration, "must be greater than `RenewDeadline`"))
	}
	if e.ResourceLock != "leases" {
		list = append(list, field.Invalid(path.Child("resourceLock"), e.ResourceLock, `resourceLock value must be "leases"`))
	}
	return list
}

// validateProfiles checks each profile by itself, and that their names differ.
func validateProfiles(path *field.Path, profiles []configv1.KubeSchedulerProfile) error {
	var errs []error
	seen := sets.New[string]()
	for i := range profiles {
		profile, path := &profiles[i], path.Index(i)
		if profile.SchedulerName == nil || *profile.SchedulerName == "" {
			errs = append(errs, field.Required(path.Child("schedulerName"), ""))
			// The following checks need a name to report further errors.
			rules.SetDefault(&profiles[i].SchedulerName, "")
		}
		errs = append(errs, validatePercentage(path.Child("percentageOfNodesToScore"), profile.PercentageOfNodesToScore).ToAggregate())
		errs = append(errs, validateRemoved(path, profile).ToAggregate(),
			validatePluginConfig(path.Child("pluginConfig"), profile.PluginConfig))
		if seen.Has(*profile.SchedulerName) {
			errs = append(errs, field.Duplicate(path.Child("schedulerName"), *profile.SchedulerName))
		}
		seen.Insert(*profile.SchedulerName)
	}

	return flattenErrors(append(errs, validateQueueSort(path, profiles).ToAggregate()))
}

// removed holds plugins of earlier versions that upstream refuses by name.
var removed = sets.New("AzureDiskLimits", "CinderLimits", "EBSLimits", "GCEPDLimits")

// removedError returns upstream's refusal of a removed plugin, including upstream's version.
func removedError(path *field.Path, name string) *field.Error {
	version := configv1.SchemeGroupVersion.String()
	return field.Invalid(path, name, fmt.Sprintf("was invalid in version %q (KubeSchedulerConfiguration is version %q)", "v1", version))
}

// validateRemoved looks for removed plugins at single points. At multiPoint, removed plugins count
// as unknown.
func validateRemoved(path *field.Path, profile *configv1.KubeSchedulerProfile) (list field.ErrorList) {
	for _, point := range plugins.AllPoints {
		for i, plugin := range pluginSet(profile.Plugins, point).Enabled {
			if removed.Has(plugin.Name) {
				list = append(list, removedError(path.Child("plugins", point.String(), "enabled").Index(i), plugin.Name))
			}
		}
	}
	return list
}

// validatePluginConfig checks the arguments of a profile's plugins. Arguments of out-of-tree
// plugins are not decoded and not checked.
func validatePluginConfig(path *field.Path, configs []configv1.PluginConfig) error {
	var errs []error
	seen := sets.New[string]()
	for i := range configs {
		path, name := path.Index(i), configs[i].Name
		if seen.Has(name) {
			errs = append(errs, field.Duplicate(path, name))
		}
		seen.Insert(name)
		switch args := configs[i].Args.Object.(type) {
		// The arguments are nil if they were not decoded.
		case nil, *configv1.NodeResourcesFitArgs: // see validateFitArgs
		default:
			errs = append(errs, plugins.ValidateArgs(path.Child("args"), args))
		}
		if removed.Has(name) {
			errs = append(errs, removedError(path, name))
		}
	}
	return flattenErrors(errs)
}

// validateQueueSort checks that all profiles have the same queue sort plugin, because pods of all
// profiles are in the same queue.
func validateQueueSort(path *field.Path, profiles []configv1.KubeSchedulerProfile) (list field.ErrorList) {
	first := mergePlugins(profiles[0].Plugins).QueueSort
	// resolvePlugins checks that there is a queue sort, after the expansion of multiPoint.
	if n := len(first.Enabled); n > 1 {
		list = append(list, field.Invalid(path.Index(0).Child("plugins", "queueSort", "Enabled"), n,
			"only one queue sort plugin can be enabled"))
	}
	for i := 1; i < len(profiles); i++ {
		if other := mergePlugins(profiles[i].Plugins).QueueSort; !apiequality.Semantic.DeepEqual(first, other) {
			list = append(list, field.Invalid(path.Index(i).Child("plugins", "queueSort"), other, "must be the same for all profiles"))
		}
	}
	return list
}

// validateExtenders checks extenders. Only one may bind, and each managed resource may be listed
// only once.
func validateExtenders(path *field.Path, extenders []configv1.Extender) (list field.ErrorList) {
	binders := 0
	managed := sets.New[string]()
	for i := range extenders {
		extender, path := &extenders[i], path.Index(i)
		// Without the verb the weight is not used.
		if extender.PrioritizeVerb != "" && extender.Weight <= 0 {
			list = append(list, field.Invalid(path.Child("weight"), extender.Weight, "must have a positive weight applied to it"))
		}
		if extender.BindVerb != "" {
			binders++
		}
		for j, resource := range extender.ManagedResources {
			path := path.Child("managedResources").Index(j).Child("name")
			list = append(list, validateExtendedResource(path, resource.Name)...)
			if managed.Has(resource.Name) {
				list = append(list, field.Invalid(path, resource.Name, "duplicate extender managed resource name"))
			}
			managed.Insert(resource.Name)
		}
	}

	// Only one extender can bind a pod.
	if binders > 1 {
		list = append(list, field.Invalid(path, fmt.Sprintf("found %d extenders implementing bind", binders),
			"only one extender can implement bind"))
	}
	return list
}

// validateExtendedResource checks a resource managed by an extender: it must be an extended
// resource. CPU and memory are always managed by the scheduler.
func validateExtendedResource(path *field.Path, name string) (list field.ErrorList) {
	for _, message := range validation.IsQualifiedName(name) {
		list = append(list, field.Invalid(path, name, message))
	}
	if len(list) > 0 {
		return list
	}
	// The same rule as for the resources of pods: see rules.IsExtendedResource.
	native := !strings.Contains(name, "/") || strings.Contains(name, "kubernetes.io/")
	if native || strings.HasPrefix(name, "requests.") || len(validation.IsQualifiedName("requests."+name)) > 0 {
		list = append(list, field.Invalid(path, name, "is an invalid extended resource name"))
	}
	return list
}
