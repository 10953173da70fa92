// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateAffinity checks the three kinds of affinity; nil is valid.
//
// This file covers the nodes and pods that a pod prefers or requires: node affinity, pod affinity
// and anti-affinity, and topology spread constraints, which share the rules for keys, selectors and
// label keys.
func validateAffinity(affinity *v1.Affinity, path *field.Path) field.ErrorList {
	if affinity == nil {
		return nil
	}
	var errs field.ErrorList
	// A kind that is present but empty is valid, and has no effect.
	if node := affinity.NodeAffinity; node != nil {
		path := path.Child("nodeAffinity")
		if node.RequiredDuringSchedulingIgnoredDuringExecution != nil {
			errs = append(errs, ValidateNodeSelector(node.RequiredDuringSchedulingIgnoredDuringExecution, path.Child(required))...)
		}
		// Values of preferred terms are not checked; see validateNodeTerm.
		for i, term := range node.PreferredDuringSchedulingIgnoredDuringExecution {
			path := path.Child(preferred).Index(i)
			errs = append(errs, validateWeight(term.Weight, path.Child("weight"))...)
			errs = append(errs, validateNodeTerm(&term.Preference, true, path.Child("preference"))...)
		}
	}

	if pod := affinity.PodAffinity; pod != nil {
		errs = append(errs, validatePodTerms(pod.RequiredDuringSchedulingIgnoredDuringExecution,
			pod.PreferredDuringSchedulingIgnoredDuringExecution, path.Child("podAffinity"))...)
	}

	if pod := affinity.PodAntiAffinity; pod != nil {
		errs = append(errs, validatePodTerms(pod.RequiredDuringSchedulingIgnoredDuringExecution,
			pod.PreferredDuringSchedulingIgnoredDuringExecution, path.Child("podAntiAffinity"))...)
	}
	return errs
}

// The fields of affinity that have the same names in all three kinds.
const (
	required  = "requiredDuringSchedulingIgnoredDuringExecution"
	preferred = "preferredDuringSchedulingIgnoredDuringExecution"
)

// validateWeight checks the weight of a preference. It refuses 0, which would never count.
func validateWeight(weight int32, path *field.Path) field.ErrorList {
	if weight < 1 || weight > 100 {
		return field.ErrorList{field.Invalid(path, weight, "must be in the range 1-100")}
	}
	return nil
}

// ValidateNodeSelector checks a node selector, of a pod or of a volume. It refuses a selector
// without terms, which would match no node.
func ValidateNodeSelector(selector *v1.NodeSelector, path *field.Path) field.ErrorList {
	path = path.Child("nodeSelectorTerms")
	if len(selector.NodeSelectorTerms) == 0 {
		return field.ErrorList{field.Required(path, "must have at least one node selector term")}
	}
	var errs field.ErrorList
	for i := range selector.NodeSelectorTerms {
		errs = append(errs, validateNodeTerm(&selector.NodeSelectorTerms[i], false, path.Index(i))...)
	}
	return errs
}

// validateNodeTerm checks one term. A preferred term may list values that are invalid for labels
// (anyValue), since old objects contain such terms. They match nothing.
func validateNodeTerm(term *v1.NodeSelectorTerm, anyValue bool, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range term.MatchExpressions {
		errs = append(errs, validateNodeExpression(&term.MatchExpressions[i], anyValue, path.Child("matchExpressions").Index(i))...)
	}
	for i := range term.MatchFields {
		errs = append(errs, validateNodeField(&term.MatchFields[i], path.Child("matchFields").Index(i))...)
	}
	return errs
}

