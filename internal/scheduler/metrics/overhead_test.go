// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/groups"
)

// shownPods records the names of the pods passed to it.
type shownPods struct{ names, gone []string }

func (s *shownPods) Pod(pod *v1.Pod)         { s.names = append(s.names, pod.Name) }
func (s *shownPods) PodGone(uid types.UID)   { s.gone = append(s.gone, string(uid)) }
func (s *shownPods) Node(*v1.Node)           {}
func (s *shownPods) NodeGone(string)         {}
func (s *shownPods) Group(*groups.PodGroup)  {}
func (s *shownPods) GroupGone(cluster.Name)  {}
func (s *shownPods) Shown(types.UID) *v1.Pod { return nil }

func TestOverheadOfPods(t *testing.T) {
	r, shown := New(), &shownPods{}
	objects := r.Overheads(shown)
	web := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "u1"}, Spec: v1.PodSpec{Overhead: v1.ResourceList{
		v1.ResourceCPU: resource.MustParse("250m"), v1.ResourceMemory: resource.MustParse("120Mi"),
	}}}
	objects.Pod(web)
	objects.Pod(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "plain", UID: "u2"}})
	if got, want := gathered(t, r), "cpu_cores{shop,web,u1} 0.25, memory_bytes{shop,web,u1} 1.2582912e+08"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	objects.PodGone("u1")
	if got := gathered(t, r); got != "" {
		t.Errorf("after the pod has gone: %s", got)
	}
	if strings.Join(shown.names, " ") != "web plain" || len(shown.gone) != 1 {
		t.Errorf("passed on: %v, %v", shown.names, shown.gone)
	}
}

// gathered returns the metrics of overhead.
func gathered(t *testing.T, r *Recorder) string {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, family := range families {
		name, ours := strings.CutPrefix(family.GetName(), "kube_pod_overhead_")
		for _, metric := range family.GetMetric() {
			var labels []string
			for _, label := range metric.GetLabel() {
				labels = append(labels, label.GetValue())
			}
			if ours {
				all = append(all, fmt.Sprintf("%s{%s} %v", name, strings.Join(labels, ","), metric.GetGauge().GetValue()))
			}
		}
	}
	return strings.Join(all, ", ")
}
