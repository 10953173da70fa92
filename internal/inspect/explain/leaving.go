// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// Leaving lists pods that are already terminating. The pending pod fits once they have left, so no
// change is needed, and a suggestion would be outdated a few seconds later.
type Leaving struct {
	// Node is the node that will fit the pod. It is empty for a pod group that fits on several
	// nodes.
	Node string          `json:"node,omitempty"`
	Pods []simulate.Name `json:"pods"`
	// Until is the latest end of their grace periods.
	Until metav1.Time `json:"until"`
	// Preempted is set if the pending pod has preempted them.
	Preempted bool `json:"preempted,omitempty"`
}

// overdue is the time from the end of a pod's grace period until the pod counts as stuck. Kubelets
// need some time to report the end of a pod.
const overdue = 30 * time.Second

// afterLeaving describes the terminating pods if the pod fits once they have left, and otherwise
// returns nil. A preemptor waits for its nominated node.
func (e *explainer) afterLeaving(waiting *cluster.Pod) *Leaving {
	pods := terminatingPods(e.w)
	// A nominated pod waits for its node only, regardless of departures from other nodes.
	nominated := e.c.Node(waiting.Nominated)
	if nominated != nil {
		pods = slices.DeleteFunc(pods, func(p *cluster.Pod) bool { return p.Node != nominated })
	}
	if len(pods) == 0 {
		return nil
	}

	b := &bench{w: e.w, c: e.c, object: e.object, pod: waiting}
	node := b.tryEdits(&edit{delete: pods})
	// The pod still does not fit, or not on its nominated node.
	if node == "" || nominated != nil && node != nominated.Name {
		return nil
	}
	// Pods leaving other nodes are irrelevant, unless they affect spread or affinity.
	there := slices.DeleteFunc(slices.Clone(pods), func(p *cluster.Pod) bool { return p.Node.Name != node })
	if len(there) > 0 && b.tryEdits(&edit{delete: there}) == node {
		pods = there
	}
	return leavingOf(e.w, node, pods, e.pod.Nominated == node)
}

// leavingOf describes the departing pods, which must not be empty. nominated is set if the pending
// pod or group is nominated to their nodes; if all of them have been preempted, they count as its
// victims.
func leavingOf(w *simulate.World, node string, pods []*cluster.Pod, nominated bool) *Leaving {
	out := &Leaving{Node: node, Preempted: nominated}
	for _, p := range pods {
		found, _ := w.Find(p.Namespace(), p.Name())
		if due := found.Object.DeletionTimestamp; out.Until.Before(due) {
			out.Until = *due
		}
		out.Pods = append(out.Pods, podName(p))
		out.Preempted = out.Preempted && p.Preempted
	}
	return out
}

// afterLeaving describes the terminating pods if the group fits once they have left, and otherwise
// returns nil. It mirrors the method for a single pod, with several nodes.
func (s *groupSearch) afterLeaving(members []simulate.Found) *Leaving {
	nominated := map[string]bool{}
	for _, m := range members {
		if m.Pod.Nominated != "" {
			nominated[m.Pod.Nominated] = true
		}
	}
	// Nominated members wait for these nodes only.
	pods := slices.DeleteFunc(terminatingPods(s.w), func(p *cluster.Pod) bool { return len(nominated) > 0 && !nominated[p.Node.Name] })
	if len(pods) == 0 {
		return nil
	}

	taken := s.nodesWithout(pods)
	if taken == nil {
		return nil
	}
	there := slices.DeleteFunc(slices.Clone(pods), func(p *cluster.Pod) bool { return !taken[p.Node.Name] })
	// Narrow the list to pods on the assigned nodes, if their departure is enough.
	if again := s.nodesWithout(there); len(there) > 0 && again != nil {
		pods, taken = there, again
	}
	// Set the node only if it is the only one.
	node := ""
	for name := range taken {
		if len(taken) == 1 {
			node = name
		}
	}
	return leavingOf(s.w, node, pods, len(nominated) > 0)
}

