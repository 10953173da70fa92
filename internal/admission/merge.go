// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"math"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// mergeTolerations joins two lists and drops each toleration covered by another one of either list.
// Of equal tolerations, it keeps the first. It preserves the order of the lists.
//
// For example, {a=x:NoSchedule} and {a Exists, any effect} merge to the second one.
//
// It runs in linear time, because at admission only the size of the request is bounded.
func mergeTolerations(first, second []v1.Toleration) []v1.Toleration {
	all := make([]v1.Toleration, 0, len(first)+len(second))
	all = append(append(all, first...), second...)

	later, covered := newTolerationSet(nil), make([]bool, len(all))
	for i := len(all) - 1; i >= 0; i-- {
		covered[i] = later.coversMore(&all[i])
		later.add(&all[i])
	}
	merged, list := newTolerationSet(nil), []v1.Toleration(nil)
	for i := range all {
		if t := &all[i]; !covered[i] && !merged.covers(t) {
			merged.add(t)
			list = append(list, *t)
		}
	}
	return list
}

// tolerationSet determines in constant time whether one of its tolerations equals or covers a given
// toleration.
//
// It defines covering like kube-apiserver, which supports only Equal and Exists: a toleration with
// Gt or Lt covers only equal tolerations. Allow-lists use the same definition.
type tolerationSet struct {
	exact  map[toleration]bool
	widest map[coverage]widest
}

// toleration is a comparable toleration value.
type toleration struct {
	key, value string
	operator   v1.TolerationOperator
	effect     v1.TaintEffect
	limited    bool // has seconds
	seconds    int64
}

// coverage is a toleration's scope without its seconds.
type coverage struct {
	key, value string
	exists     bool
	effect     v1.TaintEffect
}

// widest holds, for one coverage, the toleration with the longest time, and another toleration with
// the next longest time.
type widest struct{ first, second timed }

// timed is a toleration with the seconds that count when it covers others.
type timed struct {
	toleration
	covers int64
	set    bool
}

func newTolerationSet(list []v1.Toleration) *tolerationSet {
	s := &tolerationSet{exact: map[toleration]bool{}, widest: map[coverage]widest{}}
	for i := range list {
		s.add(&list[i])
	}
	return s
}

func valueOf(t *v1.Toleration) toleration {
	return toleration{key: t.Key, value: t.Value, operator: t.Operator, effect: t.Effect,
		limited: t.TolerationSeconds != nil, seconds: ptr.Deref(t.TolerationSeconds, 0)}
}

func (s *tolerationSet) add(t *v1.Toleration) {
	c := valueOf(t)
	s.exact[c] = true

	of := coverage{key: t.Key, effect: t.Effect}
	switch t.Operator {
	case v1.TolerationOpExists:
		of.exists = true
	case v1.TolerationOpEqual, "":
		of.value = t.Value
	default:
		return
	}
	// Seconds limit only NoExecute tolerations.
	added := timed{c, math.MaxInt64, true}
	if t.Effect == v1.TaintEffectNoExecute && t.TolerationSeconds != nil {
		added.covers = *t.TolerationSeconds
	}
	switch w := s.widest[of]; {
	case w.first.set && w.first.toleration == c, w.second.set && w.second.toleration == c:
	case !w.first.set || added.covers > w.first.covers:
		s.widest[of] = widest{added, w.first}
	case !w.second.set || added.covers > w.second.covers:
		s.widest[of] = widest{w.first, added}
	}
}

// has reports whether the set has exactly this toleration.
func (s *tolerationSet) has(t *v1.Toleration) bool { return s.exact[valueOf(t)] }

// covers reports whether a toleration of the set tolerates at least as much as t, for at least as
// long.
func (s *tolerationSet) covers(t *v1.Toleration) bool { return s.has(t) || s.coversMore(t) }

// coversMore reports whether a toleration of the set, other than t itself, covers t.
func (s *tolerationSet) coversMore(t *v1.Toleration) bool {
	c := valueOf(t)
	candidates := [...]coverage{
		{key: t.Key, exists: true, effect: t.Effect}, {key: t.Key, exists: true}, {exists: true, effect: t.Effect}, {exists: true},
		{key: t.Key, value: t.Value, effect: t.Effect}, {key: t.Key, value: t.Value},
	}
	n := len(candidates)
	if t.Operator != v1.TolerationOpEqual {
		n -= 2
	}

	for _, of := range candidates[:n] {
		w := s.widest[of]
		for _, wide := range [...]timed{w.first, w.second} {
			lasts := wide.covers == math.MaxInt64 || c.limited && c.seconds <= wide.covers
			if wide.set && wide.toleration != c && lasts {
				return true
			}
		}
	}
	return false
}

// CopyChanges copies from one pod to another all fields that the rules may change. A caller that
// applies the rules to a copy, for example in another version of the API, must copy back only these
// fields. The two pods then share the copied values. The webhook's patch has the same fields
// (podFields).
func CopyChanges(to, from *v1.PodSpec) {
	to.PriorityClassName, to.Priority, to.PreemptionPolicy = from.PriorityClassName, from.Priority, from.PreemptionPolicy
	to.Tolerations, to.Affinity, to.NodeSelector, to.Overhead = from.Tolerations, from.Affinity, from.NodeSelector, from.Overhead
}
