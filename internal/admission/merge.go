package admission

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
)

// mergeTolerations joins two lists and drops what another toleration of either list covers; of
// equals the first stays. The order of what is left is that of the lists.
//
// For example, {a=x:NoSchedule} and {a Exists, any effect} merge to the second alone.
func mergeTolerations(first, second []v1.Toleration) []v1.Toleration {
	all := slices.Concat(first, second)
	var merged []v1.Toleration
	for i := range all {
		t := &all[i]
		redundant := coveredByAny(t, merged)
		for j := i + 1; j < len(all) && !redundant; j++ {
			redundant = !apiequality.Semantic.DeepEqual(t, &all[j]) && coversToleration(&all[j], t)
		}
		if !redundant {
			merged = append(merged, *t)
		}
	}
	return merged
}

// coveredByAny reports whether a toleration of the list covers t.
func coveredByAny(t *v1.Toleration, list []v1.Toleration) bool {
	return slices.ContainsFunc(list, func(wide v1.Toleration) bool { return coversToleration(&wide, t) })
}

// coversToleration reports whether wide tolerates all that t does, for as long. It is
// kube-apiserver's notion, which knows of Equal and Exists only: Gt and Lt cover nothing but
// themselves. It decides also what an allow-list allows.
func coversToleration(wide, t *v1.Toleration) bool {
	if apiequality.Semantic.DeepEqual(wide, t) {
		return true
	}
	anyKey := wide.Key == "" && wide.Operator == v1.TolerationOpExists
	if wide.Key != t.Key && !anyKey {
		return false
	}
	if wide.Effect != t.Effect && wide.Effect != "" {
		return false
	}

	if wide.Effect == v1.TaintEffectNoExecute && wide.TolerationSeconds != nil &&
		(t.TolerationSeconds == nil || *t.TolerationSeconds > *wide.TolerationSeconds) {
		return false
	}

	switch wide.Operator {
	case v1.TolerationOpExists:
		return true
	case v1.TolerationOpEqual, "":
		return t.Operator == v1.TolerationOpEqual && t.Value == wide.Value
	}
	return false
}
