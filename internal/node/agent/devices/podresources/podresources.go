// Package podresources serves the kubelet's PodResources API (v1), by which programs on the
// machine, such as exporters of GPU metrics, learn which pod has which devices, CPUs and memory.
package podresources

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/berth-k8s/berth/internal/node/agent/devices"
	"github.com/berth-k8s/berth/internal/node/agent/lifecycle"
	"github.com/berth-k8s/berth/internal/node/agent/memory"
	"github.com/berth-k8s/berth/internal/node/agent/socket"
)

// Server answers from what the node knows at the time.
type Server struct {
	api.UnimplementedPodResourcesListerServer
	// Pods are all pods of the node, and Active those that have been admitted and have not ended.
	Pods, Active func() []*v1.Pod
	// Held are a container's devices, and Allocatable all healthy ones, by resource.
	Held        func(uid types.UID, container string) map[string][]devices.Device
	Allocatable func() map[string][]devices.Device
	// CPUs are those that a container has of its own, and AllCPUs those that containers can have.
	CPUs    func(uid types.UID, container string) []int
	AllCPUs func() []int
	// Memory is what a container has of the NUMA nodes' memory, and AllMemory what there is for
	// containers.
	Memory    func(uid types.UID, container string) []memory.Block
	AllMemory func() []memory.Block
}

// The kubelet's bounds for requests a second, and at once.
const (
	perSecond = 100
	burst     = 10
)

// Run serves at kubelet.sock in a folder, which it makes, until ctx ends.
func (s *Server) Run(ctx context.Context, dir string) {
	limiter := flowcontrol.NewTokenBucketRateLimiter(perSecond, burst)
	defer limiter.Stop()
	socket.Serve(ctx, filepath.Join(dir, "kubelet.sock"), func(server *grpc.Server) { api.RegisterPodResourcesListerServer(server, s) }, func(error) {},
		grpc.UnaryInterceptor(func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if !limiter.TryAccept() {
				return nil, status.Error(codes.ResourceExhausted, "rejected by rate limit")
			}
			return handler(ctx, request)
		}))
}

// List returns what every active pod has.
func (s *Server) List(context.Context, *api.ListPodResourcesRequest) (*api.ListPodResourcesResponse, error) {
	out := &api.ListPodResourcesResponse{}
	for _, pod := range s.Active() {
		out.PodResources = append(out.PodResources, s.of(pod))
	}
	return out, nil
}

// Get returns what one pod has.
func (s *Server) Get(_ context.Context, request *api.GetPodResourcesRequest) (*api.GetPodResourcesResponse, error) {
	for _, pod := range s.Pods() {
		if pod.Name == request.GetPodName() && pod.Namespace == request.GetPodNamespace() {
			return &api.GetPodResourcesResponse{PodResources: s.of(pod)}, nil
		}
	}
	return nil, fmt.Errorf("pod %s in namespace %s not found", request.GetPodName(), request.GetPodNamespace())
}

// GetAllocatableResources returns all healthy devices, CPUs and memory, whether a pod has them or
// not.
func (s *Server) GetAllocatableResources(context.Context, *api.AllocatableResourcesRequest) (*api.AllocatableResourcesResponse, error) {
	return &api.AllocatableResourcesResponse{Devices: described(s.Allocatable()), CpuIds: numbers(s.AllCPUs()), Memory: blocks(s.AllMemory())}, nil
}

// of is what the long-running containers of a pod have.
func (s *Server) of(pod *v1.Pod) *api.PodResources {
	out := &api.PodResources{Name: pod.Name, Namespace: pod.Namespace}
	add := func(c *v1.Container) {
		out.Containers = append(out.Containers, &api.ContainerResources{
			Name: c.Name, Devices: described(s.Held(pod.UID, c.Name)), CpuIds: numbers(s.CPUs(pod.UID, c.Name)), Memory: blocks(s.Memory(pod.UID, c.Name)),
		})
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; lifecycle.Sidecar(c) {
			add(c)
		}
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i])
	}
	return out
}

func numbers(cpus []int) (out []int64) {
	for _, cpu := range cpus {
		out = append(out, int64(cpu))
	}
	return out
}

func blocks(list []memory.Block) (out []*api.ContainerMemory) {
	for _, b := range list {
		nodes := &api.TopologyInfo{}
		for _, id := range b.NUMAAffinity {
			nodes.Nodes = append(nodes.Nodes, &api.NUMANode{ID: int64(id)})
		}
		out = append(out, &api.ContainerMemory{MemoryType: string(b.Type), Size: b.Size, Topology: nodes})
	}
	return out
}

// described has an entry per device, or one per node of memory that it is close to.
func described(held map[string][]devices.Device) (out []*api.ContainerDevices) {
	for _, name := range slices.Sorted(maps.Keys(held)) {
		for _, d := range held[name] {
			if len(d.NUMA) == 0 {
				out = append(out, &api.ContainerDevices{ResourceName: name, DeviceIds: []string{d.ID}})
			}
			for _, node := range d.NUMA {
				out = append(out, &api.ContainerDevices{
					ResourceName: name, DeviceIds: []string{d.ID}, Topology: &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: node}}},
				})
			}
		}
	}
	return out
}
