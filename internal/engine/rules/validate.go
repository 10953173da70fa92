// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// These checks cover the fields read by a scheduler: names, labels, taints, tolerations, selectors,
// affinity, spread constraints, resources, ports, gates, classes. [ValidateApplied] checks others,
// such as images, volumes and probes. Errors equal the API server's in field, type and detail;
// test/words compares the errors of both.

// ValidatePod checks a pod like the API server on creation, after defaulting. Without the defaults,
// it reports omitted optional fields as missing. It returns nil for a valid pod.
func ValidatePod(pod *v1.Pod) field.ErrorList {
	errs := apivalidation.ValidateObjectMeta(&pod.ObjectMeta, true, apivalidation.NameIsDNSSubdomain, field.NewPath("metadata"))
	errs = append(errs, ValidatePodSpec(&pod.Spec, field.NewPath("spec"))...)
	// No scheduler waits for the gates of a pod bound on creation.
	if pod.Spec.NodeName != "" && len(pod.Spec.SchedulingGates) > 0 {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "nodeName"), "cannot be set until all schedulingGates have been cleared"))
	}
	return errs
}

// Brief returns err with at most its first sixteen errors. Building the text of an aggregate takes
// time with the square of its length, and a tenant's pod has room for thousands of invalid values.
func Brief(err error) error {
	const most = 16
	if all, many := err.(utilerrors.Aggregate); many && len(all.Errors()) > most {
		return utilerrors.NewAggregate(all.Errors()[:most])
	}
	return err
}

// ValidatePodSpec checks the spec of a pod or of a pod template. path is the location of the spec,
// and prefixes every error. Errors are in the API server's order.
func ValidatePodSpec(spec *v1.PodSpec, path *field.Path) field.ErrorList {
	errs := validateContainers(spec, path)
	check := func(there bool, name string, faults func(path *field.Path) field.ErrorList) {
		if there { // most pods have few of these fields, so make paths only for present fields
			errs = append(errs, faults(path.Child(name))...)
		}
	}
	check(spec.Resources != nil, "resources", func(at *field.Path) field.ErrorList { return validatePodResources(spec, at) })
	check(len(spec.ResourceClaims) > 0, "resourceClaims",
		func(at *field.Path) field.ErrorList { return validateResourceClaims(spec.ResourceClaims, at) })
	check(len(spec.NodeSelector) > 0, "nodeSelector",
		func(at *field.Path) field.ErrorList { return metavalidation.ValidateLabels(spec.NodeSelector, at) })
	check(spec.Affinity != nil, "affinity", func(at *field.Path) field.ErrorList { return validateAffinity(spec.Affinity, at) })
	check(len(spec.TopologySpreadConstraints) > 0, "topologySpreadConstraints",
		func(at *field.Path) field.ErrorList { return validateSpread(spec.TopologySpreadConstraints, at) })
	check(len(spec.SchedulingGates) > 0, "schedulingGates",
		func(at *field.Path) field.ErrorList { return validateGates(spec.SchedulingGates, at) })
	check(len(spec.Tolerations) > 0, "tolerations",
		func(at *field.Path) field.ErrorList { return ValidateTolerations(spec.Tolerations, at) })
	check(spec.NodeName != "", "nodeName", func(at *field.Path) field.ErrorList { return validateOptionalName(spec.NodeName, at) })
	check(spec.PriorityClassName != "", "priorityClassName",
		func(at *field.Path) field.ErrorList { return validateOptionalName(spec.PriorityClassName, at) })
	// The field is a pointer, so an empty name counts as a given, invalid name.
	if spec.RuntimeClassName != nil {
		errs = append(errs, invalidErrors(path.Child("runtimeClassName"), *spec.RuntimeClassName,
			apivalidation.NameIsDNSSubdomain(*spec.RuntimeClassName, false))...)
	}

	if spec.PreemptionPolicy != nil {
		errs = append(errs, validatePreemptionPolicy(*spec.PreemptionPolicy, path.Child("preemptionPolicy"))...)
	}
	// Pod templates may omit the policy.
	errs = append(errs, oneOf(path.Child("restartPolicy"), spec.RestartPolicy,
		v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever)...)

	check(len(spec.Overhead) > 0, "overhead", func(at *field.Path) field.ErrorList { return validateResourceList(spec.Overhead, at) })
	return errs
}

