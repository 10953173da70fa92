// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package survey

import (
	"cmp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/admission/evictionguard"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
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

// addHeld lists the pods whose evictions the guard holds.
func (e *Evictions) addHeld(w *simulate.World) {
	for _, f := range w.Each() {
		since, ok := evictionguard.Requested(f.Object, w.Now(), evictionguard.DefaultDeadline)
		status, held := strings.CutPrefix(f.Object.Annotations[evictionguard.StatusAnnotation], evictionguard.Held)
		if !ok || !held && status != "" || f.Object.DeletionTimestamp != nil || !e.scope.Covers(f) {
			continue
		}
		due := since.Add(evictionguard.DefaultDeadline)
		e.Evictions = append(e.Evictions, Eviction{
			Namespace: f.Object.Namespace, Name: f.Object.Name, Node: f.Object.Spec.NodeName, Workload: WorkloadOf(w, f),
			Due: metav1.NewTime(due.UTC()), After: simulate.Seconds(max(0, due.Sub(w.Now()))),
			Held: &Held{Since: metav1.NewTime(since.UTC()), Status: status},
		})
	}
}
