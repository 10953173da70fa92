package agent

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/berth-k8s/berth/internal/node/agent/cpus"
	"github.com/berth-k8s/berth/internal/node/agent/devices/plugins/fake"
	"github.com/berth-k8s/berth/internal/node/agent/lifecycle"
	"github.com/berth-k8s/berth/internal/node/agent/topology"
)

const gpu = "example.com/gpu"

// withPlugin has the node report its status, and a device plugin register there.
func (n *node) withPlugin(t *testing.T, ctx context.Context, ids ...string) *fake.Plugin {
	t.Helper()
	if !n.register(ctx) {
		t.Fatal("not registered")
	}
	n.pods.running.Go(func() { n.keepNode(ctx) })
	n.pods.running.Go(func() { n.devices.Run(ctx) })
	dir := filepath.Join(n.Agent.config.RootDir, "device-plugins")
	await(t, "plugins can register", func() bool { return fake.Heard(dir) })
	p, err := fake.New(dir, "gpu.sock")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Stop)
	if err := p.Register(t.Context(), gpu, ids...); err != nil {
		t.Fatal(err)
	}
	n.reports(t, len(ids), len(ids))
	return p
}

// reports waits until the API has so many devices of the node, and so many of them healthy.
func (n *node) reports(t *testing.T, all, healthy int) {
	t.Helper()
	await(t, fmt.Sprintf("the node has %d devices, %d healthy", all, healthy), func() bool {
		node, err := n.api.CoreV1().Nodes().Get(context.Background(), "node-1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		capacity, known := node.Status.Capacity[gpu]
		allocatable := node.Status.Allocatable[gpu]
		return known && capacity.Value() == int64(all) && allocatable.Value() == int64(healthy)
	})
}

// gpuPod is one whose container requests devices.
func gpuPod(name string, count int64) *v1.Pod {
	pod := boundPod(name)
	list := v1.ResourceList{gpu: *resource.NewQuantity(count, resource.DecimalSI)}
	pod.Spec.Containers[0].Resources = v1.ResourceRequirements{Requests: list, Limits: list}
	pod.Spec.Containers[0].Env = []v1.EnvVar{{Name: "OWN", Value: "1"}}
	return pod
}

func (n *node) create(t *testing.T, ctx context.Context, pod *v1.Pod) {
	t.Helper()
	pod, err := n.api.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n.podSeen(ctx, pod)
}

func (n *node) awaitStatus(t *testing.T, name, what string, so func(v1.PodStatus) bool) (status v1.PodStatus) {
	t.Helper()
	await(t, name+" "+what, func() bool {
		status = statusIn(t, n.api, name)
		return so(status)
	})
	return status
}

func running(s v1.PodStatus) bool {
	return len(s.ContainerStatuses) == 1 && s.ContainerStatuses[0].State.Running != nil
}

// What a plugin gives with a device reaches the container's runtime, and the pod's status says how
// its device is. Who comes too late is refused in the kubelet's words; who ends makes room.
func TestDevicesOfAPod(t *testing.T) {
	n, ctx := newNode(t)
	n.listed.Store(true)
	p := n.withPlugin(t, ctx, "a", "b")
	n.create(t, ctx, gpuPod("one", 2))
	status := n.awaitStatus(t, "one", "runs", running)
	if got := fmt.Sprint(status.ContainerStatuses[0].AllocatedResourcesStatus); got != "[{example.com/gpu [{a Healthy <nil>} {b Healthy <nil>}]}]" {
		t.Errorf("health in the status: %s", got)
	}
	n.runtime.mu.Lock()
	config := n.runtime.configs[0]
	n.runtime.mu.Unlock()
	var env []string
	for _, e := range config.Envs {
		env = append(env, fmt.Sprintf("%s=%s", e.Key, e.Value))
	}
	if got := fmt.Sprint(env); !strings.HasPrefix(got, "[GPUS=a,b OWN=1") {
		t.Errorf("environment: %s", got)
	}
	if !sameDevices(config) {
		t.Errorf("devices: %v %v", config.Devices, config.CDIDevices)
	}
	if m := config.Mounts[0]; m.ContainerPath != "/lib/gpu" || m.HostPath != "/opt/gpu" || !m.Readonly {
		t.Errorf("mounts: %v", config.Mounts)
	}
	if a := config.Annotations; a["example.com/used"] != "yes" || a["io.kubernetes.container.restartCount"] != "0" {
		t.Errorf("annotations: %v", a)
	}

	if got := fmt.Sprint(n.devices.Held("uid-one", "c"), n.devices.Allocatable()); got != "map[example.com/gpu:[{a true [0]} {b true [0]}]] map[example.com/gpu:[{a true [0]} {b true [0]}]]" {
		t.Errorf("who has what: %s", got)
	}

	n.create(t, ctx, gpuPod("late", 1))
	status = n.awaitStatus(t, "late", "is refused", func(s v1.PodStatus) bool { return s.Phase == v1.PodFailed })
	want := "Pod was rejected: Allocate failed due to requested number of devices unavailable for example.com/gpu. Requested: 1, Available: 0, which is unexpected"
	if status.Reason != "UnexpectedAdmissionError" || status.Message != want {
		t.Errorf("status: %s: %s", status.Reason, status.Message)
	}

	ill := fake.Devices("a", "b")
	ill[1].Health = api.Unhealthy
	p.Set(ill)
	n.reports(t, 2, 1)
	n.awaitStatus(t, "one", "has a device that is ill", func(s v1.PodStatus) bool {
		return s.ContainerStatuses[0].AllocatedResourcesStatus[0].Resources[1].Health == v1.ResourceHealthStatusUnhealthy
	})

	// It is terminating, and holds its devices until its container has ended.
	one, err := n.api.CoreV1().Pods("default").Get(ctx, "one", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	one = one.DeepCopy()
	now := metav1.Now()
	one.DeletionTimestamp, one.DeletionGracePeriodSeconds = &now, one.Spec.TerminationGracePeriodSeconds
	n.podSeen(ctx, one)
	await(t, "its devices are free", func() bool { return len(n.devices.Holders()) == 0 })
	n.create(t, ctx, gpuPod("next", 1))
	n.awaitStatus(t, "next", "runs", running)
}

func sameDevices(config *runtimeapi.ContainerConfig) bool {
	return len(config.Devices) == 1 && config.Devices[0].ContainerPath == "/dev/gpu0" && config.Devices[0].HostPath == "/dev/null" && config.Devices[0].Permissions == "rw" &&
		len(config.CDIDevices) == 1 && config.CDIDevices[0].Name == "example.com/gpu=a"
}

// A pod that is over has given back its devices when that is reported: the scheduler sends the next
// one then. Its status goes on saying how they were.
func TestDevicesAreFreeWhenTheEndIsReported(t *testing.T) {
	n, ctx := newNode(t)
	n.listed.Store(true)
	n.withPlugin(t, ctx, "a")
	pod := gpuPod("once", 1)
	if err := n.devices.Allocate(ctx, pod); err != nil {
		t.Fatal(err)
	}
	w := n.newWorker(pod, false)
	ended := v1.PodStatus{Phase: v1.PodSucceeded, ContainerStatuses: []v1.ContainerStatus{{Name: "c"}}}
	w.addDeviceHealth(pod, &ended)
	w.report(pod, lifecycle.Output{Status: ended, Done: true})
	if holders := n.devices.Holders(); len(holders) != 0 {
		t.Errorf("%v still hold devices", holders)
	}
	again := v1.PodStatus{Phase: v1.PodSucceeded, ContainerStatuses: []v1.ContainerStatus{{Name: "c"}}}
	w.addDeviceHealth(pod, &again)
	if got := fmt.Sprint(again.ContainerStatuses[0].AllocatedResourcesStatus); got != "[{example.com/gpu [{a Healthy <nil>}]}]" {
		t.Errorf("how it was: %s", got)
	}
}

// A plugin that does not answer holds up the pod that wants its devices, and no other; the pod can
// be deleted.
func TestPluginThatHangs(t *testing.T) {
	n, ctx := newNode(t)
	n.listed.Store(true)
	p := n.withPlugin(t, ctx, "a")
	asked := make(chan struct{})
	p.Answers(func(ctx context.Context, _ []string) (*api.ContainerAllocateResponse, error) {
		close(asked)
		<-ctx.Done()
		return nil, errors.New("too late")
	})
	pod := gpuPod("waits", 1)
	n.create(t, ctx, pod)
	<-asked
	n.create(t, ctx, boundPod("other"))
	n.awaitStatus(t, "other", "runs", running)
	n.podGone(pod)
	await(t, "it is gone", func() bool { return n.pods.get(pod.UID) == nil })
	if holders := n.devices.Holders(); len(holders) != 0 {
		t.Errorf("%v hold devices", holders)
	}
	if told := allEvents(n); strings.Contains(told, "UnexpectedAdmissionError") {
		t.Errorf("a pod that was deleted is refused:\n%s", told)
	}
}

// A machine that takes a node's name has none of the devices that the API knows of, until a plugin
// registers. What is written there by hand after the agent has registered stays.
func TestDevicesOfAnotherMachine(t *testing.T) {
	two := resource.MustParse("2")
	before := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}, Status: v1.NodeStatus{
		Capacity: v1.ResourceList{gpu: two}, Allocatable: v1.ResourceList{gpu: two},
	}}
	n, ctx := newNode(t, before)
	if !n.register(ctx) {
		t.Fatal("not registered")
	}
	n.reports(t, 0, 0)
	node, err := n.api.CoreV1().Nodes().Get(ctx, "node-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node = node.DeepCopy()
	node.Status.Capacity["example.com/licence"] = two
	if _, err := n.api.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	n.object.seen(node)
	if err := n.updateNode(ctx, true); err != nil {
		t.Fatal(err)
	}
	if node, err = n.api.CoreV1().Nodes().Get(ctx, "node-1", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	if have := node.Status.Allocatable["example.com/licence"]; have.Value() != 2 {
		t.Errorf("allocatable: %v", node.Status.Allocatable)
	}
}

// Devices of pods that went away while no agent ran are freed.
func TestDevicesOfAPodThatIsGone(t *testing.T) {
	n, ctx := newNode(t)
	n.listed.Store(true)
	n.withPlugin(t, ctx, "a")
	if err := n.devices.Allocate(ctx, gpuPod("gone", 1)); err != nil {
		t.Fatal(err)
	}
	n.sweep(ctx)
	if holders := n.devices.Holders(); len(holders) != 0 {
		t.Errorf("%v hold devices", holders)
	}
}

// alignedNode is a node of two NUMA nodes with four CPUs each, of which CPU 0 is reserved. The
// devices a and b are at the first one, c is at the second one. CPUs and devices have to be of one.
func alignedNode(t *testing.T) (*node, context.Context) {
	t.Helper()
	n, ctx := newNode(t)
	n.listed.Store(true)
	c := &n.Agent.config
	c.CPUPolicy, c.KubeReserved = cpus.Static, v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}
	var err error
	if c.Alignment, err = topology.NewAlignment(topology.SingleNode, topology.ContainerScope, nil); err != nil {
		t.Fatal(err)
	}
	if err := n.pinning.open(*c, fstest.MapFS{
		"cpu/online": {Data: []byte("0-7\n")}, "node/node0/cpulist": {Data: []byte("0-3\n")}, "node/node1/cpulist": {Data: []byte("4-7\n")},
	}, n.kubelet); err != nil {
		t.Fatal(err)
	}
	n.machine.cpus = 8
	n.object.node.Status.Allocatable[v1.ResourceCPU] = resource.MustParse("7")
	p := n.withPlugin(t, ctx, "a", "b", "c")
	list := fake.Devices("a", "b", "c")
	list[2].Topology = &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: 1}}}
	p.Set(list)
	await(t, "where devices are is known", func() bool { return fmt.Sprint(n.devices.Allocatable()[gpu][2].NUMA) == "[1]" })
	return n, ctx
}