// validateContainers checks names, ports and resources of all containers. It does not report empty
// names, which the API server refuses.
func validateContainers(spec *v1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	claims := claimNames(spec.ResourceClaims)
	names := map[string]bool{}
	check := func(container *v1.Container, path *field.Path) {
		// Without a name there are no duplicates to detect.
		if container.Name != "" {
			errs = append(errs, invalidErrors(path.Child("name"), container.Name, validation.IsDNS1123Label(container.Name))...)
			if names[container.Name] {
				errs = append(errs, field.Duplicate(path.Child("name"), container.Name))
			}
			names[container.Name] = true
		}
		errs = append(errs, validatePorts(container.Ports, path.Child("ports"))...)
		errs = append(errs, validateRequirements(&container.Resources, containerResourceName, path.Child("resources"))...)
		errs = append(errs, validateClaimRefs(container.Resources.Claims, claims, path.Child("resources", "claims"))...)
	}
	// Containers precede init containers, so that an error about a repeated name is reported at the
	// init container.
	for i := range spec.Containers {
		check(&spec.Containers[i], path.Child("containers").Index(i))
	}
	for i := range spec.InitContainers {
		check(&spec.InitContainers[i], path.Child("initContainers").Index(i))
		// Check each init container separately, since they run one after the other. The index 0 in
		// every path is a mistake of upstream, kept so that messages are equal.
		errs = append(errs, validateHostPorts(spec.InitContainers[i:i+1], false, path.Child("initContainers"))...)
	}
	return append(errs, validateHostPorts(spec.Containers, spec.HostNetwork, path.Child("containers"))...)
}

// ValidateNode checks a node like the API server on creation, with one difference: upstream reports
// errors in taints at metadata.taints, which does not exist; here it is spec.taints. In the status,
// it checks only the amounts.
func ValidateNode(node *v1.Node) field.ErrorList {
	errs := apivalidation.ValidateObjectMeta(&node.ObjectMeta, false, apivalidation.NameIsDNSSubdomain, field.NewPath("metadata"))
	errs = append(errs, ValidateTaints(node.Spec.Taints, field.NewPath("spec", "taints"))...)
	errs = append(errs, ValidateAmounts(node.Status.Capacity, field.NewPath("status", "capacity"))...)
	return append(errs, ValidateAmounts(node.Status.Allocatable, field.NewPath("status", "allocatable"))...)
}

// ValidateMeta checks the metadata of an object named by a DNS subdomain, like most objects. If
// namespaced is true, the object must have a namespace, otherwise it must not have one.
func ValidateMeta(meta *metav1.ObjectMeta, namespaced bool) field.ErrorList {
	return apivalidation.ValidateObjectMeta(meta, namespaced, apivalidation.NameIsDNSSubdomain, field.NewPath("metadata"))
}

// validateGates checks that scheduling gates are qualified names and differ.
func validateGates(gates []v1.PodSchedulingGate, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[string]bool{}
	for i, gate := range gates {
		errs = append(errs, invalidErrors(path.Index(i), gate.Name, validation.IsQualifiedName(gate.Name))...)
		if seen[gate.Name] {
			errs = append(errs, field.Duplicate(path.Index(i), gate.Name))
		}
		seen[gate.Name] = true
	}
	return errs
}

// validatePreemptionPolicy checks the policy of pods and priority classes. An empty policy is an
// error: the field is a pointer, and nil means omitted.
func validatePreemptionPolicy(policy v1.PreemptionPolicy, path *field.Path) field.ErrorList {
	if policy == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	return oneOf(path, policy, v1.PreemptLowerPriority, v1.PreemptNever)
}

