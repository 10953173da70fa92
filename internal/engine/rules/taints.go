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

// Tolerance matches a list of tolerations. In a long list it checks only tolerations that may match
// a taint. A tenant's pod has room for tens of thousands of tolerations, and every node may have
// different taints. It is safe for concurrent use.
type Tolerance struct {
	few   []v1.Toleration              // all tolerations, unless equal and keyed are set
	equal map[keyValue][]v1.Toleration // with the operator Equal
	keyed map[string][]v1.Toleration   // with any other operator; the key "" holds tolerations for all keys
}

// keyValue is the key and value matched by a toleration with the operator Equal.
type keyValue struct{ key, value string }

// Up to fewTolerations tolerations are checked one by one.
const fewTolerations = 32

// NewTolerance reads a list of tolerations, which must not change. From a long list it drops
// duplicates, regardless of their tolerationSeconds: if tolerationSeconds matter, use
// [TolerationOf].
func NewTolerance(list []v1.Toleration) *Tolerance {
	if len(list) <= fewTolerations {
		return &Tolerance{few: list}
	}

	t := &Tolerance{equal: map[keyValue][]v1.Toleration{}, keyed: map[string][]v1.Toleration{}}
	for i := range list {
		one := &list[i]
		same := func(o v1.Toleration) bool { return o.Operator == one.Operator && o.Effect == one.Effect }
		switch one.Operator {
		case "", v1.TolerationOpEqual:
			at := keyValue{one.Key, one.Value}
			if !slices.ContainsFunc(t.equal[at], same) {
				t.equal[at] = append(t.equal[at], *one)
			}
		case v1.TolerationOpExists:
			if !slices.ContainsFunc(t.keyed[one.Key], same) {
				t.keyed[one.Key] = append(t.keyed[one.Key], *one)
			}
		default: // the match also depends on the value
			t.keyed[one.Key] = append(t.keyed[one.Key], *one)
		}
	}
	return t
}

// matches reports whether one of the tolerations matches the taint. The few tolerations found by
// lookup are checked by the full rule, because they must also match the effect.
func (t *Tolerance) matches(taint *v1.Taint) bool {
	if t.equal == nil {
		return TolerationOf(taint, t.few) != nil
	}
	return TolerationOf(taint, t.equal[keyValue{taint.Key, taint.Value}]) != nil || TolerationOf(taint, t.keyed[taint.Key]) != nil ||
		TolerationOf(taint, t.keyed[""]) != nil
}

// Untolerated returns the first taint that has one of the effects and is not matched by any
// toleration, or nil. It points into taints.
func (t *Tolerance) Untolerated(taints []v1.Taint, effects Effects) *v1.Taint {
	for i := range taints {
		if effects.Has(taints[i].Effect) && !t.matches(&taints[i]) {
			return &taints[i]
		}
	}
	return nil
}

// CountUntolerated returns the number of taints that have one of the effects and are not matched by
// any toleration.
func (t *Tolerance) CountUntolerated(taints []v1.Taint, effects Effects) (n int) {
	for i := range taints {
		if effects.Has(taints[i].Effect) && !t.matches(&taints[i]) {
			n++
		}
	}
	return n
}
