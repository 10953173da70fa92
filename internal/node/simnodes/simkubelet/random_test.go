// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simkubelet

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// TestAnyCourseOfEvents verifies the invariants after every step of a random sequence: pods are
// created, edited and deleted, nodes are silenced and deleted, requests fail and the process
// restarts.
func TestAnyCourseOfEvents(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shape := testShape()
		shape.Count = 2
		shape.Capacity[v1.ResourceCPU] = resource.MustParse("4")
		w := newWorld(shape)
		w.start()
		containers := map[string]string{} // container IDs by pod UID and restart count
		for i := range rapid.IntRange(1, 40).Draw(t, "steps") {
			step(t, w, i)
			check(t, w, containers)
		}
		// Whatever happened before, all deleted pods are removed once no request fails and all
		// nodes send heartbeats.
		for name := range w.nodes {
			w.changeNode(name, func(n *v1.Node) { delete(n.Annotations, AnnotationHeartbeat) })
		}
		for name := range w.pods {
			if w.pods[name] != nil {
				w.deletePod(name, 30)
			}
		}
		w.outcomes = map[Kind][]Outcome{}
		w.wait(5 * time.Minute)
		for name, pod := range w.pods {
			t.Fatalf("pod %s is still there: %s", name, describePod(pod))
		}
	})
}

func step(t *rapid.T, w *world, i int) {
	node := fmt.Sprintf("node-%d", rapid.IntRange(1, 2).Draw(t, "node"))
	names := slices.Sorted(maps.Keys(w.pods))
	switch what := rapid.IntRange(0, 9).Draw(t, "what"); {
	case what <= 3:
		w.createPod(randomPod(t, i, node))
	case what == 4 && len(names) > 0:
		w.deletePod(rapid.SampledFrom(names).Draw(t, "pod"), rapid.Int64Range(0, 30).Draw(t, "grace"))
	case what == 5 && w.nodes[node] != nil:
		w.changeNode(node, func(n *v1.Node) {
			if n.Annotations[AnnotationHeartbeat] == "" {
				n.Annotations[AnnotationHeartbeat] = HeartbeatStopped
			} else {
				delete(n.Annotations, AnnotationHeartbeat)
			}
		})
	case what == 6:
		kind := rapid.SampledFrom([]Kind{PatchPod, DeletePod, Renew, PatchNode}).Draw(t, "kind")
		w.outcomes[kind] = append(w.outcomes[kind], Failed)
	case what == 7:
		w.start()
	case what == 8 && w.nodes[node] != nil && rapid.IntRange(0, 4).Draw(t, "rarely") == 0:
		w.deleteNode(node)
	default:
		w.wait(time.Duration(rapid.IntRange(1, 120).Draw(t, "seconds")) * time.Second)
	}
}

func randomPod(t *rapid.T, i int, node string) *v1.Pod {
	pod := &v1.Pod{}
	pod.Namespace, pod.Name = "default", fmt.Sprintf("p%d", i)
	pod.Annotations = map[string]string{}
	pod.Spec.NodeName = node
	pod.Spec.RestartPolicy = rapid.SampledFrom([]v1.RestartPolicy{v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever}).Draw(t, "policy")
	maybe := func(key string, values ...string) {
		if v := rapid.SampledFrom(append(values, "")).Draw(t, key); v != "" {
			pod.Annotations[key] = v
		}
	}
	maybe(AnnotationRunFor, "0s", "1s", "40s")
	maybe(AnnotationExitCode, "1", "0")
	maybe(AnnotationTerminateAfter, "10s", "1h")
	maybe(AnnotationInitFor, "3s")
	cpu := resource.NewMilliQuantity(rapid.Int64Range(0, 3000).Draw(t, "cpu"), resource.DecimalSI)
	c := v1.Container{Name: "c", Image: "nginx", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: *cpu}}}
	if delay := rapid.Int32Range(0, 5).Draw(t, "delay"); delay > 0 {
		c.ReadinessProbe = &v1.Probe{InitialDelaySeconds: delay}
	}
	pod.Spec.Containers = []v1.Container{c}
	if rapid.Bool().Draw(t, "init") {
		pod.Spec.InitContainers = []v1.Container{{Name: "i", Image: "init"}}
	}
	return pod
}

func check(t *rapid.T, w *world, containers map[string]string) {
	ips := map[string]string{}
	cpu := map[string]int64{}
	for name, pod := range w.pods {
		st := &pod.Status
		if st.Reason == "OutOfcpu" || st.StartTime == nil {
			continue
		}
		if !isTerminal(st.Phase) {
			cpu[pod.Spec.NodeName] += pod.Spec.Containers[0].Resources.Requests.Cpu().MilliValue()
			if other := ips[st.PodIP]; other != "" {
				t.Fatalf("pods %s and %s share the address %s", name, other, st.PodIP)
			}
			ips[st.PodIP] = name
		}
		for _, cs := range st.ContainerStatuses {
			key := fmt.Sprintf("%s/%d", pod.UID, cs.RestartCount)
			if was := containers[key]; was != "" && cs.ContainerID != was {
				t.Fatalf("pod %s: another container %s without a restart", name, cs.ContainerID)
			}
			containers[key] = cs.ContainerID
		}
		if c := rules.PodCondition(st, v1.PodReady); c.Status == v1.ConditionTrue && st.Phase != v1.PodRunning {
			t.Fatalf("pod %s: Ready and %s", name, st.Phase)
		}
	}
	for node, used := range cpu {
		if used > 4000 {
			t.Fatalf("%s: pods that want %dm CPU were admitted to 4000m", node, used)
		}
	}
	if at, ok := w.fleet.Next(); ok && at.Before(w.now) {
		t.Fatalf("something was due at %s and was not done", at)
	}
}
