// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/controller"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// TestScalingDownRemovesWhomTheControllerRemoves verifies that scaling down a ReplicaSet in a
// forecast removes the pods that the ReplicaSet controller would remove.
func TestScalingDownRemovesWhomTheControllerRemoves(t *testing.T) {
	removed := 0
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 7))
		set, pods := replicas(r)
		world, err := simulate.Open(readObjects(t, set, pods), simulate.Options{Seed: 1})
		if err != nil {
			t.Fatal(err)
		}
		world.Settle()

		keep := r.IntN(len(pods))
		want := removedByController(pods, keep, world.Now())
		if _, err := world.Do(&simulate.Operation{Scale: &simulate.Scale{Workload: "replicaset/web", Replicas: keep}}); err != nil {
			t.Fatal(err)
		}
		world.Settle()

		var gone []string
		for _, pod := range pods {
			if _, there := world.Find(pod.Namespace, pod.Name); !there {
				gone = append(gone, pod.Name)
			}
		}
		removed += len(gone)
		if !slices.Equal(gone, want) {
			t.Fatalf("seed %d, to %d: %v are removed, by the controller %v\n%s", seed, keep, gone, want, textOf(t, pods))
		}
	}
	t.Logf("%d pods removed", removed)
}

// removedByController returns the names of the pods that the ReplicaSet controller would remove, in
// the order of pods.
func removedByController(pods []*v1.Pod, keep int, now time.Time) (names []string) {
	together := map[string]int{}
	for _, pod := range pods {
		if controller.IsPodActive(pod) {
			together[pod.Spec.NodeName]++
		}
	}
	ranked := controller.ActivePodsWithRanks{Pods: slices.Clone(pods), Now: metav1.NewTime(now)}
	for _, pod := range pods {
		ranked.Rank = append(ranked.Rank, together[pod.Spec.NodeName])
	}
	sort.Sort(ranked)

	for _, pod := range pods {
		if slices.Index(ranked.Pods, pod) < len(pods)-keep {
			names = append(names, pod.Name)
		}
	}
	return names
}

// replicas draws a ReplicaSet and its pods with all fields that the ReplicaSet controller reads.
func replicas(r *rand.Rand) (*appsv1.ReplicaSet, []*v1.Pod) {
	n := 2 + r.IntN(8)
	template := v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: "i"}}}
	set := &appsv1.ReplicaSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "ReplicaSet"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "web"},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: ptr.To(int32(n)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			Template: v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}}, Spec: template},
		},
	}

	var pods []*v1.Pod
	for i := range n {
		pod := &v1.Pod{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: fmt.Sprint("web-", i), UID: types.UID(fmt.Sprintf("%08x", r.Uint32())),
				Labels:            map[string]string{"app": "web"},
				CreationTimestamp: metav1.NewTime(randomTime(r).Add(time.Duration(i) * time.Second)), // distinct: ties have no fixed order
				OwnerReferences:   []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))},
			},
			Spec: *template.DeepCopy(),
		}
		if r.IntN(3) == 0 {
			costs := []string{"5", "-5", "0", "+5", "05", "2147483648", "many"}
			pod.Annotations = map[string]string{"controller.kubernetes.io/pod-deletion-cost": costs[r.IntN(len(costs))]}
		}
		runReplica(r, pod)
		pods = append(pods, pod)
	}
	return set, pods
}

// runReplica gives most pods a node and a status as set by a kubelet. The other pods fit on no
// node.
func runReplica(r *rand.Rand, pod *v1.Pod) {
	pod.Status.Phase = v1.PodPending
	if r.IntN(5) == 0 {
		pod.Spec.NodeSelector = map[string]string{"there-is": "none"}
		return
	}
	pod.Spec.NodeName = fmt.Sprint("node-", r.IntN(3))
	pod.Status.Phase = []v1.PodPhase{v1.PodRunning, v1.PodRunning, v1.PodRunning, v1.PodPending, v1.PodUnknown}[r.IntN(5)]
	if r.IntN(4) > 0 {
		ready := v1.ConditionFalse
		if pod.Status.Phase == v1.PodRunning && r.IntN(4) > 0 {
			ready = v1.ConditionTrue
		}
		pod.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: ready, LastTransitionTime: metav1.NewTime(randomTime(r))}}
	}
	// The API server sets this condition with the binding.
	pod.Status.Conditions = append(pod.Status.Conditions, v1.PodCondition{Type: v1.PodScheduled, Status: v1.ConditionTrue})
	if r.IntN(2) == 0 {
		pod.Status.ContainerStatuses = []v1.ContainerStatus{{Name: "c", RestartCount: r.Int32N(3)}}
	}
	if r.IntN(3) == 0 {
		pod.Spec.InitContainers = []v1.Container{{Name: "side", Image: "i"}}
		if r.IntN(2) == 0 {
			pod.Spec.InitContainers[0].RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
		}
		pod.Status.InitContainerStatuses = []v1.ContainerStatus{{Name: "side", RestartCount: r.Int32N(3)}}
	}
}

// randomTime returns one of a few times, so that many are equal or nearly equal.
func randomTime(r *rand.Rand) time.Time {
	return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(r.IntN(3)) * time.Duration(1+r.IntN(40)*r.IntN(40)) * time.Hour / 4)
}

func readObjects(t *testing.T, set *appsv1.ReplicaSet, pods []*v1.Pod) *manifest.Set {
	t.Helper()
	objects := []runtime.Object{set}
	for i := range 3 {
		objects = append(objects, &v1.Node{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("node-", i)},
			Status: v1.NodeStatus{Allocatable: v1.ResourceList{
				v1.ResourcePods: resource.MustParse("110"), v1.ResourceCPU: resource.MustParse("8"), v1.ResourceMemory: resource.MustParse("8Gi"),
			}},
		})
	}
	for _, pod := range pods {
		objects = append(objects, pod)
	}
	var text strings.Builder
	for _, object := range objects {
		fmt.Fprintf(&text, "---\n%s", textOf(t, object))
	}
	read, err := manifest.Read([]string{"-"}, strings.NewReader(text.String()), manifest.Options{Lenient: true})
	if err != nil {
		t.Fatal(err)
	}
	read.Expand(1)
	return read
}

func textOf(t *testing.T, v any) string {
	t.Helper()
	text, err := yaml.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
