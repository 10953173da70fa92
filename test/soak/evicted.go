// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/node/simnodes/simkubelet"
)

// nodeSeen is a node with the recent history of its evicting taints.
type nodeSeen struct {
	node    *v1.Node
	history []held // newest last
	silent  struct {
		is   bool
		fair time.Duration // value of observer.fair when the node fell silent
	}
}

// held is the list of a node's NoExecute taints from a given time on.
type held struct {
	from   time.Time
	taints []heldTaint
}

// heldTaint is a taint added at an unknown time between early and late.
type heldTaint struct {
	v1.Taint
	early, late time.Time
}

func sameTaint(a, b *v1.Taint) bool {
	return a.MatchTaint(b) && a.Value == b.Value && a.TimeAdded.Equal(b.TimeAdded)
}

func (w *observer) seesNode(node *v1.Node, now time.Time, gap *span) {
	n := w.nodes[node.Name]
	if n == nil || n.node.UID != node.UID {
		n = &nodeSeen{}
		w.nodes[node.Name] = n
	}
	n.node = node
	if silent := node.Annotations[simkubelet.AnnotationHeartbeat] == simkubelet.HeartbeatStopped; silent != n.silent.is {
		n.silent.is, n.silent.fair = silent, w.fair
	}
	n.recordTaints(now, gap)
}

// recordTaints appends the node's NoExecute taints to its history if they have changed, or if they
// may have changed in a gap.
func (n *nodeSeen) recordTaints(now time.Time, gap *span) {
	var before []heldTaint
	if len(n.history) > 0 {
		before = n.history[len(n.history)-1].taints
	}
	since := now // without a gap in the watch, a new taint was added just now
	if gap != nil {
		since = gap.from
	}
	var taints []heldTaint
	changed := gap != nil
	for _, t := range n.node.Spec.Taints {
		if t.Effect != v1.TaintEffectNoExecute {
			continue
		}
		h := heldTaint{Taint: t, early: since, late: now}
		if i := slices.IndexFunc(before, func(b heldTaint) bool { return sameTaint(&b.Taint, &t) }); i >= 0 {
			h.early, h.late = before[i].early, before[i].late
		} else {
			changed = true
		}
		if t.TimeAdded != nil && t.TimeAdded.Time.Before(h.early) {
			h.early = t.TimeAdded.Time
		}
		taints = append(taints, h)
	}
	if !changed && len(taints) == len(before) && len(n.history) > 0 {
		return
	}
	// A controller that did not observe the change may count tolerationSeconds of every taint from
	// now on.
	for i := range taints {
		taints[i].late = now
	}
	n.history = append(n.history, held{now, taints})
}

func (n *nodeSeen) forgetBefore(before time.Time) {
	for len(n.history) > 1 && n.history[1].from.Before(before) {
		n.history = n.history[1:]
	}
}

// dueBy reports whether the taints require the eviction of a pod at or before the given time. It
// implements the documented rule, independently of Berth's code.
func dueBy(by time.Time, pod *v1.Pod, bound time.Time, taints []heldTaint, since func(heldTaint) time.Time) bool {
	for _, t := range taints {
		i := slices.IndexFunc(pod.Spec.Tolerations,
			func(tol v1.Toleration) bool { return tol.ToleratesTaint(klog.Logger{}, &t.Taint, true) })
		at := since(t)
		if at.Before(bound) {
			at = bound
		}
		switch {
		case i < 0:
		case pod.Spec.Tolerations[i].TolerationSeconds == nil:
			continue
		default:
			at = at.Add(time.Duration(max(0, *pod.Spec.Tolerations[i].TolerationSeconds)) * time.Second)
		}
		if !at.After(by) {
			return true
		}
	}

	return false
}

