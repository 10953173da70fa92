// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"slices"

	v1 "k8s.io/api/core/v1"
)

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
