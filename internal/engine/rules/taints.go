// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
)

// Effects is a set of taint effects, given as a filter to Untolerated. There are only three
// effects, so a linear search of a slice is fastest.
type Effects []v1.TaintEffect

// The sets of effects by their consequence for a pod that does not tolerate the taint.
var (
	// KeepsOff are the effects that keep a new pod off a node.
	KeepsOff = Effects{v1.TaintEffectNoSchedule, v1.TaintEffectNoExecute}
	// Evicts is the effect that also removes running pods.
	Evicts = Effects{v1.TaintEffectNoExecute}
	// Discourages is the effect that only lowers a node's score.
	Discourages = Effects{v1.TaintEffectPreferNoSchedule}
)

// Has reports whether the effect is in the set.
func (e Effects) Has(effect v1.TaintEffect) bool { return slices.Contains(e, effect) }

// Tolerates reports whether the toleration matches the taint: same key and effect, and operator
// Exists, or Equal (the default) with an equal value, or Gt (or Lt) if the taint's value is a
// greater (or lesser) integer than the toleration's. An empty effect matches all effects of the
// key; an empty key matches all keys, with Exists only.
//
// The last rule is stricter than the library, where a toleration without key and operator matches
// every taint without a value. The API server stores no such toleration, so the results never
// differ in a cluster; but in an unvalidated file, an empty toleration must not match every taint.
//
// Gt and Lt always count: if the API's feature gate is off, no such toleration can be stored.
func Tolerates(toleration *v1.Toleration, taint *v1.Taint) bool {
	if toleration.Key == "" && toleration.Operator != v1.TolerationOpExists {
		return false
	}
	// The library logs every Gt or Lt without an integer on one side. That is a mismatch rather
	// than an event, so the logger discards it.
	return toleration.ToleratesTaint(klog.Logger{}, taint, true)
}

// TolerationOf returns the first toleration that matches the taint, or nil. The first toleration
// counts, not the most generous: it determines the number of seconds a pod may stay.
func TolerationOf(taint *v1.Taint, tolerations []v1.Toleration) *v1.Toleration {
	for i := range tolerations {
		if Tolerates(&tolerations[i], taint) {
			return &tolerations[i]
		}
	}
	return nil
}

// Untolerated returns the first taint that has one of the effects and is not matched by any
// toleration, or nil. It points into taints.
func Untolerated(taints []v1.Taint, tolerations []v1.Toleration, effects Effects) *v1.Taint {
	one := Tolerance{few: tolerations} // used once: not worth an index
	return one.Untolerated(taints, effects)
}
