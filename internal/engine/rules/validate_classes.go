// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

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
	if class.Handler == "" {
		errs = append(errs, field.Required(field.NewPath("handler"), ""))
	} else {
		errs = append(errs, invalidErrors(field.NewPath("handler"), class.Handler, apivalidation.NameIsDNSLabel(class.Handler, false))...)
	}

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
