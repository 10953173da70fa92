package rules

import (
	"slices"

	v1 "k8s.io/api/core/v1"
)

// Tolerance is what a list of tolerations matches: of many, it looks only at those that may match a
// taint. A tenant's pod has room for tens of thousands, and every node may have taints of its own.
// It may be asked by several goroutines at once.
type Tolerance struct {
	few   []v1.Toleration              // all of them, unless the others are set
	equal map[keyValue][]v1.Toleration // with the operator Equal
	keyed map[string][]v1.Toleration   // with any other; "": for all keys
}

// keyValue is what a toleration with the operator Equal matches.
type keyValue struct{ key, value string }

// fewTolerations are looked at one by one.
const fewTolerations = 32

// NewTolerance reads a list of tolerations, which must not change. Of a long list, those that
// repeat another one are dropped, whatever their tolerationSeconds: where these matter, see
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
		default: // what it matches depends on its value, too
			t.keyed[one.Key] = append(t.keyed[one.Key], *one)
		}
	}
	return t
}

// matches reports whether one of the tolerations matches the taint. Of the few that are looked up,
// the effect still has to match, which the full rule checks.
func (t *Tolerance) matches(taint *v1.Taint) bool {
	if t.equal == nil {
		return TolerationOf(taint, t.few) != nil
	}
	return TolerationOf(taint, t.equal[keyValue{taint.Key, taint.Value}]) != nil || TolerationOf(taint, t.keyed[taint.Key]) != nil ||
		TolerationOf(taint, t.keyed[""]) != nil
}

// Untolerated returns the first taint with one of the effects that no toleration matches, nil if
// all are tolerated. It points into taints.
func (t *Tolerance) Untolerated(taints []v1.Taint, effects Effects) *v1.Taint {
	for i := range taints {
		if effects.Has(taints[i].Effect) && !t.matches(&taints[i]) {
			return &taints[i]
		}
	}
	return nil
}

// CountUntolerated is the number of taints with one of the effects that no toleration matches.
func (t *Tolerance) CountUntolerated(taints []v1.Taint, effects Effects) (n int) {
	for i := range taints {
		if effects.Has(taints[i].Effect) && !t.matches(&taints[i]) {
			n++
		}
	}
	return n
}
