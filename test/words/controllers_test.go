// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package words

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/controller"
	"k8s.io/kubernetes/pkg/controller/daemon"
	podregistry "k8s.io/kubernetes/pkg/registry/core/pod"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/world/workload"
)

// soundPod draws pods until one is valid, because controllers only see valid pods.
func (s source) soundPod() *v1.Pod {
	s.bad = 0
	for {
		pod := s.pod()
		pod.Spec.HostNetwork, pod.Spec.NodeName = s.chance(30), ""
		pod.Spec.Resources, pod.Spec.ResourceClaims, pod.Spec.TopologySpreadConstraints = nil, nil, nil
		pod.Spec.InitContainers, pod.Spec.RuntimeClassName, pod.Spec.Overhead, pod.Spec.PreemptionPolicy = nil, nil, nil, nil
		pod.Spec.PriorityClassName = ""
		if pod.Spec.Affinity != nil {
			pod.Spec.Affinity.PodAffinity, pod.Spec.Affinity.PodAntiAffinity = nil, nil
		}
		for i := range pod.Spec.Containers {
			pod.Spec.Containers[i].Resources, pod.Spec.Containers[i].Ports = v1.ResourceRequirements{}, nil
		}
		if len(rules.ValidatePod(pod)) == 0 {
			return pod
		}
	}
}

func TestDaemonSetsWantTheNodesThatUpstreamWants(t *testing.T) {
	wanted := 0
	for seed := range uint64(trials) {
		s := newSource(seed)
		pod := s.soundPod()
		set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "set"}, Spec: appsv1.DaemonSetSpec{
			Template: v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels}, Spec: pod.Spec}}}
		s.bad = 0
		for i := range 10 {
			node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("x%d", i), Labels: s.labels()}, Spec: v1.NodeSpec{Taints: some(s, 1, s.taint)}}
			if s.chance(30) {
				node.Spec.Taints = append(node.Spec.Taints, v1.Taint{Key: pick(s, v1.TaintNodeNotReady, v1.TaintNodeNetworkUnavailable, v1.TaintNodeUnschedulable),
					Effect: s.effect()})
			}
			// Upstream's feature gate for the operators Gt and Lt is off. Berth always supports
			// them.
			for j := range set.Spec.Template.Spec.Tolerations {
				if op := &set.Spec.Template.Spec.Tolerations[j].Operator; *op == v1.TolerationOpGt || *op == v1.TolerationOpLt {
					*op = v1.TolerationOpEqual
				}
			}
			want, _ := daemon.NodeShouldRunDaemonPod(klog.Background(), node, set.DeepCopy())
			if got := workload.RunsDaemon(set, node); got != want {
				text, _ := json.Marshal([]any{set, node})
				t.Fatalf("seed %d: Berth %v, upstream %v\n%s", seed, got, want, text)
			}
			if want {
				wanted++
			}
		}
	}
	t.Logf("%d of %d nodes wanted", wanted, 10*trials)
}

// TestReplicaSetsHaveUpstreamsNames verifies that a Deployment recorded without its ReplicaSet gets
// a ReplicaSet with the name that upstream would use.
func TestReplicaSetsHaveUpstreamsNames(t *testing.T) {
	for seed := range uint64(200) {
		s := newSource(seed)
		pod := s.soundPod()
		pod.Labels = map[string]string{"app": "web"}
		d := &appsv1.Deployment{
			TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
			ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "u"},
			Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: pod.Labels},
				Template: v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels}, Spec: pod.Spec}},
		}
		legacyscheme.Scheme.Default(d)
		data, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		var stored appsv1.Deployment
		if err := json.Unmarshal(data, &stored); err != nil {
			t.Fatal(err)
		}
		set, err := manifest.Read([]string{"-"}, bytes.NewReader(data), manifest.Options{})
		if err != nil {
			t.Fatal(err)
		}
		set.Expand(1)
		if got, want := set.ReplicaSets[0].Name, "web-"+controller.ComputeHash(&stored.Spec.Template, nil); got != want {
			t.Fatalf("seed %d: Berth %s, upstream %s", seed, got, want)
		}
	}
}

// TestLabelKeysAreMergedAsInTheRegistry verifies that admission.Create merges matchLabelKeys into
// selectors, as the API server does before it stores a pod.
func TestLabelKeysAreMergedAsInTheRegistry(t *testing.T) {
	merged := 0
	for seed := range uint64(trials) {
		s := newSource(seed)
		s.bad = 0
		pod := s.soundPod()
		pod.Spec.TopologySpreadConstraints = some(s, 2, s.spread)
		if s.chance(50) {
			pod.Spec.Affinity = s.affinity()
		}
		legacyscheme.Scheme.Default(pod)
		var theirs core.Pod
		internal(t, pod, &theirs)
		podregistry.Strategy.PrepareForCreate(t.Context(), &theirs)
		var back v1.Pod
		internal(t, &theirs, &back)
		ours, err := admission.Create(admission.Config{}, admission.NewCatalog(nil, nil, nil), pod)
		if err != nil {
			continue
		}
		merged++
		same(t, seed, back.Spec.TopologySpreadConstraints, ours.Spec.TopologySpreadConstraints)
		if back.Spec.Affinity != nil {
			same(t, seed, back.Spec.Affinity, ours.Spec.Affinity)
		}
		if back.Status.QOSClass != ours.Status.QOSClass || back.Status.Phase != ours.Status.Phase {
			t.Fatalf("seed %d: status %+v, upstream %+v", seed, ours.Status, back.Status)
		}
	}
	t.Logf("%d pods", merged)
}

// TestPodResourcesAreFilledInAsInTheRegistry verifies that missing pod-level resources are derived
// from the containers, as the API server does before it stores a pod.
func TestPodResourcesAreFilledInAsInTheRegistry(t *testing.T) {
	filled := 0
	for seed := range uint64(trials) {
		pod := newSource(seed).pod()
		legacyscheme.Scheme.Default(pod)
		before := pod.Spec.Resources.DeepCopy()
		var theirs core.Pod
		internal(t, pod, &theirs)
		podregistry.Strategy.PrepareForCreate(t.Context(), &theirs)
		var back v1.Pod
		internal(t, &theirs, &back)

		admission.DefaultPodResources(pod)

		same(t, seed, back.Spec.Resources, pod.Spec.Resources)
		if !apiequality.Semantic.DeepEqual(before, pod.Spec.Resources) {
			filled++
		}
	}
	if filled == 0 {
		t.Error("nothing was filled in")
	}
	t.Logf("%d pods", filled)
}
