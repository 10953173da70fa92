package plugins

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/node/agent/devices"
	"github.com/berth-k8s/berth/internal/node/agent/registry"
	"github.com/berth-k8s/berth/internal/node/agent/socket"
)

// Socket is the name of the node's socket, at which plugins register.
const Socket = "kubelet.sock"

// Run takes registrations and follows plugins until ctx ends.
func (m *Manager) Run(ctx context.Context) {
	m.removeSockets()
	m.mu.Lock()
	m.life = ctx
	m.mu.Unlock()
	socket.Serve(ctx, filepath.Join(m.options.Dir, Socket), func(server *grpc.Server) {
		api.RegisterRegistrationServer(server, &registration{manager: m})
	}, m.hears)
	m.mu.Lock()
	m.life = nil
	m.mu.Unlock()
	m.watching.Wait()
}

// removeSockets removes all sockets, those of plugins included: they watch the folder, see that the
// node's socket is made anew, and register again.
func (m *Manager) removeSockets() {
	entries, err := os.ReadDir(m.options.Dir)
	if err != nil {
		klog.ErrorS(err, "Cannot read the folder of device plugins")
	}
	for _, entry := range entries {
		if entry.Type()&os.ModeSocket == 0 {
			continue
		}
		if err := os.Remove(filepath.Join(m.options.Dir, entry.Name())); err != nil {
			klog.ErrorS(err, "Cannot remove an old socket of device plugins")
		}
	}
}

// registration is the service at the node's socket.
type registration struct {
	api.UnimplementedRegistrationServer
	manager *Manager
}

// Register answers a plugin after it has been connected to, so that an error reaches it.
func (r *registration) Register(ctx context.Context, request *api.RegisterRequest) (*api.Empty, error) {
	name := request.GetResourceName()
	err := r.register(ctx, request)
	if err != nil {
		klog.ErrorS(err, "Refused a device plugin", "resource", name, "endpoint", request.GetEndpoint())
	}
	return &api.Empty{}, err
}

func (r *registration) register(ctx context.Context, request *api.RegisterRequest) error {
	name, endpoint := request.GetResourceName(), request.GetEndpoint()
	switch {
	case request.GetVersion() != api.Version:
		return fmt.Errorf("requested API version %q is not supported by kubelet. Supported version is %q", request.GetVersion(), api.Version)
	case !rules.IsExtendedResource(v1.ResourceName(name)):
		return fmt.Errorf("the ResourceName %q is invalid", name)
	case endpoint == Socket || endpoint == "." || endpoint != filepath.Base(endpoint) || !filepath.IsLocal(endpoint):
		return fmt.Errorf("endpoint %q: must be the name of a socket in the folder of %s", endpoint, Socket)
	}
	return r.manager.connect(ctx, name, filepath.Join(r.manager.options.Dir, endpoint))
}

// Register takes a plugin that the plugin watcher has found.
func (m *Manager) Register(ctx context.Context, p registry.Plugin) error {
	switch {
	case !slices.Contains(p.Versions, api.Version):
		return fmt.Errorf("manager version, %s, is not among plugin supported versions %v", api.Version, p.Versions)
	case !rules.IsExtendedResource(v1.ResourceName(p.Name)):
		return fmt.Errorf("invalid name of device plugin socket: the ResourceName %q is invalid", p.Name)
	}
	return m.connect(ctx, p.Name, p.Endpoint)
}

// Deregister closes the connection to a plugin whose socket is gone.
func (m *Manager) Deregister(p registry.Plugin) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if serving := m.serving[p.Name]; serving != nil && serving.path == p.Endpoint {
		_ = serving.conn.Close() // which ends following it
	}
}

// connect has a plugin serve its resource from now on, in place of any other.
func (m *Manager) connect(ctx context.Context, name, path string) error {
	m.options.Registered(name)
	p, options, err := dial(ctx, name, path)
	if err != nil {
		return err
	}
	m.mu.Lock()
	before, life := m.serving[name], m.life
	if life == nil {
		m.mu.Unlock()
		return errors.Join(errors.New("the node takes no device plugins now"), p.conn.Close())
	}
	m.serving[name] = p
	m.ledger.Connected(name, options)
	m.watching.Go(func() {
		err := p.watch(life, func(list []devices.Device) { m.listed(p, list) })
		_ = p.conn.Close()
		if life.Err() == nil { // else the node itself goes, and its devices stay
			m.lost(p, err)
		}
	})
	m.mu.Unlock()
	if before != nil {
		_ = before.conn.Close() // which ends following it
	}
	klog.InfoS("A device plugin has registered", "resource", name, "socket", path)
	m.saveOrLog()
	return nil
}

// listed records the devices of a plugin, unless another has taken its place.
func (m *Manager) listed(p *plugin, list []devices.Device) {
	m.mu.Lock()
	if m.serving[p.resource] != p {
		m.mu.Unlock()
		return
	}
	changed := m.ledger.Listed(p.resource, list)
	holders := m.ledger.Holders(p.resource)
	m.mu.Unlock()
	if changed {
		m.options.Changed(holders)
	}
}

func (m *Manager) lost(p *plugin, err error) {
	m.mu.Lock()
	if m.serving[p.resource] != p {
		m.mu.Unlock()
		return
	}
	delete(m.serving, p.resource)
	m.ledger.Lost(p.resource, time.Now())
	holders := m.ledger.Holders(p.resource)
	m.mu.Unlock()
	klog.InfoS("A device plugin has gone away", "resource", p.resource, "err", err)
	m.options.Changed(holders)
}
