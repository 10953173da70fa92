// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ValidateTaints checks the taints of a node. It refuses two taints with the same key and effect,
// regardless of their values; the same key with two effects is valid.
//
//	key1=a:NoSchedule  key1=a:NoExecute     fine
//	key1=a:NoSchedule  key1=b:NoSchedule    duplicate
func ValidateTaints(taints []v1.Taint, path *field.Path) field.ErrorList {
	type identity struct {
		key    string
		effect v1.TaintEffect
	}
	var errs field.ErrorList
	seen := map[identity]bool{}

	for i, taint := range taints {
		path := path.Index(i)
		errs = append(errs, labelNameErrors(taint.Key, path.Child("key"))...)
		if faults := validation.IsValidLabelValue(taint.Value); len(faults) > 0 {
			errs = append(errs, field.Invalid(path.Child("value"), taint.Value, strings.Join(faults, ";")))
		}
		if taint.Effect == "" {
			errs = append(errs, field.Required(path.Child("effect"), ""))
		}
		errs = append(errs, validateEffect(taint.Effect, path.Child("effect"))...)
		// kubectl and controllers find a taint by key and effect to change or remove it.
		id := identity{taint.Key, taint.Effect}
		if seen[id] {
			twice := field.Duplicate(path, taint)
			twice.Detail = "taints must be unique by key and effect pair"
			errs = append(errs, twice)
		}
		seen[id] = true
	}

	return errs
}

// ValidateTolerations checks the tolerations of a pod or of a runtime class. It accepts Gt and Lt,
// like an API server with the gate TaintTolerationComparisonOperators on. Whether such tolerations
// count depends on the scheduler's configuration.
func ValidateTolerations(tolerations []v1.Toleration, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range tolerations {
		errs = append(errs, validateToleration(&tolerations[i], path.Index(i))...)
	}
	return errs
}

// validateToleration checks one toleration. An empty effect matches all effects; an empty key
// requires the operator Exists.
func validateToleration(toleration *v1.Toleration, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if toleration.Key != "" {
		errs = append(errs, labelNameErrors(toleration.Key, path.Child("key"))...)
		// Equal without a key would suggest that the toleration matches its value for any key.
	} else if toleration.Operator != v1.TolerationOpExists {
		errs = append(errs, field.Invalid(path.Child("operator"), toleration.Operator,
			"operator must be Exists when `key` is empty, which means \"match all values and all keys\""))
	}
	// Only NoExecute has a deadline. An empty effect is refused as well, although it includes
	// NoExecute.
	if toleration.TolerationSeconds != nil && toleration.Effect != v1.TaintEffectNoExecute {
		errs = append(errs, field.Invalid(path.Child("effect"), toleration.Effect,
			"effect must be 'NoExecute' when `tolerationSeconds` is set"))
	}
	errs = append(errs, validateOperator(toleration, path)...)
	return append(errs, validateEffect(toleration.Effect, path.Child("effect"))...)
}

// validateOperator checks the operator together with the value: Equal (the default) takes a label
// value, Exists takes no value, and Gt and Lt take a 64-bit integer.
func validateOperator(toleration *v1.Toleration, path *field.Path) field.ErrorList {
	switch toleration.Operator {
	case v1.TolerationOpEqual, "":
		// The path is the same as upstream's, although the value is at fault.
		if faults := validation.IsValidLabelValue(toleration.Value); len(faults) > 0 {
			return field.ErrorList{field.Invalid(path.Child("operator"), toleration.Value, strings.Join(faults, ";"))}
		}
		return nil
	case v1.TolerationOpExists:
		if toleration.Value != "" {
			return field.ErrorList{field.Invalid(path.Child("operator"), toleration.Value,
				"value must be empty when `operator` is 'Exists'")}
		}
		return nil
	case v1.TolerationOpLt, v1.TolerationOpGt:
		// The API server makes both checks: the first refuses a plus sign and leading zeroes, the
		// second refuses numbers that are too large.
		faults := content.IsDecimalInteger(toleration.Value)
		if _, err := strconv.ParseInt(toleration.Value, 10, 64); err != nil {
			faults = append(faults, err.Error())
		}
		return invalidErrors(path.Child("value"), toleration.Value, faults)
	}
	return oneOf(path.Child("operator"), toleration.Operator, v1.TolerationOpEqual, v1.TolerationOpExists)
}

// validateEffect checks an effect. A toleration without an effect matches all effects.
func validateEffect(effect v1.TaintEffect, path *field.Path) field.ErrorList {
	return oneOf(path, effect, v1.TaintEffectNoSchedule, v1.TaintEffectPreferNoSchedule, v1.TaintEffectNoExecute)
}
