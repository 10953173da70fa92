package agentparity

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	_ "unsafe" // for go:linkname

	cadvisor "github.com/google/cadvisor/info/v1"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/utils/cpuset"
	"pgregory.net/rapid"

	"github.com/berth-k8s/berth/internal/node/agent/devices"
	"github.com/berth-k8s/berth/internal/node/agent/topology"
)

const network = v1.ResourceName("example.com/network")

// newDeviceManager is the kubelet's constructor with a folder of its own: the exported one takes
// the machine's.
//
//go:linkname newDeviceManager k8s.io/kubernetes/pkg/kubelet/cm/devicemanager.newManagerImpl
func newDeviceManager(logger klog.Logger, socket string, nodes []cadvisor.Node, store topologymanager.Store) (*devicemanager.ManagerImpl, error)

// ready is that of a kubelet that knows its pods.
type ready struct{}

func (ready) AddSource(string) {}
func (ready) AllReady() bool   { return true }

// plugin prefers the first devices by name: without that, the kubelet's choice is up to chance.
type plugin struct{ api.DevicePluginClient }

func (p plugin) API() api.DevicePluginClient { return p }
func (plugin) Resource() string              { return string(network) }
func (plugin) SocketPath() string            { return "" }

func (plugin) GetDevicePluginOptions(context.Context, *api.Empty, ...grpc.CallOption) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{GetPreferredAllocationAvailable: true}, nil
}

func (plugin) GetPreferredAllocation(_ context.Context, r *api.PreferredAllocationRequest, _ ...grpc.CallOption) (*api.PreferredAllocationResponse, error) {
	asked := r.ContainerRequests[0]
	return &api.PreferredAllocationResponse{ContainerResponses: []*api.ContainerPreferredAllocationResponse{{
		DeviceIDs: preferred(asked.MustIncludeDeviceIDs, asked.AvailableDeviceIDs, int(asked.AllocationSize)),
	}}}, nil
}

func (plugin) Allocate(context.Context, *api.AllocateRequest, ...grpc.CallOption) (*api.AllocateResponse, error) {
	return &api.AllocateResponse{ContainerResponses: []*api.ContainerAllocateResponse{{}}}, nil
}

func preferred(fixed, available []string, size int) []string {
	out := slices.Clone(fixed)
	for _, id := range slices.Sorted(slices.Values(available)) {
		if len(out) < size && !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	return out
}

// deviceDraft provides a ledger's devices, with the same preference.
type deviceDraft struct {
	*devices.Ledger
	nodes []int
}

func (d deviceDraft) Hints(pod *v1.Pod, c *v1.Container) topology.Hints {
	return d.Ledger.Hints(pod, c, d.nodes)
}

func (d deviceDraft) PodHints(pod *v1.Pod) topology.Hints { return d.Ledger.PodHints(pod, d.nodes) }

func (d deviceDraft) Assign(pod *v1.Pod, c *v1.Container, near topology.Hint) error {
	for _, want := range d.Wants(c) {
		plan, err := d.Plan(pod, c.Name, want, near.Nodes)
		if err != nil {
			return err
		}
		choice := preferred(plan.Fixed, slices.Concat(plan.Fixed, plan.Free), want.Count)
		if _, err := d.Reserve(pod, c.Name, want, near.Nodes, choice); err != nil {
			return err
		}
		d.Granted(pod.UID, c.Name, want.Resource, devices.Grant{})
	}
	return nil
}

// someDevices are made up, in both forms: near one node, near several, near one that the machine
// does not have, or nowhere in particular.
func someDevices(t *rapid.T, nodes []int) (ours []devices.Device, theirs []*api.Device) {
	somewhere := rapid.IntRange(0, 9).Draw(t, "with topology") > 0
	for i := range rapid.IntRange(1, 8).Draw(t, "devices") {
		one := devices.Device{ID: fmt.Sprint("d", i), Healthy: rapid.IntRange(0, 9).Draw(t, "healthy") > 0}
		two := &api.Device{ID: one.ID, Health: api.Unhealthy}
		if one.Healthy {
			two.Health = api.Healthy
		}
		if somewhere && rapid.IntRange(0, 5).Draw(t, "located") > 0 {
			two.Topology = &api.TopologyInfo{}
			for _, node := range rapid.SliceOfNDistinct(rapid.SampledFrom(append([]int{63}, nodes...)), 1, 2, rapid.ID[int]).Draw(t, "nodes of a device") {
				one.NUMA = append(one.NUMA, int64(node))
				two.Topology.Nodes = append(two.Topology.Nodes, &api.NUMANode{ID: int64(node)})
			}
		}
		ours, theirs = append(ours, one), append(theirs, two)
	}
	return ours, theirs
}

// aPodWithDevices requests no fewer devices for a container than for the init containers before it:
// which of those the kubelet uses again would be up to chance.
func aPodWithDevices(t *rapid.T, name string) *v1.Pod {
	pod := aPinnedPod(t, name, true)
	least := 1
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			count := rapid.IntRange(least-1, 4).Draw(t, "devices of a container")
			if count < least || list[i].Resources.Limits == nil {
				continue
			}
			list[i].Resources.Limits[network] = *resource.NewQuantity(int64(count), resource.DecimalSI)
			list[i].Resources.Requests[network] = list[i].Resources.Limits[network]
			least = count
		}
	}
	return pod
}

