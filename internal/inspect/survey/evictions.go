// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package survey

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/admission/evictionguard"
	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/inspect/explain"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/world"
)

// Evictions lists the pods to be evicted by NoExecute taints, and the pods whose evictions the
// guard holds, in order of time.
//
// kube-controller-manager's taint eviction controller deletes a pod when the tolerationSeconds of
// its tolerations expire, without announcement. This list announces the deletions.
type Evictions struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Source     simulate.Source `json:"source"`
	Evictions  []Eviction      `json:"evictions"`

	scope Scope // requested scope
}

// Eviction is a pod due for eviction.
type Eviction struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Node      string `json:"node"`
	// Workload is the name returned by WorkloadOf.
	Workload string `json:"workload"`
	// Due is the time of the eviction. After is the time from reading the state until Due, or 0s if
	// overdue.
	Due   metav1.Time      `json:"due"`
	After simulate.Seconds `json:"after"`
	// Taint is the first taint to evict the pod, as key=value:effect.
	Taint string `json:"taint,omitempty"`
	// Held is set if the guard holds the eviction. Due is then the guard's deadline.
	Held *Held `json:"held,omitempty"`
	// Lost is set if no controller replaces the pod. Other pods return elsewhere, if they find
	// room.
	Lost bool `json:"lost,omitempty"`
}

// Held is an eviction that the guard holds until a replacement is ready.
type Held struct {
	Since metav1.Time `json:"since"`
	// Status names the replacement and its state, or the reason why there is none.
	Status string `json:"status"`
}

// EvictionsOf lists the pods due for eviction in a newly read world. The world derives them from
// taints and tolerations; the call evicts nothing.
func EvictionsOf(w *simulate.World, scope Scope, source simulate.Source) *Evictions {
	list := &Evictions{APIVersion: simulate.APIVersion, Kind: KindEvictions, Source: source, Evictions: []Eviction{}, scope: scope}
	for _, e := range w.Outlook() {
		f, ok := w.Find(e.Namespace, e.Name)
		if !ok || !scope.Covers(f) {
			continue
		}
		list.Evictions = append(list.Evictions, Eviction{
			Namespace: e.Namespace, Name: e.Name, Node: e.Node, Workload: WorkloadOf(w, f), After: e.After, Taint: e.Taint,
			Due: metav1.NewTime(w.Now().Add(e.After.Duration()).UTC()), Lost: metav1.GetControllerOfNoCopy(f.Object) == nil,
		})
	}
	list.addHeld(w)
	slices.SortStableFunc(list.Evictions, func(a, b Eviction) int { return cmp.Compare(a.After, b.After) })
	return list
}

// deadlineOf returns the time for which the guard holds an eviction of the pod at most, by the
// annotations of its workload and of its namespace.
func deadlineOf(w *simulate.World, f simulate.Found) time.Duration {
	var workload, namespace map[string]string
	if owner := w.OwnerOf(f.Object); owner != nil && owner.Object != nil {
		workload = owner.Object.GetAnnotations()
	}
	if ns, ok := world.Get[*v1.Namespace](w.Trial(), "", f.Object.Namespace); ok {
		namespace = ns.Annotations
	}
	options := evictionguard.DefaultOptions()
	return options.RuleOf(workload, namespace).Deadline
}

// addHeld lists the pods whose evictions the guard holds.
func (e *Evictions) addHeld(w *simulate.World) {
	for _, f := range w.Each() {
		since, status, ok := evictionguard.HeldSince(f.Object)
		due := since.Add(deadlineOf(w, f))
		if _, recent := evictionguard.Requested(f.Object, w.Now(), evictionguard.DefaultDeadline); !ok || !recent || !e.scope.Covers(f) {
			continue
		}
		e.Evictions = append(e.Evictions, Eviction{
			Namespace: f.Object.Namespace, Name: f.Object.Name, Node: f.Object.Spec.NodeName, Workload: WorkloadOf(w, f),
			Due: metav1.NewTime(due.UTC()), After: simulate.Seconds(max(0, due.Sub(w.Now()))),
			Held: &Held{Since: metav1.NewTime(since.UTC()), Status: status},
		})
	}
}

