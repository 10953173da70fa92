package agent

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// sized is a pod of one container with these requests and limits: Guaranteed.
func sized(name, cpu, memory string) *v1.Pod {
	pod := boundPod(name)
	list := v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse(memory)}
	pod.Spec.Containers[0].Resources = v1.ResourceRequirements{Requests: list, Limits: list.DeepCopy()}
	return pod
}

// resized is the pod as the API has it, with other sizes.
func (n *node) resized(t *testing.T, name, cpu, memory string) *v1.Pod {
	t.Helper()
	pod, err := n.api.CoreV1().Pods("default").Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod = pod.DeepCopy()
	pod.Spec.Containers[0].Resources = sized(name, cpu, memory).Spec.Containers[0].Resources
	pod.Generation++
	if pod, err = n.api.CoreV1().Pods("default").Update(context.Background(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	return pod
}

// runs waits until the pod's container runs with this much CPU, and returns its status.
func (n *node) runs(t *testing.T, name, cpu string) (status v1.PodStatus) {
	t.Helper()
	await(t, name+" runs with "+cpu, func() bool {
		status = statusIn(t, n.api, name)
		return len(status.ContainerStatuses) == 1 && status.ContainerStatuses[0].State.Running != nil &&
			status.ContainerStatuses[0].Resources.Requests.Cpu().String() == cpu && inProgress(&status) == nil
	})
	return status
}

func pendingOf(status v1.PodStatus) string {
	for _, c := range status.Conditions {
		if c.Type == v1.PodResizePending {
			return c.Reason + ": " + c.Message
		}
	}
	return ""
}

func (n *node) groupFile(uid, file string) string {
	text, _ := os.ReadFile(filepath.Join(n.mount, "kubepods", "pod"+uid, file))
	return strings.TrimSpace(string(text))
}

// A resize that there is room for is done in place: container and pod get it, and the status says
// what they have.
func TestResizeInPlace(t *testing.T) {
	pod := sized("p", "100m", "50Mi")
	n, ctx := newNode(t, pod)
	n.listed.Store(true)
	n.podSeen(ctx, pod)
	first := n.runs(t, "p", "100m").ContainerStatuses[0].ContainerID
	n.podSeen(ctx, n.resized(t, "p", "300m", "80Mi"))
	status := n.runs(t, "p", "300m")
	if cs := status.ContainerStatuses[0]; cs.ContainerID != first || cs.RestartCount != 0 || cs.AllocatedResources.Cpu().String() != "300m" ||
		cs.Resources.Limits.Memory().String() != "80Mi" {
		t.Errorf("status: %+v", cs)
	}
	want := v1.ResourceList{v1.ResourceCPU: resource.MustParse("300m"), v1.ResourceMemory: resource.MustParse("80Mi")}
	if whole := status.Resources; whole == nil || !apiequality.Semantic.DeepEqual(whole.Requests, want) || !apiequality.Semantic.DeepEqual(whole.Limits, want) ||
		!apiequality.Semantic.DeepEqual(status.AllocatedResources, want) {
		t.Errorf("the pod as a whole has %+v of %v allocated, want %v", whole, status.AllocatedResources, want)
	}
	if len(n.runtime.updates) != 2 {
		t.Fatalf("%d updates, want one of memory and one of CPU: %v", len(n.runtime.updates), n.runtime.updates)
	}
	memory, cpu := n.runtime.updates[0].linux, n.runtime.updates[1].linux
	if memory.MemoryLimitInBytes != 80<<20 || memory.CpuQuota != 10000 || cpu.MemoryLimitInBytes != 80<<20 || cpu.CpuQuota != 30000 || cpu.CpuShares != 307 {
		t.Errorf("updates: %v, then %v", memory, cpu)
	}
	if quota, limit := n.groupFile("uid-p", "cpu.max"), n.groupFile("uid-p", "memory.max"); quota != "30000 100000" || limit != "83886080" {
		t.Errorf("the pod's cgroup: cpu.max %q, memory.max %q", quota, limit)
	}
	events := allEvents(n)
	for _, want := range []string{"Normal ResizeStarted Pod resize started: {", "Normal ResizeCompleted Pod resize completed: {"} {
		if !strings.Contains(events, want) {
			t.Errorf("no event %q in\n%s", want, events)
		}
	}
}

// What there is no room for now waits until there is, and what the node could never give is told
// apart.
func TestResizeWaitsForRoom(t *testing.T) {
	pod, other := sized("p", "500m", "50Mi"), sized("other", "1", "50Mi")
	n, ctx := newNode(t, pod, other)
	n.listed.Store(true)
	n.podSeen(ctx, pod)
	n.podSeen(ctx, other)
	n.runs(t, "p", "500m")
	n.runs(t, "other", "1")
	n.podSeen(ctx, n.resized(t, "p", "3", "50Mi"))
	await(t, "infeasible", func() bool {
		return pendingOf(statusIn(t, n.api, "p")) == "Infeasible: Node didn't have enough resource: cpu, requested: 3000, used: 0, capacity: 2000"
	})
	n.podSeen(ctx, n.resized(t, "p", "1500m", "50Mi"))
	await(t, "deferred", func() bool {
		return pendingOf(statusIn(t, n.api, "p")) == "Deferred: Node didn't have enough resource: cpu, requested: 1500, used: 1000, capacity: 2000"
	})
	if cs := n.runs(t, "p", "500m").ContainerStatuses[0]; cs.AllocatedResources.Cpu().String() != "500m" {
		t.Errorf("allocated while it waits: %v", cs.AllocatedResources)
	}
	if events := allEvents(n); !strings.Contains(events, "Warning ResizeInfeasible Pod resize Infeasible: {") || !strings.Contains(events, "Warning ResizeDeferred Pod resize Deferred: {") {
		t.Errorf("events:\n%s", events)
	}
	n.podSeen(ctx, n.resized(t, "other", "500m", "50Mi"))
	n.runs(t, "other", "500m")
	if pending := pendingOf(n.runs(t, "p", "1500m")); pending != "" {
		t.Errorf("still pending: %s", pending)
	}
}

// An agent that is started again knows what the one before it granted, and neither does nor undoes
// it again.
func TestResizeOutlivesTheAgent(t *testing.T) {
	pod, other := sized("p", "500m", "50Mi"), sized("other", "1", "50Mi")
	n, ctx := newNode(t, pod, other)
	n.listed.Store(true)
	n.podSeen(ctx, pod)
	n.podSeen(ctx, other)
	n.runs(t, "p", "500m")
	n.runs(t, "other", "1")
	n.podSeen(ctx, n.resized(t, "p", "600m", "50Mi"))
	n.runs(t, "p", "600m")
	n.podSeen(ctx, n.resized(t, "p", "1500m", "50Mi"))
	await(t, "deferred", func() bool { return strings.HasPrefix(pendingOf(statusIn(t, n.api, "p")), "Deferred") })

	next, ctx := newNode(t)
	next.Agent.runtime.Runtime, next.Agent.client = n.runtime, n.api
	next.Agent.statuses.client = n.api
	next.api = n.api
	for _, name := range []string{"p", "other"} {
		pod, err := n.api.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		next.podSeen(ctx, pod)
	}
	updates := len(n.runtime.updates)
	next.apiListed()
	next.filesKnown.Store(true)
	next.allListed()
	await(t, "deferred, as before", func() bool {
		w := next.pods.get("uid-p")
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.pending != nil && w.reported != nil
	})
	status := next.runs(t, "p", "600m")
	if cs := status.ContainerStatuses[0]; cs.AllocatedResources.Cpu().String() != "600m" || cs.RestartCount != 0 || len(n.runtime.updates) != updates {
		t.Errorf("status %+v, %d updates more", cs, len(n.runtime.updates)-updates)
	}
}

// A container that has to be started again for another size is, whatever the pod's restart policy.
func TestResizeByRestart(t *testing.T) {
	pod := sized("p", "100m", "50Mi")
	pod.Spec.RestartPolicy = v1.RestartPolicyOnFailure
	pod.Spec.Containers[0].ResizePolicy = []v1.ContainerResizePolicy{{ResourceName: v1.ResourceCPU, RestartPolicy: v1.RestartContainer}}
	n, ctx := newNode(t, pod)
	n.listed.Store(true)
	n.podSeen(ctx, pod)
	first := n.runs(t, "p", "100m").ContainerStatuses[0].ContainerID
	n.podSeen(ctx, n.resized(t, "p", "200m", "50Mi"))
	if cs := n.runs(t, "p", "200m").ContainerStatuses[0]; cs.ContainerID == first || cs.RestartCount != 1 {
		t.Errorf("status: %+v", cs)
	}
	if len(n.runtime.updates) != 0 {
		t.Errorf("updated in place, too: %v", n.runtime.updates)
	}
}

// A limit of memory below what is used would have the kernel kill the container: it is refused, and
// told.
func TestResizeBelowUsageIsRefused(t *testing.T) {
	pod := sized("p", "100m", "50Mi")
	n, ctx := newNode(t, pod)
	n.listed.Store(true)
	n.podSeen(ctx, pod)
	n.runs(t, "p", "100m")
	for file, text := range map[string]string{"cpu.stat": "usage_usec 1", "memory.stat": "anon 1", "memory.current": "41943040", "pids.current": "1"} {
		if err := os.WriteFile(filepath.Join(n.mount, "kubepods", "poduid-p", file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	n.podSeen(ctx, n.resized(t, "p", "100m", "30Mi"))
	await(t, "an error in the status", func() bool {
		status := statusIn(t, n.api, "p")
		c := inProgress(&status)
		return c != nil && c.Reason == v1.PodReasonError &&
			strings.Contains(c.Message, "cannot decrease memory limits: attempting to set pod memory limit (31457280) below current usage (41943040)")
	})
	if len(n.runtime.updates) != 0 {
		t.Errorf("updated: %v", n.runtime.updates)
	}
}

// What a deferred resize is to add, and the pod did not have, was not granted by the agent before:
// it is not taken for granted now.
func TestAllocationBeforeHasNothingMore(t *testing.T) {
	pod := sized("p", "100m", "50Mi")
	had := v1.ResourceList{v1.ResourceCPU: resource.MustParse("100m")}
	pod.Status.ContainerStatuses = []v1.ContainerStatus{{
		Name: "c", AllocatedResources: had, Resources: &v1.ResourceRequirements{Requests: had, Limits: had},
	}}
	before := allocatedBefore(pod)
	if c := before["c"]; len(c.Requests) != 1 || len(c.Limits) != 1 || before.grants(pod) {
		t.Errorf("granted before: %v", c)
	}
	if !allocated(pod).grants(pod) {
		t.Error("the pod's own lists were changed")
	}
}
