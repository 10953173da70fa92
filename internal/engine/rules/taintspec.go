// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// TaintChange is the effect of one `kubectl taint`: taints to add and taints to remove. A taint to
// remove lacks a value, and lacks an effect if it covers all taints of its key. The lists are
// disjoint. The zero value changes nothing.
type TaintChange struct {
	Add    []v1.Taint
	Remove []v1.Taint
}

// ParseTaintChange reads arguments in the form of `kubectl taint`: k=v:Effect and k:Effect add a
// taint; the same forms with a trailing "-", and k-, remove taints. It reports the first faulty
// argument. Like kubectl it refuses to add and remove the same taint.
//
//	key1=value1:NoSchedule   add
//	key1:NoSchedule-         remove the taint with this effect
//	key1-                    remove all taints with this key
func ParseTaintChange(args []string) (TaintChange, error) {
	var change TaintChange
	for _, arg := range args {
		if spec, removes := strings.CutSuffix(arg, "-"); removes {
			taint, err := parseTaint(spec)
			if err != nil {
				return TaintChange{}, err
			}
			change.Remove = append(change.Remove, v1.Taint{Key: taint.Key, Effect: taint.Effect})
			continue
		}
		taint, err := ParseTaint(arg)
		if err != nil {
			return TaintChange{}, err
		}
		// Two values for one taint are ambiguous, so the change is refused.
		if slices.ContainsFunc(change.Add, func(t v1.Taint) bool { return t.MatchTaint(&taint) }) {
			return TaintChange{}, fmt.Errorf("taint %q: a second one with the same key and effect; give one value only", arg)
		}
		change.Add = append(change.Add, taint)
	}

	// Compare after reading all arguments, because their order does not matter.
	for _, add := range change.Add {
		if slices.ContainsFunc(change.Remove, func(r v1.Taint) bool { return IsTakenOff(&add, &r) }) {
			return TaintChange{}, fmt.Errorf("taint %q: cannot be added and removed at the same time", add.ToString())
		}
	}
	return change, nil
}

// ParseTaint reads one taint to add, k=v:Effect or k:Effect. It needs an effect.
func ParseTaint(spec string) (v1.Taint, error) {
	taint, err := parseTaint(spec)
	if err == nil && taint.Effect == "" {
		err = fmt.Errorf("taint %q: no effect; write key=value:Effect with %s", spec, effectNames)
	}
	if err != nil {
		return v1.Taint{}, err
	}
	return taint, nil
}

// effectNames is used in messages, in the order of the documentation.
const effectNames = "NoSchedule, PreferNoSchedule or NoExecute"

// parseTaint reads a taint to add or to remove; a taint to remove may lack an effect. A value
// without an effect is refused: "k=v-" would also remove taints with other values.
func parseTaint(spec string) (v1.Taint, error) {
	keyValue, effect, hasEffect := strings.Cut(spec, ":")
	key, value, hasValue := strings.Cut(keyValue, "=")
	taint := v1.Taint{Key: key, Value: value, Effect: v1.TaintEffect(effect)}
	switch {
	case hasEffect && !KeepsOff.Has(taint.Effect) && !Discourages.Has(taint.Effect):
		return taint, fmt.Errorf("taint %q: effect %q: must be %s", spec, effect, effectNames)
	case hasValue && !hasEffect:
		return taint, fmt.Errorf("taint %q: a value without an effect; write key=value:Effect", spec)
	}
	// The key is also checked here, so that the message names the argument rather than a path in
	// the node.
	if faults := validation.IsQualifiedName(key); len(faults) > 0 {
		return taint, fmt.Errorf("taint %q: key %q: %s", spec, key, strings.Join(faults, "; "))
	}
	if faults := validation.IsValidLabelValue(value); len(faults) > 0 {
		return taint, fmt.Errorf("taint %q: value %q: %s", spec, value, strings.Join(faults, "; "))
	}
	return taint, nil
}

// IsTakenOff reports whether a removal covers a taint. A removal without an effect covers all
// taints with its key. As in kubectl the value does not matter.
func IsTakenOff(taint, removal *v1.Taint) bool {
	return removal.Key == taint.Key && (removal.Effect == "" || removal.Effect == taint.Effect)
}

// Apply returns the node's taints after the change, new taints first, like kubectl. A new taint
// replaces the old taint with the same key and effect; if their values are also equal, the old
// taint stays, with its timeAdded. Taints to remove may be missing. Apply does not modify taints.
func (c TaintChange) Apply(taints []v1.Taint) []v1.Taint {
	left := slices.DeleteFunc(slices.Clone(taints), func(t v1.Taint) bool {
		return slices.ContainsFunc(c.Remove, func(r v1.Taint) bool { return IsTakenOff(&t, &r) }) ||
			slices.ContainsFunc(c.Add, func(a v1.Taint) bool { return a.MatchTaint(&t) && a.Value != t.Value })
	})
	added := slices.DeleteFunc(slices.Clone(c.Add), func(a v1.Taint) bool {
		return slices.ContainsFunc(left, func(t v1.Taint) bool { return t.MatchTaint(&a) })
	})
	return append(added, left...)
}