// addDevices adds devices of a plugin. The kubelet's side of it, which is returned, is to be
// stopped.
func (c *comparison) addDevices(t *rapid.T, dir string) *devicemanager.ManagerImpl {
	theirs, err := newDeviceManager(logger, filepath.Join(dir, "kubelet.sock"), c.nodes, c.manager)
	if err != nil {
		t.Fatal(err)
	}
	there := func() []*v1.Pod { return c.pods }
	if err := theirs.Start(logger, there, ready{}, containermap.NewContainerMap(), sets.New[string]()); err != nil {
		t.Fatal(err)
	}
	list, theirList := someDevices(t, c.machine.Nodes)
	if err := theirs.PluginConnected(context.Background(), string(network), plugin{}); err != nil {
		t.Fatal(err)
	}
	theirs.PluginListAndWatchReceiver(logger, string(network), &api.ListAndWatchResponse{Devices: theirList})
	ours := devices.New()
	ours.Connected(string(network), devices.Options{Preferred: true})
	ours.Listed(string(network), list)
	c.add(allocator{
		theirs: theirs,
		draft:  func() (topology.Provider, func()) { return deviceDraft{ours, c.machine.Nodes}, func() {} },
		remove: func(uid types.UID) {
			theirs.UpdateAllocatedDevices()
			ours.Free(uid)
		},
		diff: func() string { return cmp.Diff(theirDevices(theirs, c.pods), ourDevices(ours, c.pods)) },
	})
	return theirs
}

// Pods come and go on made-up machines: the same containers have the same devices, alone or with
// CPUs of their own, and the same pods are refused for the same reason.
func TestDevices(t *testing.T) {
	dir, err := os.MkdirTemp("", "devices") // short enough for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	compareOnMachines(t, func(t *rapid.T, c *comparison) func(string) *v1.Pod {
		if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o755)); err != nil {
			t.Fatal(err)
		}
		theirs := c.addDevices(t, dir)
		t.Cleanup(func() { _ = theirs.Stop(logger) })
		if rapid.Bool().Draw(t, "with CPUs of their own") {
			c.addCPUs(t, 1, cpuset.New(), nil)
		}
		return func(name string) *v1.Pod { return aPodWithDevices(t, name) }
	})
}

func theirDevices(m *devicemanager.ManagerImpl, pods []*v1.Pod) map[string][]string {
	return devicesOf(pods, func(pod *v1.Pod, c string) (out []string) {
		for id := range m.GetDevices(pod.Name, c)[string(network)] {
			out = append(out, id)
		}
		return out
	})
}

func ourDevices(l *devices.Ledger, pods []*v1.Pod) map[string][]string {
	return devicesOf(pods, func(pod *v1.Pod, c string) (out []string) {
		for _, d := range l.Held(pod.UID, c)[string(network)] {
			out = append(out, d.ID)
		}
		return out
	})
}

// devicesOf are the devices that containers have, by pod and container.
func devicesOf(pods []*v1.Pod, of func(pod *v1.Pod, container string) []string) map[string][]string {
	out := map[string][]string{}
	for _, pod := range pods {
		for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			if ids := of(pod, c.Name); ids != nil {
				slices.Sort(ids)
				out[pod.Name+" "+c.Name] = ids
			}
		}
	}
	return out
}
