package e2eagent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	plugin "k8s.io/kubernetes/pkg/kubelet/cm/devicemanager/plugin/v1beta1"
)

const devicePod = `
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  nodeSelector: {kubernetes.io/hostname: $NODE}
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: $IMAGE
    imagePullPolicy: IfNotPresent
    command: [sh, -c, "cat /opt/device && echo $DEVICE && dd if=/dev/fake of=/tmp/zeros bs=4 count=1 2>/dev/null && wc -c < /tmp/zeros && sleep 10000"]
    resources: {limits: {example.com/resource: 1}}
`

// Upstream's own example of a device plugin, with a device node, a mount and a variable. The agent
// is killed: what runs goes on, the plugin registers again by itself, and nobody is given a device
// that another one has.
func TestDevicePlugin(t *testing.T) {
	t.Parallel()
	n := newNode(t, "devices")
	ns := n.namespace(t)
	dir := filepath.Join(n.dir, "device-plugins")
	n.startExamplePlugin(t, dir)
	n.awaitDevices(t, "2", "2")

	n.apply(t, ns, fmt.Sprintf(devicePod, "one"))
	one := n.awaitPod(t, ns, "one", "ready", ready)
	if out := n.do(t, "-n", ns, "logs", "one"); out != "of "+deviceOf(one)+"\n"+deviceOf(one)+"\n4\n" {
		t.Errorf("what the container has of its device:\n%s", out)
	}
	n.agent.kill()
	if err := n.agent.start("ready node " + n.name); err != nil {
		t.Fatal(err)
	}
	n.awaitDevices(t, "2", "2")
	n.apply(t, ns, fmt.Sprintf(devicePod, "two"))
	two := n.awaitPod(t, ns, "two", "ready", ready)
	if deviceOf(one) == deviceOf(two) {
		t.Errorf("both have %s", deviceOf(one))
	}
	if now := n.pod(t, ns, "one"); now.Status.ContainerStatuses[0].RestartCount != 0 || deviceOf(now) != deviceOf(one) {
		t.Errorf("one, after the kill: %+v", now.Status.ContainerStatuses[0])
	}
	// Put there by hand: the scheduler would not.
	n.apply(t, ns, strings.Replace(fmt.Sprintf(devicePod, "three"), "nodeSelector: {kubernetes.io/hostname: $NODE}", "nodeName: $NODE", 1))
	three := n.awaitPod(t, ns, "three", "is refused", func(pod *v1.Pod) bool { return pod.Status.Phase == v1.PodFailed })
	if three.Status.Reason != "UnexpectedAdmissionError" ||
		three.Status.Message != "Pod was rejected: Allocate failed due to requested number of devices unavailable for example.com/resource. Requested: 1, Available: 0, which is unexpected" {
		t.Errorf("three: %s: %s", three.Status.Reason, three.Status.Message)
	}
	n.do(t, "-n", ns, "delete", "pod", "one", "three")
	n.apply(t, ns, fmt.Sprintf(devicePod, "four"))
	if four := n.awaitPod(t, ns, "four", "ready", ready); deviceOf(four) != deviceOf(one) {
		t.Errorf("four has %s, and not what is free", deviceOf(four))
	}
}

// startExamplePlugin runs upstream's stub, which its sample plugin is made of, with two devices.
func (n *node) startExamplePlugin(t *testing.T, dir string) {
	t.Helper()
	ctx := context.Background()
	stub := plugin.NewDevicePluginStub(klog.Background(), []*pluginapi.Device{
		{ID: "Dev-1", Health: pluginapi.Healthy}, {ID: "Dev-2", Health: pluginapi.Healthy},
	}, filepath.Join(dir, "dp.sock"), "example.com/resource", true, false)
	files := t.TempDir()
	stub.SetAllocFunc(func(r *pluginapi.AllocateRequest, _ map[string]*pluginapi.Device) (*pluginapi.AllocateResponse, error) {
		id := r.ContainerRequests[0].DevicesIds[0]
		path := filepath.Join(files, id)
		if err := os.WriteFile(path, []byte("of "+id+"\n"), 0o644); err != nil {
			return nil, err
		}
		return &pluginapi.AllocateResponse{ContainerResponses: []*pluginapi.ContainerAllocateResponse{{
			Envs:    map[string]string{"DEVICE": id},
			Mounts:  []*pluginapi.Mount{{ContainerPath: "/opt/device", HostPath: path, ReadOnly: true}},
			Devices: []*pluginapi.DeviceSpec{{ContainerPath: "/dev/fake", HostPath: "/dev/zero", Permissions: "rw"}},
		}}}, nil
	})
	if err := stub.Start(ctx); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "kubelet.sock")
	go stub.Watch(ctx, socket, "example.com/resource", dir+"/") // ends with the process
	if err := stub.Register(ctx, socket, "example.com/resource", dir+"/"); err != nil {
		t.Fatal(err)
	}
}

func (n *node) awaitDevices(t *testing.T, capacity, allocatable string) {
	t.Helper()
	eventually(t, "the node's devices", func() error {
		node, err := n.client.CoreV1().Nodes().Get(context.Background(), n.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		all, healthy := node.Status.Capacity["example.com/resource"], node.Status.Allocatable["example.com/resource"]
		if all.String() != capacity || healthy.String() != allocatable {
			return fmt.Errorf("%s of %s", healthy.String(), all.String())
		}
		return nil
	})
}

// deviceOf is the one that the container has according to its status.
func deviceOf(pod *v1.Pod) string {
	for _, r := range pod.Status.ContainerStatuses[0].AllocatedResourcesStatus {
		for _, d := range r.Resources {
			return string(d.ResourceID)
		}
	}
	return "none"
}
