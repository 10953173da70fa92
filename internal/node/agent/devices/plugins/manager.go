package plugins

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/durable"
	"github.com/berth-k8s/berth/internal/node/agent/devices"
	"github.com/berth-k8s/berth/internal/node/agent/topology"
)

// Manager is a node's side of device plugins. Use Open.
type Manager struct {
	options Options
	// saving is held while the file is written. Take it before mu.
	saving  sync.Mutex
	written []byte // what is in the file

	mu     sync.Mutex
	ledger *devices.Ledger
	// serving are the plugins that the ledger knows as connected, by resource.
	serving map[string]*plugin
	// deaf is why plugins cannot register; nil while they can, and before they can.
	deaf error
	// fresh: there was no file. See Fresh.
	fresh bool
	// life is how long plugins are followed; nil: none is taken.
	life     context.Context
	watching sync.WaitGroup // the goroutines that follow plugins
}

// Options are what a manager needs of the node.
type Options struct {
	// Dir is the folder of the sockets, of the node's own and of the plugins'.
	Dir string
	// Changed is called when the node's devices have changed, with the pods that hold some of the
	// resource. It must not block.
	Changed func(holders []types.UID)
	// Registered and Allocated count registrations and answers of plugins.
	Registered func(resource string)
	Allocated  func(resource string, took time.Duration)
}

// checkpoint is the name of the file, in the folder of the sockets, of who holds what.
const checkpoint = "berth_checkpoint.json"

// Open reads who holds what. If that cannot be read, running pods keep devices that are given to
// others, too: only the log can tell.
func Open(o Options) *Manager {
	if err := os.MkdirAll(o.Dir, 0o750); err != nil {
		klog.ErrorS(err, "Cannot make the folder of device plugins; it is tried again")
	}
	m := &Manager{options: o, ledger: devices.New(), serving: map[string]*plugin{}}
	text, err := os.ReadFile(m.file())
	if errors.Is(err, os.ErrNotExist) {
		m.fresh = true
		return m
	}
	if err == nil {
		var ledger *devices.Ledger
		if ledger, err = devices.Restore(text, time.Now()); err == nil {
			m.ledger, m.written = ledger, text
			return m
		}
	}
	klog.ErrorS(err, "Cannot read which pods hold which devices: they may be given to others, too", "file", m.file())
	return m
}

func (m *Manager) file() string { return filepath.Join(m.options.Dir, checkpoint) }

// Fresh reports whether the node has never had a device plugin, so that what the API says of its
// devices is about another machine of the same name. It ends with Settle.
func (m *Manager) Fresh() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.fresh
}

// Settle records that the API no longer has what was said about another machine.
func (m *Manager) Settle() error {
	if err := m.save(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fresh = false
	return nil
}

// save writes who holds what, if that has changed. After a kill, the file is the old one or the
// new one.
func (m *Manager) save() error {
	m.saving.Lock()
	defer m.saving.Unlock()
	m.mu.Lock()
	text := m.ledger.Checkpoint()
	m.mu.Unlock()
	if bytes.Equal(text, m.written) {
		return nil
	}
	if err := durable.Replace(m.file(), text, 0o600); err != nil {
		return fmt.Errorf("failed to write checkpoint file %q: %w", m.file(), err)
	}
	m.written = text
	return nil
}

func (m *Manager) saveOrLog() {
	if err := m.save(); err != nil {
		klog.ErrorS(err, "Cannot record which pods hold which devices; with the next change it is tried again")
	}
}

// Counts are the node's devices by resource, as its status reports them. It does not wait for the
// disk: a resource that has expired stays in the file until that is written for another reason.
func (m *Manager) Counts() map[string]devices.Count {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ledger.Expire(time.Now())
	return m.ledger.Counts()
}

// Cover raises amounts to what pods hold.
func (m *Manager) Cover(amounts v1.ResourceList) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ledger.Cover(amounts)
}

// Health is the health of a container's devices; nil if it has none.
func (m *Manager) Health(uid types.UID, container string) []v1.ResourceStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ledger.Health(uid, container)
}

// Held are a container's devices, by resource.
func (m *Manager) Held(uid types.UID, container string) map[string][]devices.Device {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ledger.Held(uid, container)
}

// Allocatable are all healthy devices, by resource.
func (m *Manager) Allocatable() map[string][]devices.Device {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ledger.Allocatable()
}

// Holders are the pods that hold devices.
func (m *Manager) Holders() []types.UID {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ledger.Holders("")
}

// Free takes a pod's devices back: nothing of it runs, or will run.
func (m *Manager) Free(uid types.UID) {
	m.mu.Lock()
	had := m.ledger.Free(uid)
	m.mu.Unlock()
	if had {
		m.saveOrLog()
	}
}