// checkJust verifies that a pod deleted by a controller because of a taint was due for eviction at
// some time within the window.
func (w *observer) checkJust(p *podSeen, now time.Time) {
	if at, sent := w.deleted[podKey(p.pod)]; !sent || now.Sub(at) > 2*window {
		return // a controller added the condition earlier, but another client deleted the pod
	}
	if !w.sawAll(now.Add(-window), "nodes", "pods") {
		w.checks.addOne(evictionJust + " (not judged: changes may have been missed)")
		return
	}
	n := w.nodes[p.pod.Spec.NodeName]
	if n == nil {
		return
	}
	w.checks.addOne(evictionJust)
	bound := p.pod.CreationTimestamp.Time // a pod cannot have been bound earlier
	for i, h := range n.history {
		until := now
		if i+1 < len(n.history) {
			until = n.history[i+1].from
		}
		if until.Before(now.Add(-window)) {
			continue
		}
		if dueBy(until.Add(inexact), p.pod, bound, h.taints, func(t heldTaint) time.Time { return t.early }) {
			return
		}
	}
	w.reportOnce(evictionJust, podKey(p.pod), "pod %s was deleted for a taint of node %s, and none "+
		"asked for it in the last %s", podKey(p.pod), n.node.Name, window)
}

// leftLate is a pod evicted because of a taint, with the observed delay of its eviction.
type leftLate struct {
	pod, node string
	at        time.Time
	late      time.Duration
}

func (p *podSeen) leftLate(now time.Time) leftLate {
	l := leftLate{pod: podKey(p.pod), node: p.pod.Spec.NodeName, at: now}
	if p.late.due {
		l.late = now.Sub(p.late.at)
	}
	return l
}

const (
	// evictionDelayLimit is the maximum delay of an eviction, and of tainting a silent node. Only
	// time during which the controllers are healthy counts (observer.fair).
	evictionDelayLimit = 40 * time.Second
	// recovers is the time for which controllers count as unhealthy after a disturbance. It
	// includes the expiry of a Lease, the reading of lists, and back-offs.
	recovers = 20 * time.Second
)

// checkLate reports pods and silent nodes whose eviction or taint is overdue, and returns the
// number of due evictions and missing taints. passed is the time since the last check, or 0 if the
// controllers were not healthy throughout.
func (w *observer) checkLate(now time.Time, passed time.Duration) (late int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fair += passed
	w.forgetOld(now)
	for _, p := range w.pods {
		n := w.nodes[p.pod.Spec.NodeName]
		due := n != nil && p.pod.DeletionTimestamp == nil && takesRoom(p.pod) && len(n.history) > 0 &&
			dueBy(now, p.pod, p.boundAt, n.history[len(n.history)-1].taints, func(t heldTaint) time.Time { return t.late })
		if due && !p.late.due {
			p.late.fair, p.late.at = w.fair, now
		}
		p.late.due = due
		if !due {
			continue
		}
		late++
		w.checks.addOne(evictionDone)
		if w.fair-p.late.fair > evictionDelayLimit {
			w.reportOnce(evictionDone, podKey(p.pod),
				"pod %s had to leave node %s for its taints and is there, %s later, in which the controllers were well",
				podKey(p.pod), n.node.Name, (w.fair - p.late.fair).Round(time.Second))
		}
	}

	return late + w.checkSilent()
}

// checkSilent returns the number of silent nodes without the taint node.kubernetes.io/unreachable,
// and reports the overdue nodes.
func (w *observer) checkSilent() (unnoticed int) {
	for _, n := range w.nodes {
		noticed := slices.ContainsFunc(n.node.Spec.Taints, func(t v1.Taint) bool { return t.Key == v1.TaintNodeUnreachable })
		if !n.silent.is || noticed {
			continue
		}
		unnoticed++
		w.checks.addOne(silenceSeen)
		if w.fair-n.silent.fair > w.silence+evictionDelayLimit {
			w.reportOnce(silenceSeen, n.node.Name,
				"node %s has been silent for %s in which the controllers were well, and is not tainted", n.node.Name,
				(w.fair - n.silent.fair).Round(time.Second))
		}
	}
	return unnoticed
}