// Workload is a set of pods pending for the same reason: a controller's pods, the pods of a pod
// group, or a bare pod.
type Workload struct {
	Namespace string `json:"namespace"`
	// Name is deployment/NAME and so on; pod/NAME for a bare pod, podgroup/NAME for the pods of a
	// group.
	Name string `json:"name"`
	// Pods lists the names, the oldest first. If the entry is about pods that do not exist, Pods is
	// empty and Missing is their number.
	Pods    []string `json:"pods"`
	Missing int      `json:"missing,omitempty"`
	// Since is the creation time of the oldest pod; For is its age.
	Since metav1.Time      `json:"since"`
	For   simulate.Seconds `json:"for"`
	// State is the oldest pod's state, representing all pods of the entry.
	State explain.State `json:"state"`
	// Reason is the reason the pods are pending. If a plugin rejects the pods, Nodes is the number
	// of nodes it rejects, and Of is the number of all nodes.
	Reason string `json:"reason"`
	Plugin string `json:"plugin,omitempty"`
	Nodes  int    `json:"nodes,omitempty"`
	Of     int    `json:"of,omitempty"`
	// Detail names the objects and amounts behind the oldest pod's reason, if Reason does not name
	// them.
	Detail string `json:"detail,omitempty"`
	// Help is the smallest change that lets one of the pods run, if one was found.
	Help string `json:"help,omitempty"`
	// Command is a kubectl command for the change, if there is one.
	Command string `json:"command,omitempty"`
	// Message is the FailedScheduling event's message.
	Message string `json:"message,omitempty"`
}

// countPods returns the number of pods of the entry, existing or not.
func (one *Workload) countPods() int { return len(one.Pods) + one.Missing }

// mergeWorkloads combines entries of a workload with the same state and reason. Such entries are
// common, because each pod of a DaemonSet, and each pod with its own claim, has a separate class.
// The pods keep the order of the entries, the oldest first.
func mergeWorkloads(all []Workload) (kept []Workload) {
	type key struct {
		namespace, name, reason, plugin string
		state                           explain.State
		nodes                           int
	}
	slices.SortFunc(all, func(a, b Workload) int { // oldest first
		return cmp.Or(a.Since.Compare(b.Since.Time), cmp.Compare(a.Pods[0], b.Pods[0]))
	})
	for _, same := range answer.Grouped(all, func(w Workload) key {
		return key{w.Namespace, w.Name, w.Reason, w.Plugin, w.State, w.Nodes}
	}) {
		one := same[0]
		for _, other := range same[1:] {
			one.Pods = append(one.Pods, other.Pods...)
		}
		kept = append(kept, one)
	}
	return kept
}

