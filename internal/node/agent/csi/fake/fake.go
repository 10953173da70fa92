// Package fake is a CSI driver for tests, whose volumes are folders. It is one process: the driver
// and its registrar. What it keeps is on disk, so that it can be killed and started again.
package fake

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/berth-k8s/berth/internal/node/agent/mountinfo"
)

// Driver is a driver on a node. Its fields are set before Start.
type Driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer

	// Name is the driver's.
	Name string
	// Dir is where it has its socket, the folders of its volumes, and what it was asked for.
	Dir string
	// Registry is the folder in which it registers.
	Registry string
	// Info is what it says of the node.
	Info *csi.NodeGetInfoResponse
	// Can is what it is able to do.
	Can []csi.NodeServiceCapability_RPC_Type
	// Versions are those of CSI that it supports; nil: 1.0.0.
	Versions []string

	driver, registrar *grpc.Server
	mu                sync.Mutex // guards the file of what it was asked for
}

// Start has it serve and register.
func (d *Driver) Start() error {
	if err := os.MkdirAll(d.volumes(), 0o755); err != nil {
		return err
	}
	d.driver = grpc.NewServer(grpc.UnaryInterceptor(d.intercept))
	csi.RegisterIdentityServer(d.driver, d)
	csi.RegisterNodeServer(d.driver, d)
	if err := serve(d.driver, d.socket()); err != nil {
		return err
	}
	d.registrar = grpc.NewServer()
	registration.RegisterRegistrationServer(d.registrar, &registrar{driver: d})
	return serve(d.registrar, d.registrarSocket())
}

// Stop ends it as SIGTERM does: its sockets are gone.
func (d *Driver) Stop() {
	d.registrar.Stop()
	d.driver.Stop()
}

func (d *Driver) socket() string          { return filepath.Join(d.Dir, "csi.sock") }
func (d *Driver) registrarSocket() string { return filepath.Join(d.Registry, d.Name+"-reg.sock") }
func (d *Driver) volumes() string         { return filepath.Join(d.Dir, "volumes") }

// Volume is the folder of a volume's content.
func (d *Driver) Volume(id string) string { return filepath.Join(d.volumes(), id) }

func serve(server *grpc.Server, socket string) error {
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) { // of a driver that was killed
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err == nil {
		go func() { _ = server.Serve(listener) }()
	}
	return err
}

// Asked are the calls so far, a line each: the name, then the request.
func (d *Driver) Asked(names ...string) (out []string) {
	text, _ := os.ReadFile(filepath.Join(d.Dir, "asked"))
	for line := range strings.Lines(string(text)) {
		name, _, _ := strings.Cut(line, " ")
		for _, wanted := range names {
			if name == wanted {
				out = append(out, strings.TrimSpace(line))
			}
		}
	}
	return out
}

// Obey has calls of a name answered with an error, or hang; codes.OK ends that.
func (d *Driver) Obey(name string, code codes.Code, hang bool) error {
	path := filepath.Join(d.Dir, "order-"+name)
	if code == codes.OK && !hang {
		return os.RemoveAll(path)
	}
	return os.WriteFile(path, []byte(fmt.Sprintf("%d %v", code, hang)), 0o600)
}

func (d *Driver) intercept(ctx context.Context, request any, call *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	name := call.FullMethod[strings.LastIndex(call.FullMethod, "/")+1:]
	text, err := protojson.Marshal(request.(proto.Message))
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	file, err := os.OpenFile(filepath.Join(d.Dir, "asked"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		_, _ = fmt.Fprintln(file, name, string(text))
		_ = file.Close()
	}
	d.mu.Unlock()
	if order, err := os.ReadFile(filepath.Join(d.Dir, "order-"+name)); err == nil {
		var code codes.Code
		var hang bool
		_, _ = fmt.Sscan(string(order), (*uint32)(&code), &hang)
		if hang {
			<-ctx.Done()
		}
		return nil, status.Error(code, "as ordered")
	}
	return handler(ctx, request)
}

// registrar says what the driver is, as node-driver-registrar does.
type registrar struct {
	registration.UnimplementedRegistrationServer
	driver *Driver
}

func (r *registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	versions := r.driver.Versions
	if versions == nil {
		versions = []string{"1.0.0"}
	}
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: r.driver.Name, Endpoint: r.driver.socket(), SupportedVersions: versions}, nil
}

// NotifyRegistrationStatus writes a file: empty if the driver was taken, else why not.
func (r *registrar) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	return &registration.RegistrationStatusResponse{}, os.WriteFile(filepath.Join(r.driver.Dir, "registered"), []byte(s.Error), 0o600)
}

// Registered returns why the driver was not taken; known is false before it was told.
func (d *Driver) Registered() (refused string, known bool) {
	text, err := os.ReadFile(filepath.Join(d.Dir, "registered"))
	return string(text), err == nil
}

func (d *Driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return d.Info, nil
}

func (d *Driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	out := &csi.NodeGetCapabilitiesResponse{}
	for _, kind := range d.Can {
		out.Capabilities = append(out.Capabilities, &csi.NodeServiceCapability{Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: kind}}})
	}
	return out, nil
}

func (d *Driver) NodeStageVolume(_ context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	return &csi.NodeStageVolumeResponse{}, mount(d.Volume(r.VolumeId), r.StagingTargetPath)
}

func (d *Driver) NodeUnstageVolume(_ context.Context, r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	return &csi.NodeUnstageVolumeResponse{}, unmount(r.StagingTargetPath)
}

// NodePublishVolume makes a volume that is not staged, if there is none: that is a pod's own.
func (d *Driver) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	from := r.StagingTargetPath
	if from == "" {
		from = d.Volume(r.VolumeId)
	}
	return &csi.NodePublishVolumeResponse{}, mount(from, r.TargetPath)
}

// NodeUnpublishVolume removes the content of a pod's own volume.
func (d *Driver) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if err := unmount(r.TargetPath); err != nil {
		return nil, err
	}
	if strings.HasPrefix(r.VolumeId, "csi-") {
		if err := os.RemoveAll(d.Volume(r.VolumeId)); err != nil {
			return nil, err
		}
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

func (d *Driver) NodeGetVolumeStats(_ context.Context, r *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	if _, err := os.Stat(r.VolumePath); err != nil {
		return nil, status.Error(codes.NotFound, err.Error())
	}
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{
		{Unit: csi.VolumeUsage_BYTES, Total: 1000, Used: 400, Available: 600}, {Unit: csi.VolumeUsage_INODES, Total: 10, Used: 4, Available: 6},
	}}, nil
}

func mount(from, to string) error {
	if err := os.MkdirAll(from, 0o777); err != nil {
		return err
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	if mounted, err := mountinfo.On(to); err != nil || mounted {
		return err
	}
	return unix.Mount(from, to, "", unix.MS_BIND, "")
}

func unmount(path string) error {
	mounted, err := mountinfo.On(path)
	if err == nil && mounted {
		err = unix.Unmount(path, 0)
	}
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}
