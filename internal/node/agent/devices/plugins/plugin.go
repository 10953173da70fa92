package plugins

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/berth-k8s/berth/internal/node/agent/devices"
	"github.com/berth-k8s/berth/internal/node/agent/socket"
)

const (
	// connectMost is how long a plugin that registers may take to say what it wants, as with the
	// kubelet.
	connectMost = 10 * time.Second
	// allocateMost is how long a plugin may take to give devices. The kubelet waits for ever; here
	// it holds up only the pods that want its devices, and not for ever either.
	allocateMost = 2 * time.Minute
	preStartMost = api.KubeletPreStartContainerRPCTimeoutInSecs * time.Second
	// listsApart is how long after a list of a plugin its next one counts. Each may change the
	// status of the node, and of the pods that hold its devices: a plugin whose devices come and go
	// all the time must not have them written all the time.
	listsApart = time.Second
)

// plugin is one that has registered.
type plugin struct {
	resource string
	path     string // of its socket
	conn     *grpc.ClientConn
	api      api.DevicePluginClient
}

// dial connects to the socket of a plugin, and reads its options.
func dial(ctx context.Context, resource, path string) (*plugin, devices.Options, error) {
	conn, err := socket.Dial(path)
	if err != nil {
		return nil, devices.Options{}, err
	}
	p := &plugin{resource: resource, path: path, conn: conn, api: api.NewDevicePluginClient(conn)}
	ctx, cancel := context.WithTimeout(ctx, connectMost)
	defer cancel()
	options, err := p.api.GetDevicePluginOptions(ctx, &api.Empty{}, grpc.WaitForReady(true))
	if err != nil {
		_ = conn.Close()
		return nil, devices.Options{}, fmt.Errorf("failed to get device plugin options: %w", err)
	}
	return p, devices.Options{PreStart: options.GetPreStartRequired(), Preferred: options.GetGetPreferredAllocationAvailable()}, nil
}

// watch passes on the newest list of the plugin's devices, at most one per listsApart, until the
// plugin, or ctx, ends.
func (p *plugin) watch(ctx context.Context, listed func([]devices.Device)) error {
	stream, err := p.api.ListAndWatch(ctx, &api.Empty{})
	if err != nil {
		return err
	}
	newest := make(chan []devices.Device, 1)
	var passing sync.WaitGroup
	defer passing.Wait()
	defer close(newest)
	passing.Go(func() {
		for list := range newest {
			listed(list)
			select {
			case <-time.After(listsApart):
			case <-stream.Context().Done():
			}
		}
	})
	for {
		response, err := stream.Recv()
		if err != nil {
			return err
		}
		list := make([]devices.Device, 0, len(response.GetDevices()))
		for _, d := range response.GetDevices() {
			device := devices.Device{ID: d.GetID(), Healthy: d.GetHealth() == api.Healthy}
			for _, node := range d.GetTopology().GetNodes() {
				device.NUMA = append(device.NUMA, node.GetID())
			}
			list = append(list, device)
		}
		select {
		case <-newest: // it has never counted
		default:
		}
		newest <- list
	}
}

func (p *plugin) prefer(ctx context.Context, plan devices.Plan, count int) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, allocateMost)
	defer cancel()
	response, err := p.api.GetPreferredAllocation(ctx, &api.PreferredAllocationRequest{ContainerRequests: []*api.ContainerPreferredAllocationRequest{{
		AvailableDeviceIDs: slices.Concat(plan.Fixed, plan.Free), MustIncludeDeviceIDs: plan.Fixed, AllocationSize: int32(count),
	}}})
	if err != nil || len(response.GetContainerResponses()) == 0 {
		return nil, err
	}
	return response.GetContainerResponses()[0].GetDeviceIDs(), nil
}

func (p *plugin) allocate(ctx context.Context, ids []string) (devices.Grant, error) {
	ctx, cancel := context.WithTimeout(ctx, allocateMost)
	defer cancel()
	response, err := p.api.Allocate(ctx, &api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: ids}}})
	if err != nil {
		return devices.Grant{}, err
	}
	if len(response.GetContainerResponses()) == 0 {
		return devices.Grant{}, fmt.Errorf("no containers return in allocation response %v", response)
	}
	answer := response.GetContainerResponses()[0]
	grant := devices.Grant{Env: answer.GetEnvs(), Annotations: answer.GetAnnotations()}
	for _, m := range answer.GetMounts() {
		grant.Mounts = append(grant.Mounts, devices.Mount{Container: m.GetContainerPath(), Host: m.GetHostPath(), ReadOnly: m.GetReadOnly()})
	}
	for _, n := range answer.GetDevices() {
		grant.Nodes = append(grant.Nodes, devices.Node{Container: n.GetContainerPath(), Host: n.GetHostPath(), Permissions: n.GetPermissions()})
	}
	for _, d := range answer.GetCdiDevices() {
		grant.CDI = append(grant.CDI, d.GetName())
	}
	return grant, nil
}

func (p *plugin) preStart(ctx context.Context, ids []string) error {
	ctx, cancel := context.WithTimeout(ctx, preStartMost)
	defer cancel()
	_, err := p.api.PreStartContainer(ctx, &api.PreStartContainerRequest{DevicesIds: ids})
	return err
}