// newWorkload explains the first pod, which must be the oldest, and returns one entry for all pods.
// With a budget, it searches for a change that helps.
func newWorkload(w *simulate.World, name string, pods []simulate.Found, source simulate.Source, budget *int) (*Workload, error) {
	oldest, most := pods[0].Object, 1
	if budget == nil {
		most = -1
	}
	e, err := explain.Of(w, explain.Options{Namespace: oldest.Namespace, Name: oldest.Name, Most: most, Budget: budget, Source: source})
	if err != nil {
		return nil, err
	}
	one := &Workload{
		Namespace: oldest.Namespace, Name: name, Since: oldest.CreationTimestamp, State: e.State, Of: e.Nodes, Message: e.Message,
		For: simulate.Seconds(max(w.Now().Sub(oldest.CreationTimestamp.Time), 0)),
	}
	one.Pods = answer.Mapped(pods, func(f simulate.Found) string { return f.Object.Name })
	// Replace the general summary of package explain with something shorter if available.
	one.Reason = e.Summary
	made := slices.IndexFunc(w.Pods(), func(d simulate.Pod) bool {
		return d.Namespace == oldest.Namespace && d.Name == oldest.Name && len(d.Victims) > 0
	})
	switch {
	case made >= 0: // the pod was tried, and its victims are already leaving
		d := &w.Pods()[made]
		one.State, one.Reason = explain.Pending, preemptsText(len(d.Victims), d.NominatedNode)
	case e.State == explain.Schedulable || e.State == explain.Placed: // offline, the pod has not been tried yet
		one.State = explain.Schedulable
		one.Reason = placeableText(source.IsStopped(oldest.Spec.SchedulerName), "is scheduled when its turn comes")
	case e.State == explain.Gated:
		one.Reason = e.Message
	case e.Leaving != nil:
		one.Reason = e.Leaving.Summary()
	case e.Preemption != nil && e.Preemption.Helps:
		one.Reason = preemptsText(len(e.Preemption.Victims), e.Preemption.Node)
	// A label missing on every node is more informative than the plugin that requires it.
	case len(e.NoNodeHas) > 0:
		one.Reason = "no node has " + strings.Join(e.NoNodeHas, " or ")
	case e.Decisive != nil:
		one.Plugin, one.Nodes, one.Reason = e.Decisive.Plugin, e.Decisive.Nodes, strings.Join(e.Decisive.Reasons, ", ")
		one.Detail = e.Decisive.Detail
	}
	// A pod that preempts needs no help.
	if makesRoom := e.Preemption != nil && e.Preemption.Helps; len(e.Suggestions) > 0 && !makesRoom {
		one.Help, one.Command = e.Suggestions[0].Text, e.Suggestions[0].Command()
	}
	// All pods of the entry are of this group.
	if g := pods[0].Group; g != "" {
		return one, one.ofGroup(w, g, source.IsStopped(oldest.Spec.SchedulerName))
	}
	return one, nil
}

// placeableText returns the reason for pods that have a feasible node. The argument then describes
// when they are placed. It is not used if their scheduler has stopped.
func placeableText(stopped bool, then string) string {
	if stopped {
		return "can be placed, but no scheduler is running to do it"
	}
	return "can be placed, and " + then
}

// preemptsText returns the reason for a pod that preempts victims on a node.
func preemptsText(victims int, node string) string {
	return fmt.Sprintf("preempts %s on %s", answer.Count(victims, "pod"), node)
}

// ofGroup replaces the reason and the suggestion for one pod with the reason and the suggestion for
// its group. Like explain, it omits suggestions for a single pod of a gang. If the group is
// unknown, it changes nothing and the pod's reason remains.
func (one *Workload) ofGroup(w *simulate.World, name string, stopped bool) error {
	e, err := explain.OfGroup(w, explain.Options{Namespace: one.Namespace, Name: name})
	if errors.Is(err, explain.ErrNoPod) || err == nil && e.Now == nil {
		return nil // the PodGroup is missing, or none of its pods is tried
	}
	if err != nil {
		return err
	}
	t := e.Now
	one.Plugin, one.Nodes, one.Detail, one.Message, one.State = "", 0, "", t.Message, e.State
	switch {
	case t.Incomplete:
		one.Reason = t.Message
	case len(t.Victims) > 0:
		one.Reason = "makes room by removing " + answer.Count(len(t.Victims), "pod")
	case e.Leaving != nil:
		one.Reason = e.Leaving.Summary()
	case t.Message != "":
		one.Reason = t.Message
	// Some pods of the group fit, and are placed without the others.
	case t.Fit < t.Tried:
		one.Reason = fmt.Sprintf("%d of %d pods %s", t.Fit, t.Tried, placeableText(stopped, "are scheduled when their turn comes"))
	default:
		one.Reason = placeableText(stopped, "is scheduled when its turn comes")
	}
	if len(e.Suggestions) > 0 {
		one.Help, one.Command = e.Suggestions[0].Text, ""
	}
	return nil
}