// validateNodeExpression checks a requirement on a label. The number of values depends on the
// operator. Like upstream it does not require the value of Gt and Lt to be a number. A term with
// any other value matches nothing.
func validateNodeExpression(req *v1.NodeSelectorRequirement, anyValue bool, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	values := path.Child("values")
	switch req.Operator {
	case v1.NodeSelectorOpIn, v1.NodeSelectorOpNotIn:
		if len(req.Values) == 0 {
			errs = append(errs, field.Required(values, "must be specified when `operator` is 'In' or 'NotIn'"))
		}
	case v1.NodeSelectorOpExists, v1.NodeSelectorOpDoesNotExist:
		if len(req.Values) > 0 {
			errs = append(errs, field.Forbidden(values, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"))
		}
	case v1.NodeSelectorOpGt, v1.NodeSelectorOpLt:
		if len(req.Values) != 1 {
			errs = append(errs, field.Required(values, "must be specified single value when `operator` is 'Lt' or 'Gt'"))
		}
	default:
		errs = append(errs, field.Invalid(path.Child("operator"), req.Operator, "not a valid selector operator"))
	}

	// The key is checked after the number of values, in the API server's order.
	errs = append(errs, labelNameErrors(req.Key, path.Child("key"))...)
	if anyValue {
		return errs
	}

	for i, value := range req.Values {
		errs = append(errs, invalidErrors(values.Index(i), value, validation.IsValidLabelValue(value))...)
	}
	return errs
}

// validateNodeField checks a requirement on a field. It must have exactly one value, and the field
// must be metadata.name.
func validateNodeField(req *v1.NodeSelectorRequirement, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch req.Operator {
	case v1.NodeSelectorOpIn, v1.NodeSelectorOpNotIn:
		if len(req.Values) != 1 {
			errs = append(errs, field.Required(path.Child("values"),
				"must be only one value when `operator` is 'In' or 'NotIn' for node field selector"))
		}
	default:
		errs = append(errs, field.Invalid(path.Child("operator"), req.Operator, "not a valid selector operator"))
	}

	// Values of an unknown field need no further check.
	if req.Key != metav1.ObjectNameField {
		return append(errs, field.Invalid(path.Child("key"), req.Key, "not a valid field selector key"))
	}
	for i, value := range req.Values {
		errs = append(errs, invalidErrors(path.Child("values").Index(i), value, apivalidation.NameIsDNSSubdomain(value, false))...)
	}
	return errs
}

// validatePodTerms checks the required and the preferred terms of affinity or anti-affinity. path
// is the path of the kind.
func validatePodTerms(must []v1.PodAffinityTerm, should []v1.WeightedPodAffinityTerm, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range must {
		errs = append(errs, validatePodTerm(&must[i], path.Child(required).Index(i))...)
	}
	for i := range should {
		path := path.Child(preferred).Index(i)
		errs = append(errs, validateWeight(should[i].Weight, path.Child("weight"))...)
		errs = append(errs, validatePodTerm(&should[i].PodAffinityTerm, path.Child("podAffinityTerm"))...)
	}
	return errs
}

// validatePodTerm checks one term. An empty list of namespaces, and an empty or missing selector,
// are valid.
func validatePodTerm(term *v1.PodAffinityTerm, path *field.Path) field.ErrorList {
	errs := validateSelector(term.LabelSelector, path.Child("labelSelector"))
	errs = append(errs, validateSelector(term.NamespaceSelector, path.Child("namespaceSelector"))...)
	for _, name := range term.Namespaces {
		errs = append(errs, invalidErrors(path.Child("namespace"), name, apivalidation.ValidateNamespaceName(name, false))...)
	}
	errs = append(errs, validateLabelKeys(term.MatchLabelKeys, term.MismatchLabelKeys, term.LabelSelector, path)...)
	if term.TopologyKey == "" {
		errs = append(errs, field.Required(path.Child("topologyKey"), "can not be empty"))
	}
	return append(errs, labelNameErrors(term.TopologyKey, path.Child("topologyKey"))...)
}

// validateSelector checks a label selector with the API server's options for new objects: values
// must be label values.
func validateSelector(selector *metav1.LabelSelector, path *field.Path) field.ErrorList {
	return metavalidation.ValidateLabelSelector(selector, metavalidation.LabelSelectorValidationOptions{}, path)
}

// validateLabelKeys checks matchLabelKeys and mismatchLabelKeys. The API server merges
// matchLabelKeys into the selector before checking, so the first occurrence of such a key in the
// selector results from the merge, and a second occurrence was written by the user.
func validateLabelKeys(match, mismatch []string, selector *metav1.LabelSelector, path *field.Path) field.ErrorList {
	errs := validateKeyNames(match, selector, path.Child("matchLabelKeys"))
	errs = append(errs, validateKeyNames(mismatch, selector, path.Child("mismatchLabelKeys"))...)
	// index locates the faulty entry of matchLabelKeys for the message.
	index := map[string]int{}
	for i, key := range match {
		index[key] = i
	}

	if selector != nil {
		// A key in matchLabels is a first occurrence.
		seen := sets.KeySet(selector.MatchLabels)
		for _, expression := range selector.MatchExpressions {
			// The path is upstream's, although it lacks matchLabelKeys.
			if i, named := index[expression.Key]; named && seen.Has(expression.Key) {
				errs = append(errs, field.Invalid(path.Index(i), expression.Key, "exists in both matchLabelKeys and labelSelector"))
			}
			seen.Insert(expression.Key)
		}
	}

	excluded := sets.New(mismatch...)
	for i, key := range match {
		if excluded.Has(key) {
			errs = append(errs, field.Invalid(path.Child("matchLabelKeys").Index(i), key,
				"exists in both matchLabelKeys and mismatchLabelKeys"))
		}
	}
	return errs
}

// validateKeyNames checks that keys are label names, and that there is a selector for them to
// narrow.
func validateKeyNames(keys []string, selector *metav1.LabelSelector, path *field.Path) field.ErrorList {
	if len(keys) > 0 && selector == nil {
		return field.ErrorList{field.Forbidden(path, "must not be specified when labelSelector is not set")}
	}
	var errs field.ErrorList
	for i, key := range keys {
		errs = append(errs, labelNameErrors(key, path.Index(i))...)
	}
	return errs
}

// validateSpread checks topology spread constraints. It refuses two constraints with the same key
// and action, because one would include the other.
func validateSpread(constraints []v1.TopologySpreadConstraint, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range constraints {
		c, path := &constraints[i], path.Index(i)
		if c.MaxSkew <= 0 {
			errs = append(errs, field.Invalid(path.Child("maxSkew"), int64(c.MaxSkew), notPositive))
		}
		if c.TopologyKey == "" {
			errs = append(errs, field.Required(path.Child("topologyKey"), "can not be empty"))
		}
		if c.WhenUnsatisfiable != v1.DoNotSchedule && c.WhenUnsatisfiable != v1.ScheduleAnyway {
			errs = append(errs, field.NotSupported(path.Child("whenUnsatisfiable"), c.WhenUnsatisfiable,
				[]v1.UnsatisfiableConstraintAction{v1.DoNotSchedule, v1.ScheduleAnyway}))
		}
		// Compare with later constraints only, to report each pair once, at its first constraint.
		for _, later := range constraints[i+1:] {
			if c.TopologyKey == later.TopologyKey && c.WhenUnsatisfiable == later.WhenUnsatisfiable {
				errs = append(errs, field.Duplicate(path.Child("{topologyKey, whenUnsatisfiable}"),
					fmt.Sprintf("{%s, %s}", c.TopologyKey, c.WhenUnsatisfiable)))
				break
			}
		}
		errs = append(errs, validateMinDomains(c, path.Child("minDomains"))...)
		errs = append(errs, validateInclusion(c.NodeAffinityPolicy, path.Child("nodeAffinityPolicy"))...)
		errs = append(errs, validateInclusion(c.NodeTaintsPolicy, path.Child("nodeTaintsPolicy"))...)
		errs = append(errs, validateLabelKeys(c.MatchLabelKeys, nil, c.LabelSelector, path)...)
		errs = append(errs, validateSelector(c.LabelSelector, path.Child("labelSelector"))...)
	}

	return errs
}

// notPositive is the API server's message for a number that must be at least 1.
const notPositive = "must be greater than zero"

// validateMinDomains checks minDomains, which only counts for constraints that reject nodes.
func validateMinDomains(c *v1.TopologySpreadConstraint, path *field.Path) field.ErrorList {
	if c.MinDomains == nil {
		return nil
	}
	var errs field.ErrorList
	if *c.MinDomains <= 0 {
		errs = append(errs, field.Invalid(path, int64(*c.MinDomains), notPositive))
	}
	if c.WhenUnsatisfiable != v1.DoNotSchedule {
		errs = append(errs, field.Invalid(path, *c.MinDomains,
			fmt.Sprintf("can only use minDomains if whenUnsatisfiable=%s, not %s", v1.DoNotSchedule, c.WhenUnsatisfiable)))
	}
	return errs
}

// validateInclusion checks one of the two policies that select the nodes counted by a constraint.
// nil is the default.
func validateInclusion(policy *v1.NodeInclusionPolicy, path *field.Path) field.ErrorList {
	if policy == nil || *policy == v1.NodeInclusionPolicyHonor || *policy == v1.NodeInclusionPolicyIgnore {
		return nil
	}
	return field.ErrorList{field.NotSupported(path, *policy, []v1.NodeInclusionPolicy{v1.NodeInclusionPolicyHonor,
		v1.NodeInclusionPolicyIgnore})}
}