// validateOptionalName checks a reference to an object. The reference may be empty.
func validateOptionalName(name string, path *field.Path) field.ErrorList {
	if name == "" {
		return nil
	}
	return invalidErrors(path, name, apivalidation.NameIsDNSSubdomain(name, false))
}

// invalidErrors makes an error of each fault found by a name check. It returns nil if there are no
// faults.
func invalidErrors(path *field.Path, value any, faults []string) field.ErrorList {
	return Mapped(faults, func(fault string) *field.Error { return field.Invalid(path, value, fault) })
}

// requiredErrors is invalidErrors for a required field, whose faults do not count if it is unset.
func requiredErrors[T comparable](path *field.Path, value T, faults []string) field.ErrorList {
	if value == *new(T) {
		return field.ErrorList{field.Required(path, "")}
	}
	return invalidErrors(path, value, faults)
}

// sortedKeys returns the sorted keys of a map, to make the order of errors deterministic. The API
// server reports such errors in random order.
func sortedKeys[K ~string, V any](m map[K]V) []K {
	return slices.SortedFunc(maps.Keys(m), func(a, b K) int { return strings.Compare(string(a), string(b)) })
}

// The priorities reserved by Kubernetes and their names, which the API does not publish as
// constants. Pods of users have at most HighestUserPriority; pods with SystemCritical or a higher
// priority are critical to the cluster.
const (
	HighestUserPriority   int32 = 1_000_000_000
	SystemCritical        int32 = 2_000_000_000
	SystemClusterCritical       = "system-cluster-critical"
	SystemNodeCritical          = "system-node-critical"

	systemPrefix = "system-"
)

// SystemPriority returns the value of a priority class that exists in every cluster. known is false
// for all other classes. Node-critical pods precede cluster-critical pods.
func SystemPriority(class string) (value int32, known bool) {
	switch class {
	case SystemClusterCritical:
		return SystemCritical, true
	case SystemNodeCritical:
		return SystemCritical + 1000, true
	}
	return 0, false
}

// ValidatePriorityClass checks a priority class on creation. Names with the prefix system- and
// values above HighestUserPriority are reserved for the two classes of Kubernetes.
func ValidatePriorityClass(class *schedulingv1.PriorityClass) field.ErrorList {
	errs := ValidateMeta(&class.ObjectMeta, false)
	if strings.HasPrefix(class.Name, systemPrefix) {
		if fault := systemClassFault(class); fault != "" {
			errs = append(errs, field.Forbidden(field.NewPath("metadata", "name"),
				"priority class names with 'system-' prefix are reserved for system use only. error: "+fault))
		}
		// Negative values are valid: such pods have a lower priority than all other pods.
	} else if class.Value > HighestUserPriority {
		errs = append(errs, field.Forbidden(field.NewPath("value"),
			fmt.Sprintf("maximum allowed value of a user defined priority is %d", HighestUserPriority)))
	}
	if class.PreemptionPolicy != nil {
		errs = append(errs, validatePreemptionPolicy(*class.PreemptionPolicy, field.NewPath("preemptionPolicy"))...)
	}
	return errs
}

// systemClassFault returns the reason to refuse a class name with the prefix system-. It returns ""
// for the two classes present in every cluster, if unchanged.
func systemClassFault(class *schedulingv1.PriorityClass) string {
	value, known := SystemPriority(class.Name)
	switch {
	case !known:
		return class.Name + " is not a known system priority class"
	case class.Value != value:
		return fmt.Sprintf("value of %s PriorityClass must be %d", class.Name, value)
	// Every pod without a class would then be critical.
	case class.GlobalDefault:
		return fmt.Sprintf("globalDefault of %s PriorityClass must be false", class.Name)
	}
	return ""
}