// nodesWithout returns the nodes that the pods of the group would get without the given pods, or
// nil if the group would not be placed. It restores the given pods before it returns.
func (s *groupSearch) nodesWithout(pods []*cluster.Pod) map[string]bool {
	trial := s.w.Trial()
	defer trial.Undo(trial.Mark())
	removePods(trial, pods)
	t := s.w.TryGroup(s.g.Name.Namespace, s.g.Name.Name)
	if t == nil || !isPlaced(t) {
		return nil
	}
	taken := map[string]bool{}
	for _, p := range t.Pods {
		if p.Node != "" {
			taken[p.Node] = true
		}
	}
	return taken
}

// terminatingPods lists the pods expected to leave their nodes within their grace periods. It
// excludes pods kept by a finalizer, pods on unresponsive nodes, and overdue pods, because they may
// never leave.
func terminatingPods(w *simulate.World) (pods []*cluster.Pod) {
	for _, f := range w.Each() {
		due := f.Object.DeletionTimestamp
		if due == nil || f.Pod == nil || f.Pod.Node == nil || len(f.Object.Finalizers) > 0 || w.Now().After(due.Add(overdue)) ||
			w.HoldsPods(f.Pod.Node.Name) {
			continue
		}
		pods = append(pods, f.Pod)
	}
	return pods
}

// Summary describes the awaited event. It continues a sentence beginning with the pod or the group.
func (l *Leaving) Summary() string {
	// The sentence must suit one pod and many.
	names := answer.List(len(l.Pods), func(i int) string { return l.Pods[i].Namespace + "/" + l.Pods[i].Name })
	why := "it fits there then"
	if l.Preempted {
		why = "it has preempted them"
		if len(l.Pods) == 1 {
			why = "it has preempted that pod"
		}
	}

	verb := "has"
	if len(l.Pods) > 1 {
		verb = "have"
	}

	where := ""
	if l.Node != "" {
		where = " on " + l.Node
	}
	return fmt.Sprintf("waits until %s, terminating%s, %s gone, by %s at the latest: %s", names, where, verb, formatTime(l.Until.Time), why)
}

// explainEviction determines when the pod must leave its node, if ever.
func (e *explainer) explainEviction() error {
	node := e.w.Node(e.object.Spec.NodeName)
	if node == nil {
		return nil
	}
	due, now := e.w.Due(e.object.UID), e.w.Now()
	// The pod is not affected by a taint, or tolerates it forever.
	if due.Stays() {
		return nil
	}
	out := &Eviction{Taint: due.Taint.ToString(), Due: metav1.NewTime(due.At.UTC()), In: simulate.Seconds(max(due.At.Sub(now), 0))}
	// Tolerations of device taints are in the claim, which is immutable, so no change can be
	// suggested.
	if due.OfDevice() {
		out.Since, out.Device = ptr.Deref(due.Taint.TimeAdded, metav1.NewTime(now.UTC())), due.Device.String()
		e.out.Eviction = out
		return nil
	}
	stay := time.Duration(0)
	if t := rules.TolerationOf(&due.Taint, e.object.Spec.Tolerations); t != nil && t.TolerationSeconds != nil {
		out.TolerationSeconds = t.TolerationSeconds
		stay = time.Duration(max(*t.TolerationSeconds, 0)) * time.Second
	}
	// The deadline minus the toleration time is the time of the taint.
	out.Since = metav1.NewTime(due.At.Add(-stay).UTC())
	out.Cancel = e.evictionFixes(node, &due.Taint)
	e.out.Eviction = out
	return nil
}

// evictionFixes returns changes that would let the pod stay: removing the taint, or tolerating it
// forever.
func (e *explainer) evictionFixes(node *v1.Node, t *v1.Taint) []Change {
	b := &bench{w: e.w, c: e.c, object: e.object, pod: e.pod}
	list := []Change{(&fixer{bench: b}).untaintEdit(verdict{node: e.c.Node(node.Name)}, []taint{{t}}).Change}
	first := func(p *v1.Pod) { // the first matching toleration applies
		p.Spec.Tolerations = append([]v1.Toleration{tolerationOf(t)}, p.Spec.Tolerations...)
	}
	tolerate := b.onPod("Tolerate", fmt.Sprintf("tolerate %s, without tolerationSeconds", t.ToString()), 0, first).Change
	// This pod must stay, so do not change its template, which would replace it.
	tolerate.Command = keeper{pod: e.object}.changeCommand([]string{"Tolerate"}, first)
	return append(list, tolerate)
}