// gpuAndCPUs is a pod that requests devices and CPUs of its own.
func gpuAndCPUs(name, cpu string, count int64) *v1.Pod {
	pod := sized(name, cpu, "50Mi")
	for _, list := range []v1.ResourceList{pod.Spec.Containers[0].Resources.Requests, pod.Spec.Containers[0].Resources.Limits} {
		list[gpu] = *resource.NewQuantity(count, resource.DecimalSI)
	}
	return pod
}

// heldBy are the devices of a pod.
func (n *node) heldBy(pod string) (ids string) {
	for _, d := range n.devices.Held(types.UID("uid-"+pod), "c")[gpu] {
		ids += d.ID
	}
	return ids
}

// A pod's devices are on the NUMA node on which its CPUs are, where the policy demands that; and a
// pod is refused for which no node has both.
func TestDevicesNearCPUs(t *testing.T) {
	n, ctx := alignedNode(t)
	has := func(pod, devices, on string) {
		t.Helper()
		n.awaitStatus(t, pod, "runs", running)
		if ids, got := n.heldBy(pod), n.pinning.cpusOf(types.UID("uid-"+pod), "c"); ids != devices || got != on {
			t.Errorf("%s has the devices %s and the CPUs %s", pod, ids, got)
		}
	}
	n.create(t, ctx, gpuAndCPUs("whole", "4", 1))
	has("whole", "c", "4-7")
	n.create(t, ctx, gpuAndCPUs("large", "2", 3))
	n.awaitStatus(t, "large", "is refused", func(s v1.PodStatus) bool { return s.Phase == v1.PodFailed })
	n.create(t, ctx, gpuAndCPUs("small", "2", 2))
	has("small", "ab", "1-2")
	n.podGone(gpuAndCPUs("whole", "4", 1))
	await(t, "its device is free", func() bool { return len(n.devices.Holders()) == 1 })
	n.create(t, ctx, gpuAndCPUs("apart", "1", 1))
	has("apart", "c", "4")
	n.podGone(gpuAndCPUs("small", "2", 2))
	await(t, "its devices are free", func() bool { return len(n.devices.Holders()) == 1 })
	n.create(t, ctx, gpuAndCPUs("wide", "4", 1))
	status := n.awaitStatus(t, "wide", "is refused", func(s v1.PodStatus) bool { return s.Phase == v1.PodFailed })
	if status.Reason != "TopologyAffinityError" || len(n.devices.Holders()) != 1 {
		t.Errorf("%s: %s; devices: %v", status.Reason, status.Message, n.devices.Holders())
	}
}

// While a pod's device is prepared, the CPUs beside it go to another pod: the device is chosen
// anew.
func TestDevicesAreChosenAnew(t *testing.T) {
	n, ctx := alignedNode(t)
	first, other := gpuAndCPUs("first", "3", 1), sized("other", "2", "50Mi")
	given, err := n.alignDevices(ctx, first)
	if got := n.heldBy("first"); err != nil || got != "a" {
		t.Fatalf("%s, %v", got, err)
	}
	if refused, again := n.fits(first, given); refused != nil || again {
		t.Fatalf("%v, again %t", refused, again)
	}
	if refused, err := n.pinning.assign(other, nil); refused != nil || err != nil {
		t.Fatal(refused, err)
	}
	if refused, again := n.fits(first, given); refused == nil || !again || n.heldBy("first") != "" {
		t.Errorf("%v, again %t, devices %s", refused, again, n.heldBy("first"))
	}
	given, err = n.alignDevices(ctx, first)
	if got := n.heldBy("first"); err != nil || got != "c" {
		t.Errorf("%s, %v", got, err)
	}
	if refused, again := n.fits(first, given); refused != nil || again {
		t.Errorf("%v, again %t", refused, again)
	}
}
