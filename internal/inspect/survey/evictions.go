// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package survey

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// Evictions lists the pods to be evicted by NoExecute taints, in order of time.
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
	Taint string `json:"taint"`
	// Lost is set if no controller replaces the pod. Other pods return elsewhere, if they find
	// room.
	Lost bool `json:"lost,omitempty"`
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
	return list
}