// ValidateRuntimeClass checks a runtime class on creation. Admission copies its overhead and
// scheduling into pods, so a fault would affect every such pod.
func ValidateRuntimeClass(class *nodev1.RuntimeClass) field.ErrorList {
	errs := ValidateMeta(&class.ObjectMeta, false)
	errs = append(errs, requiredErrors(field.NewPath("handler"), class.Handler, apivalidation.NameIsDNSLabel(class.Handler, false))...)
	// Like upstream, check the overhead by the rules for limits.
	if class.Overhead != nil {
		errs = append(errs, validateResourceList(class.Overhead.PodFixed, field.NewPath("overhead"))...)
	}
	if class.Scheduling == nil {
		return errs
	}

	path := field.NewPath("scheduling")
	errs = append(errs, metavalidation.ValidateLabels(class.Scheduling.NodeSelector, path.Child("nodeSelector"))...)
	errs = append(errs, ValidateTolerations(class.Scheduling.Tolerations, path.Child("tolerations"))...)
	for i, toleration := range class.Scheduling.Tolerations {
		// Tolerations with equal key, operator, value and effect are duplicates, which are allowed
		// in a pod's own list.
		for j := range class.Scheduling.Tolerations[:i] {
			if class.Scheduling.Tolerations[j].MatchToleration(&toleration) {
				errs = append(errs, field.Duplicate(path.Child("tolerations").Index(i), toleration))
				break
			}
		}
	}

	return errs
}

// ValidatePDB checks a PodDisruptionBudget on creation. As in the API server, it is valid with
// neither minAvailable nor maxUnavailable.
func ValidatePDB(pdb *policyv1.PodDisruptionBudget) field.ErrorList {
	errs := ValidateMeta(&pdb.ObjectMeta, true)
	path := field.NewPath("spec")
	if pdb.Spec.MinAvailable != nil && pdb.Spec.MaxUnavailable != nil {
		errs = append(errs, field.Invalid(path, pdb.Spec, "minAvailable and maxUnavailable cannot be both set"))
	}
	errs = append(errs, validateIntOrPercent(pdb.Spec.MinAvailable, path.Child("minAvailable"))...)
	errs = append(errs, validateIntOrPercent(pdb.Spec.MaxUnavailable, path.Child("maxUnavailable"))...)
	errs = append(errs, validateSelector(pdb.Spec.Selector, path.Child("selector"))...)
	// nil is IfHealthyBudget.
	if policy := pdb.Spec.UnhealthyPodEvictionPolicy; policy != nil && *policy != policyv1.IfHealthyBudget &&
		*policy != policyv1.AlwaysAllow {
		errs = append(errs, field.NotSupported(path.Child("unhealthyPodEvictionPolicy"), *policy,
			[]policyv1.UnhealthyPodEvictionPolicyType{policyv1.AlwaysAllow, policyv1.IfHealthyBudget}))
	}
	return errs
}

// validateIntOrPercent checks a number of pods, or a percentage of at most 100%. nil means omitted.
func validateIntOrPercent(value *intstr.IntOrString, path *field.Path) field.ErrorList {
	switch {
	case value == nil:
		return nil
	case value.Type == intstr.Int:
		return apivalidation.ValidateNonnegativeField(int64(value.IntValue()), path)
	}
	if faults := validation.IsValidPercent(value.StrVal); len(faults) > 0 {
		return invalidErrors(path, *value, faults)
	}
	// Here, the value consists of digits and a percent sign. Without leading zeros, a number of
	// more than three digits is greater than 100.
	number := strings.TrimLeft(strings.TrimSuffix(value.StrVal, "%"), "0")
	if len(number) > 3 || len(number) == 3 && number != "100" {
		return field.ErrorList{field.Invalid(path, *value, "must not be greater than 100%")}
	}
	return nil
}

// ValidateNamespace checks the name of a namespace, a DNS label.
func ValidateNamespace(namespace *v1.Namespace) field.ErrorList {
	return apivalidation.ValidateObjectMeta(&namespace.ObjectMeta, false, apivalidation.ValidateNamespaceName, field.NewPath("metadata"))
}
