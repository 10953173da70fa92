package survey

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// Evictions are the pods that NoExecute taints evict, in order of time.
//
// kube-controller-manager's taint eviction controller deletes a pod when the tolerationSeconds of
// its tolerations are over, and does not say so before. This says it in advance.
type Evictions struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Source     simulate.Source `json:"source"`
	Evictions  []Eviction      `json:"evictions"`

	scope Scope // that was asked about
}

// Eviction is a pod that has to leave.
type Eviction struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Node      string `json:"node"`
	// Workload is as WorkloadOf names it.
	Workload string `json:"workload"`
	// Due is when, and After how long that is after the state was read; 0s if it was due before.
	Due   metav1.Time      `json:"due"`
	After simulate.Seconds `json:"after"`
	// Taint is the one that evicts it first, as key=value:effect.
	Taint string `json:"taint"`
	// Lost is set if no controller replaces it. Other pods come back elsewhere, if they find room.
	Lost bool `json:"lost,omitempty"`
}

// EvictionsOf lists the pods that have to leave, in a world that has just been read. The world says
// what its taints and tolerations lead to by themselves; nothing is evicted by asking.
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
