// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package nodehealth

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// IsOwn reports whether node health manages the taint. It manages the taints derived from
// conditions and cordons, and the two evicting taints.
func IsOwn(taint *v1.Taint) bool {
	switch taint.Effect {
	case v1.TaintEffectNoSchedule:
		if taint.Key == v1.TaintNodeUnschedulable {
			return true
		}
		for _, keys := range watched {
			for _, key := range keys {
				if taint.Key == key {
					return true
				}
			}
		}
	case v1.TaintEffectNoExecute:
		return taint.Key == v1.TaintNodeNotReady || taint.Key == v1.TaintNodeUnreachable
	}
	return false
}

// Outdated returns the taints of a Ready node that its state does not require, and that node health
// would remove.
func Outdated(node *v1.Node) []v1.Taint {
	n := NodeOf(node)
	if n.readyStatus() != v1.ConditionTrue {
		return nil
	}
	want := n.wantedTaints(false)
	return slices.DeleteFunc(slices.Clone(n.Taints), func(t v1.Taint) bool {
		return !IsOwn(&t) || slices.ContainsFunc(want, func(w v1.Taint) bool { return w.MatchTaint(&t) })
	})
}

// isEvicting reports whether a taint evicts because of the node's health.
func isEvicting(taint *v1.Taint) bool {
	return taint.Effect == v1.TaintEffectNoExecute && IsOwn(taint)
}

// wantedTaints returns the taints required by the node's state, without times. evict is set if the
// rate of the zone has admitted the node to the evicting taint. A missing condition requires no
// taint.
func (n *Node) wantedTaints(evict bool) []v1.Taint {
	var want []v1.Taint
	for _, c := range n.Conditions {
		if key, ok := watched[c.Type][c.Status]; ok {
			want = append(want, v1.Taint{Key: key, Effect: v1.TaintEffectNoSchedule})
		}
	}
	if n.Unschedulable {
		want = append(want, v1.Taint{Key: v1.TaintNodeUnschedulable, Effect: v1.TaintEffectNoSchedule})
	}
	if key, ok := watched[v1.NodeReady][n.readyStatus()]; ok && evict {
		want = append(want, v1.Taint{Key: key, Effect: v1.TaintEffectNoExecute})
	}
	return want
}

// taintsFor returns the node's desired list of taints, and whether it differs from the actual one.
// Foreign taints keep their contents and order. Correct taints keep their time, and new taints get
// the current time. An evicting taint that replaces the opposite one inherits its time: the outage
// began then, and the countdown of the pods must not restart each time the node alternates between
// not-ready and unreachable. The time of the last change is in the NoSchedule taint, which inherits
// no time.
//
// For example, a node has been not-ready since 10:00 and falls silent at 10:03. It had
// not-ready:NoSchedule and not-ready:NoExecute, both of 10:00; it gets unreachable:NoSchedule of
// 10:03 and unreachable:NoExecute of 10:00.
func (n *Node) taintsFor(now time.Time, evict bool) (list []v1.Taint, differs bool) {
	want := n.wantedTaints(evict)
	evictingSince := atSeconds(now)
	for i := range n.Taints {
		t := &n.Taints[i]
		if !IsOwn(t) {
			list = append(list, *t)
			continue
		}
		if at := slices.IndexFunc(want, func(w v1.Taint) bool { return w.MatchTaint(t) }); at >= 0 {
			want = slices.Delete(want, at, at+1)
			list = append(list, *t)
		} else {
			differs = true
			if isEvicting(t) && t.TimeAdded != nil && t.TimeAdded.Time.Before(evictingSince.Time) {
				evictingSince = *t.TimeAdded
			}
		}
	}

	for _, t := range want {
		added := atSeconds(now)
		if isEvicting(&t) {
			added = evictingSince
		}
		t.TimeAdded = &added
		list = append(list, t)
		differs = true
	}

	return list, differs
}

// atSeconds truncates a time to whole seconds, like the API server.
func atSeconds(t time.Time) metav1.Time { return metav1.Time{Time: t.Truncate(time.Second)} }
