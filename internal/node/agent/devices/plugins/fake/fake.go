// Package fake is a device plugin for tests, at a socket of its own.
package fake

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Plugin is one that gives whatever it is asked for. Use New.
type Plugin struct {
	api.UnimplementedDevicePluginServer
	// Options, and the devices that it prefers, are set before it registers.
	Options api.DevicePluginOptions
	Prefers []string

	dir, socket string
	server      *grpc.Server

	mu sync.Mutex
	// list is nil before there is one; changed is closed when there is another.
	list    []*api.Device
	changed chan struct{}
	answer  Answer
	asked   Asked
}

// Answer is what a plugin says to a request for devices.
type Answer func(ctx context.Context, ids []string) (*api.ContainerAllocateResponse, error)

// Asked is what a plugin was asked for: devices to give and to prepare, and the last choice.
type Asked struct {
	Allocated, Prepared [][]string
	Choice              *api.ContainerPreferredAllocationRequest
}

// New returns a plugin that serves a socket in a folder.
func New(dir, socket string) (*Plugin, error) {
	p := &Plugin{dir: dir, socket: socket, changed: make(chan struct{})}
	return p, p.Serve()
}

// Heard reports whether a node takes registrations in a folder.
func Heard(dir string) bool {
	conn, err := net.Dial("unix", filepath.Join(dir, "kubelet.sock"))
	if err == nil {
		_ = conn.Close()
	}
	return err == nil
}

// Serve has it listen, also again after Stop.
func (p *Plugin) Serve() error {
	listener, err := net.Listen("unix", filepath.Join(p.dir, p.socket))
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	p.server = server
	api.RegisterDevicePluginServer(server, p)
	go func() { _ = server.Serve(listener) }()
	return nil
}

// Stop ends it as a kill does.
func (p *Plugin) Stop() { p.server.Stop() }

// Devices are some in good health, close to the machine's first memory.
func Devices(ids ...string) []*api.Device {
	out := []*api.Device{}
	for _, id := range ids {
		out = append(out, &api.Device{ID: id, Health: api.Healthy, Topology: &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: 0}}}})
	}
	return out
}

// Set changes the list of its devices.
func (p *Plugin) Set(list []*api.Device) {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.changed)
	p.list, p.changed = list, make(chan struct{})
}

// Register tells the node that it serves a resource, with these devices.
func (p *Plugin) Register(ctx context.Context, resource string, ids ...string) error {
	p.Set(Devices(ids...))
	return p.Request(ctx, &api.RegisterRequest{Version: api.Version, Endpoint: p.socket, ResourceName: resource})
}

// Request sends the node any request for registration.
func (p *Plugin) Request(ctx context.Context, request *api.RegisterRequest) error {
	conn, err := grpc.NewClient("passthrough:///node", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(p.dir, "kubelet.sock"))
		}))
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = api.NewRegistrationClient(conn).Register(ctx, request, grpc.WaitForReady(true))
	return err
}

// Answers changes what it says to requests for devices; nil: it gives them.
func (p *Plugin) Answers(answer Answer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer = answer
}

// Asked returns what it was asked for until now.
func (p *Plugin) Asked() Asked {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked
}

// GetDevicePluginOptions implements the API.
func (p *Plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &p.Options, nil
}

// ListAndWatch implements the API.
func (p *Plugin) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	for {
		p.mu.Lock()
		list, changed := p.list, p.changed
		p.mu.Unlock()
		if list != nil {
			if err := stream.Send(&api.ListAndWatchResponse{Devices: list}); err != nil {
				return err
			}
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-changed:
		}
	}
}

// GetPreferredAllocation implements the API.
func (p *Plugin) GetPreferredAllocation(_ context.Context, r *api.PreferredAllocationRequest) (*api.PreferredAllocationResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked.Choice = r.GetContainerRequests()[0]
	return &api.PreferredAllocationResponse{ContainerResponses: []*api.ContainerPreferredAllocationResponse{{DeviceIDs: p.Prefers}}}, nil
}

// Allocate implements the API.
func (p *Plugin) Allocate(ctx context.Context, r *api.AllocateRequest) (*api.AllocateResponse, error) {
	ids := r.GetContainerRequests()[0].GetDevicesIds()
	p.mu.Lock()
	p.asked.Allocated = append(p.asked.Allocated, ids)
	answer := p.answer
	p.mu.Unlock()
	if answer == nil {
		answer = gives
	}
	response, err := answer(ctx, ids)
	if err != nil {
		return nil, err
	}
	return &api.AllocateResponse{ContainerResponses: []*api.ContainerAllocateResponse{response}}, nil
}

// gives is an answer with one thing of each kind.
func gives(_ context.Context, ids []string) (*api.ContainerAllocateResponse, error) {
	return &api.ContainerAllocateResponse{
		Envs: map[string]string{"GPUS": strings.Join(ids, ",")}, Annotations: map[string]string{"example.com/used": "yes"},
		Mounts:     []*api.Mount{{ContainerPath: "/lib/gpu", HostPath: "/opt/gpu", ReadOnly: true}},
		Devices:    []*api.DeviceSpec{{ContainerPath: "/dev/gpu0", HostPath: "/dev/null", Permissions: "rw"}},
		CdiDevices: []*api.CDIDevice{{Name: "example.com/gpu=" + ids[0]}},
	}, nil
}

// PreStartContainer implements the API.
func (p *Plugin) PreStartContainer(_ context.Context, r *api.PreStartContainerRequest) (*api.PreStartContainerResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked.Prepared = append(p.asked.Prepared, r.GetDevicesIds())
	return &api.PreStartContainerResponse{}, nil
}