// Wants reports whether the pod requests what plugins serve.
func (m *Manager) Wants(pod *v1.Pod) bool {
	for _, c := range inOrder(pod) {
		if len(m.wants(c)) > 0 {
			return true
		}
	}
	return false
}

func (m *Manager) wants(c *v1.Container) []devices.Want {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ledger.Wants(c)
}

// inOrder are a pod's containers in the order in which they start.
func inOrder(pod *v1.Pod) (out []*v1.Container) {
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			out = append(out, &list[i])
		}
	}
	return out
}

// Allocate gives a pod all devices that it requests, or none. What it holds already it keeps. It
// may take as long as the plugins do.
func (m *Manager) Allocate(ctx context.Context, pod *v1.Pod) error {
	for _, c := range inOrder(pod) {
		if err := m.allocate(ctx, pod, c, 0); err != nil {
			m.Free(pod.UID)
			return err
		}
	}
	if err := m.save(); err != nil {
		m.Free(pod.UID)
		return err
	}
	return nil
}

// allocate gives a container all devices that it requests, near these NUMA nodes as far as
// possible; no nodes: anywhere.
func (m *Manager) allocate(ctx context.Context, pod *v1.Pod, c *v1.Container, near topology.Nodes) error {
	for _, want := range m.wants(c) {
		if err := m.allocateOne(ctx, pod, c.Name, want, near); err != nil {
			return err
		}
	}
	return nil
}

// allocateOne gives a container what it wants of one resource. While the plugin is asked, others
// are not kept waiting.
func (m *Manager) allocateOne(ctx context.Context, pod *v1.Pod, container string, want devices.Want, near topology.Nodes) error {
	m.mu.Lock()
	has, err := m.ledger.Has(pod.UID, container, want)
	if has || err != nil {
		m.mu.Unlock()
		return err
	}
	plan, err := m.ledger.Plan(pod, container, want, near)
	p := m.serving[want.Resource]
	m.mu.Unlock()
	if err != nil {
		return err
	}
	var preferred []string
	if plan.Ask {
		if preferred, err = p.prefer(ctx, plan, want.Count); err != nil {
			return fmt.Errorf("device plugin GetPreferredAllocation rpc failed with err: %w", err)
		}
	}
	m.mu.Lock()
	ids, err := m.ledger.Reserve(pod, container, want, near, preferred)
	p = m.serving[want.Resource]
	m.mu.Unlock()
	if err != nil {
		return err
	}
	began := time.Now()
	grant, err := p.allocate(ctx, ids)
	m.options.Allocated(want.Resource, time.Since(began))
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		m.ledger.Refused(pod.UID, container, want.Resource)
		return err
	}
	if !m.ledger.Granted(pod.UID, container, want.Resource, grant) {
		return fmt.Errorf("pod %q has ended while %s was allocated", pod.UID, want.Resource)
	}
	klog.V(2).InfoS("Gave a container devices", "pod", klog.KObj(pod), "uid", pod.UID, "container", container, "resource", want.Resource, "devices", ids)
	return nil
}

// Start returns what a container gets with its devices, which plugins prepare if they want to. A
// container that has not been given its devices, because a plugin registered after its pod was
// admitted, or the record is lost, is given some.
func (m *Manager) Start(ctx context.Context, pod *v1.Pod, c *v1.Container) (devices.Grant, error) {
	wants := m.wants(c)
	if len(wants) == 0 {
		return devices.Grant{}, nil
	}
	if err := m.allocate(ctx, pod, c, 0); err != nil {
		return devices.Grant{}, err
	}
	if err := m.save(); err != nil {
		return devices.Grant{}, err
	}
	for _, want := range wants {
		m.mu.Lock()
		ids, err := m.ledger.PreStart(pod.UID, c.Name, want.Resource)
		p := m.serving[want.Resource]
		m.mu.Unlock()
		if err == nil && len(ids) > 0 {
			if err = p.preStart(ctx, ids); err != nil {
				err = fmt.Errorf("device plugin PreStartContainer rpc failed with err: %w", err)
			}
		}
		if err != nil {
			return devices.Grant{}, err
		}
	}
	m.mu.Lock()
	given, conflicts := m.ledger.Given(pod.UID, c.Name)
	m.mu.Unlock()
	for _, conflict := range conflicts {
		klog.InfoS("Device plugins disagree about a container; the first resource by name counts", "pod", klog.KObj(pod), "container", c.Name, "conflict", conflict)
	}
	return given, nil
}

// Check returns why plugins cannot register, for /healthz.
func (m *Manager) Check() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.deaf
}

func (m *Manager) hears(err error) {
	if err != nil {
		err = fmt.Errorf("device plugins cannot register: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.deaf = err
}
