package plugins

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/berth-k8s/berth/internal/durable"
	"github.com/berth-k8s/berth/internal/node/agent/devices"
	"github.com/berth-k8s/berth/internal/node/agent/devices/plugins/fake"
	"github.com/berth-k8s/berth/internal/node/agent/registry"
)

const gpu = "example.com/gpu"

// newPlugin is one that serves a socket in the manager's folder until the test ends.
func newPlugin(t *testing.T, dir, socket string) *fake.Plugin {
	t.Helper()
	p, err := fake.New(dir, socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Stop)
	return p
}

func register(t *testing.T, p *fake.Plugin, ids ...string) {
	t.Helper()
	if err := p.Register(t.Context(), gpu, ids...); err != nil {
		t.Fatal(err)
	}
}

// newManager runs one in a folder until the test or the function that is returned ends it.
func newManager(t *testing.T, dir string) (*Manager, func()) {
	t.Helper()
	m := Open(Options{
		Dir: dir, Changed: func([]types.UID) {}, Registered: func(string) {}, Allocated: func(string, time.Duration) {},
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { m.Run(ctx); close(ended) }()
	end := sync.OnceFunc(func() { cancel(); <-ended })
	t.Cleanup(end)
	eventually(t, "plugins can register", func() bool { return fake.Heard(dir) })
	return m, end
}

func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !so(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within 30s", what)
		}
	}
}

func (m *Manager) awaits(t *testing.T, want devices.Count) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d of %d healthy", want.Healthy, want.All), func() bool { return m.Counts()[gpu] == want })
}

// folder is one whose path is short enough for sockets.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "plugins-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// podWith is one whose containers request so many devices each.
func podWith(name string, counts ...int64) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)}}
	for i, count := range counts {
		pod.Spec.Containers = append(pod.Spec.Containers, v1.Container{Name: fmt.Sprint("c", i), Resources: v1.ResourceRequirements{
			Limits: v1.ResourceList{gpu: *resource.NewQuantity(count, resource.DecimalSI)},
		}})
	}
	return pod
}

// A plugin whose devices come and go all the time is heard once a second, and the last word counts.
func TestPluginThatFlaps(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	m, end := newManager(t, folder(t))
	defer end()
	var changes atomic.Int64
	m.options.Changed = func([]types.UID) { changes.Add(1) }
	p := newPlugin(t, m.options.Dir, "gpu.sock")
	defer p.Stop()
	register(t, p, "a")
	m.awaits(t, devices.Count{All: 1, Healthy: 1})
	began, flips := time.Now(), 0
	for ; time.Since(began) < 2*time.Second; flips++ {
		p.Set(fake.Devices("a", "b"))
		time.Sleep(2 * time.Millisecond)
		p.Set(fake.Devices("a"))
		time.Sleep(2 * time.Millisecond)
	}
	p.Set(fake.Devices("a", "b", "c"))
	m.awaits(t, devices.Count{All: 3, Healthy: 3})
	if most := int64(time.Since(began)/listsApart) + 2; changes.Load() > most || flips < 10 {
		t.Errorf("%d changes in %v, want at most %d, of %d lists", changes.Load(), time.Since(began), most, 2*flips)
	}
}

// A plugin registers, its devices are the node's, and a container gets what the plugin says.
func TestDevicesOfAPlugin(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	m, end := newManager(t, folder(t))
	defer end()
	p := newPlugin(t, m.options.Dir, "gpu.sock")
	defer p.Stop()
	p.Options.PreStartRequired, p.Options.GetPreferredAllocationAvailable = true, true
	p.Prefers = []string{"b"}
	register(t, p, "a", "b")
	p.Set(append(fake.Devices("a", "b"), &api.Device{ID: "x", Health: api.Unhealthy}))
	m.awaits(t, devices.Count{All: 3, Healthy: 2})

	pod := podWith("one", 1)
	if err := m.Allocate(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	given, err := m.Start(t.Context(), pod, &pod.Spec.Containers[0])
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprintf("%+v", given); got != "{Env:map[GPUS:b] Annotations:map[example.com/used:yes] Mounts:[{Container:/lib/gpu Host:/opt/gpu ReadOnly:true}] "+
		"Nodes:[{Container:/dev/gpu0 Host:/dev/null Permissions:rw}] CDI:[example.com/gpu=b]}" {
		t.Errorf("given: %s", got)
	}
	asked := p.Asked()
	if got := fmt.Sprint(asked.Allocated, asked.Prepared, asked.Choice.AvailableDeviceIDs, asked.Choice.MustIncludeDeviceIDs, asked.Choice.AllocationSize); got != "[[b]] [[b]] [a b] [] 1" {
		t.Errorf("the plugin was asked for %s", got)
	}
	// The same again, as after a restart of the container: prepared again, and not given again.
	_, err = m.Start(t.Context(), pod, &pod.Spec.Containers[0])
	if asked := p.Asked(); err != nil || len(asked.Allocated) != 1 || len(asked.Prepared) != 2 {
		t.Errorf("a second start: %v, asked %+v", err, asked)
	}
	if err := m.Allocate(t.Context(), podWith("two", 2)); err == nil ||
		err.Error() != "requested number of devices unavailable for example.com/gpu. Requested: 2, Available: 1" {
		t.Errorf("two more: %v", err)
	}
	// All or nothing: the first container's device is free again.
	if err := m.Allocate(t.Context(), podWith("two", 1, 1)); err == nil {
		t.Error("two containers with one device")
	}
	if err := m.Allocate(t.Context(), podWith("three", 1)); err != nil {
		t.Error(err)
	}
	m.Free("uid-one")
	if err := m.Allocate(t.Context(), podWith("four", 1)); err != nil {
		t.Errorf("after one has ended: %v", err)
	}
	p.Set(fake.Devices())
	m.awaits(t, devices.Count{})
}

// What a plugin says of itself is checked, and told to it.
func TestRegistrationIsRefused(t *testing.T) {
	m, _ := newManager(t, folder(t))
	p := newPlugin(t, m.options.Dir, "gpu.sock")
	for _, c := range []struct{ version, endpoint, resource, want string }{
		{"v1alpha1", "gpu.sock", gpu, `requested API version "v1alpha1" is not supported by kubelet. Supported version is "v1beta1"`},
		{"v1beta1", "gpu.sock", "gpu", `the ResourceName "gpu" is invalid`},
		{"v1beta1", "gpu.sock", "kubernetes.io/gpu", `the ResourceName "kubernetes.io/gpu" is invalid`},
		{"v1beta1", "../gpu.sock", gpu, `endpoint "../gpu.sock": must be the name of a socket`},
		{"v1beta1", "", gpu, `endpoint "": must be the name of a socket`},
		{"v1beta1", ".", gpu, `endpoint ".": must be the name of a socket`},
		{"v1beta1", "..", gpu, `endpoint "..": must be the name of a socket`},
		{"v1beta1", Socket, gpu, `endpoint "kubelet.sock": must be the name of a socket`},
	} {
		err := p.Request(t.Context(), &api.RegisterRequest{Version: c.version, Endpoint: c.endpoint, ResourceName: c.resource})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if counts := m.Counts(); len(counts) != 0 {
		t.Errorf("it serves %v", counts)
	}
}

// A plugin that is killed: none of its devices is healthy, who holds some keeps them, and when it
// registers again everything is as before. Another may take its place while it serves.
func TestPluginComesBack(t *testing.T) {
	m, _ := newManager(t, folder(t))
	p := newPlugin(t, m.options.Dir, "gpu.sock")
	register(t, p, "a", "b")
	m.awaits(t, devices.Count{All: 2, Healthy: 2})
	pod := podWith("one", 1)
	if err := m.Allocate(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	p.Stop()
	m.awaits(t, devices.Count{All: 2, Healthy: 0})
	if health := m.Health(pod.UID, "c0"); len(health) != 1 || health[0].Resources[0].Health != v1.ResourceHealthStatusUnknown {
		t.Errorf("health: %v", health)
	}
	if err := m.Allocate(t.Context(), podWith("two", 1)); err == nil || err.Error() != "no healthy devices present; cannot allocate unhealthy devices "+gpu {
		t.Errorf("while it is away: %v", err)
	}
	if given, err := m.Start(t.Context(), pod, &pod.Spec.Containers[0]); err != nil || given.Env["GPUS"] != "a" {
		t.Errorf("its container restarts: %v (%v)", given, err)
	}
	if err := p.Serve(); err != nil {
		t.Fatal(err)
	}
	register(t, p, "a", "b")
	m.awaits(t, devices.Count{All: 2, Healthy: 2})

	other := newPlugin(t, m.options.Dir, "other.sock")
	register(t, other, "a", "b", "c")
	m.awaits(t, devices.Count{All: 3, Healthy: 3})
	p.Set(fake.Devices("a")) // of no account
	p.Stop()
	if err := m.Allocate(t.Context(), podWith("two", 2)); err != nil {
		t.Error(err)
	}
	if got := fmt.Sprint(other.Asked().Allocated); got != "[[b c]]" {
		t.Errorf("the plugin was asked for %s", got)
	}
	m.awaits(t, devices.Count{All: 3, Healthy: 3})
}

// A restart of the agent, by whatever end: old sockets are removed, plugins register again, and the
// record says who holds what.
func TestRestartOfTheAgent(t *testing.T) {
	dir := folder(t)
	m, end := newManager(t, dir)
	if !m.Fresh() {
		t.Error("a node that never had a plugin has a record")
	}
	p := newPlugin(t, dir, "gpu.sock")
	register(t, p, "a", "b")
	m.awaits(t, devices.Count{All: 2, Healthy: 2})
	one, waits := podWith("one", 1), podWith("waits", 1)
	if err := m.Allocate(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	end()
	if counts := m.Counts()[gpu]; counts.Healthy != 2 {
		t.Errorf("the end of the agent is not that of its plugins: %v", counts)
	}

	// Left over from a kill.
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, Socket)})
	if err != nil {
		t.Fatal(err)
	}
	left.SetUnlinkOnClose(false)
	left.Close()
	m, _ = newManager(t, dir)
	if m.Fresh() {
		t.Error("a record is there")
	}
	if _, err := os.Stat(filepath.Join(dir, "gpu.sock")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the plugin's old socket: %v", err)
	}
	if counts := m.Counts(); counts[gpu] != (devices.Count{}) || len(counts) != 1 {
		t.Errorf("before it has registered: %v", counts)
	}
	if _, err := m.Start(t.Context(), one, &one.Spec.Containers[0]); err == nil || !strings.Contains(err.Error(), "has not registered since") {
		t.Errorf("a start before the plugin has registered: %v", err)
	}
	if err := m.Allocate(t.Context(), one); err != nil {
		t.Errorf("a pod that holds devices already: %v", err)
	}
	p.Stop()
	if err := p.Serve(); err != nil {
		t.Fatal(err)
	}
	register(t, p, "a", "b")
	m.awaits(t, devices.Count{All: 2, Healthy: 2})
	if given, err := m.Start(t.Context(), one, &one.Spec.Containers[0]); err != nil || given.Env["GPUS"] != "a" {
		t.Errorf("given: %v (%v)", given, err)
	}
	if err := m.Allocate(t.Context(), waits); err != nil {
		t.Error(err)
	}
	if got := fmt.Sprint(p.Asked().Allocated); got != "[[a] [b]]" {
		t.Errorf("the plugin was asked for %s", got)
	}
	if got := fmt.Sprint(m.Holders()); got != "[uid-one uid-waits]" {
		t.Errorf("holders: %s", got)
	}
}

// A plugin that takes long, or for ever, keeps nobody waiting but the pods that want its devices,
// and nobody else gets what it was asked for.
func TestSlowPlugin(t *testing.T) {
	m, _ := newManager(t, folder(t))
	p := newPlugin(t, m.options.Dir, "gpu.sock")
	register(t, p, "a", "b")
	m.awaits(t, devices.Count{All: 2, Healthy: 2})
	begun := make(chan struct{})
	p.Answers(func(ctx context.Context, _ []string) (*api.ContainerAllocateResponse, error) {
		close(begun)
		<-ctx.Done()
		return nil, ctx.Err()
	})
	ctx, cancel := context.WithCancel(t.Context())
	refused := make(chan error, 1)
	go func() { refused <- m.Allocate(ctx, podWith("slow", 1)) }()
	<-begun
	p.Answers(nil)
	if err := m.Allocate(t.Context(), podWith("two", 2)); err == nil || !strings.Contains(err.Error(), "Requested: 2, Available: 1") {
		t.Errorf("two, while one is being given away: %v", err)
	}
	if err := m.Allocate(t.Context(), podWith("quick", 1)); err != nil {
		t.Errorf("one: %v", err)
	}
	cancel()
	if err := <-refused; err == nil {
		t.Error("it was given a device without an answer")
	}
	if err := m.Allocate(t.Context(), podWith("next", 1)); err != nil {
		t.Errorf("the device that was not given: %v", err)
	}
}

// A plugin's refusal is the pod's, in its words.
func TestPluginRefuses(t *testing.T) {
	m, _ := newManager(t, folder(t))
	p := newPlugin(t, m.options.Dir, "gpu.sock")
	register(t, p, "a")
	m.awaits(t, devices.Count{All: 1, Healthy: 1})
	p.Answers(func(context.Context, []string) (*api.ContainerAllocateResponse, error) {
		return nil, errors.New("it is on fire")
	})
	if err := m.Allocate(t.Context(), podWith("one", 1)); err == nil || err.Error() != "rpc error: code = Unknown desc = it is on fire" {
		t.Errorf("refused: %v", err)
	}
	late := podWith("late", 1) // one that was admitted before the plugin registered
	if _, err := m.Start(t.Context(), late, &late.Spec.Containers[0]); err == nil || !strings.Contains(err.Error(), "it is on fire") {
		t.Errorf("refused at its start: %v", err)
	}
	p.Answers(nil)
	if err := m.Allocate(t.Context(), podWith("two", 1)); err != nil {
		t.Error(err)
	}
}

// Without a record there are no devices, and a record that cannot be read is replaced.
func TestUnreadableRecord(t *testing.T) {
	dir := folder(t)
	if err := os.WriteFile(filepath.Join(dir, checkpoint), []byte("half of it"), 0o600); err != nil {
		t.Fatal(err)
	}
	m, _ := newManager(t, dir)
	if m.Fresh() || len(m.Holders()) != 0 {
		t.Errorf("fresh: %t, holders: %v", m.Fresh(), m.Holders())
	}
	if err := m.Settle(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, checkpoint))
	if err != nil || string(text) != `{"version":1,"resources":[],"holdings":[]}` {
		t.Errorf("the record: %s (%v)", text, err)
	}
}

// What cannot be recorded is not given: after a kill nobody would know.
func TestDevicesAreGivenOnlyIfThatIsRecorded(t *testing.T) {
	m, _ := newManager(t, folder(t))
	p := newPlugin(t, m.options.Dir, "gpu.sock")
	register(t, p, "a")
	m.awaits(t, devices.Count{All: 1, Healthy: 1})
	blocked := filepath.Join(m.options.Dir, durable.Unfinished+checkpoint)
	if err := os.MkdirAll(filepath.Join(blocked, "something"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := m.Allocate(t.Context(), podWith("one", 1)); err == nil || !strings.Contains(err.Error(), "failed to write checkpoint file") {
		t.Errorf("without a record: %v", err)
	}
	if err := os.RemoveAll(blocked); err != nil {
		t.Fatal(err)
	}
	if err := m.Allocate(t.Context(), podWith("two", 1)); err != nil {
		t.Error(err)
	}
}

// Where the path is too long for a socket, /healthz says so; all else goes on.
func TestPluginsCannotRegister(t *testing.T) {
	dir := filepath.Join(folder(t), strings.Repeat("long", 30))
	m := Open(Options{Dir: dir})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { m.Run(ctx); close(ended) }()
	eventually(t, "it says so", func() bool {
		return m.Check() != nil && strings.Contains(m.Check().Error(), "device plugins cannot register: listen unix")
	})
	cancel()
	<-ended
}

// A folder that cannot be made at the start, as on a full disk, is made as soon as it can be.
func TestFolderIsMadeLater(t *testing.T) {
	disk := filepath.Join(folder(t), "disk")
	if err := os.WriteFile(disk, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(disk, "device-plugins")
	m := Open(Options{Dir: dir})
	if err := os.Remove(disk); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { m.Run(ctx); close(ended) }()
	eventually(t, "plugins can register", func() bool { return fake.Heard(dir) })
	cancel()
	<-ended
}

// A plugin can be found by the plugin watcher, too; its devices go with its socket there, and what
// is no device plugin of this API is refused.
func TestPluginOfTheWatcher(t *testing.T) {
	m, _ := newManager(t, folder(t))
	elsewhere := folder(t)
	p := newPlugin(t, elsewhere, "gpu.sock")
	p.Set(fake.Devices("a", "b"))
	found := registry.Plugin{Name: gpu, Endpoint: filepath.Join(elsewhere, "gpu.sock"), Versions: []string{"v1alpha", api.Version}}
	if err := m.Register(t.Context(), found); err != nil {
		t.Fatal(err)
	}
	m.awaits(t, devices.Count{All: 2, Healthy: 2})
	other := found
	other.Endpoint = "/elsewhere"
	m.Deregister(other)
	m.Deregister(found)
	m.awaits(t, devices.Count{All: 2, Healthy: 0})
	for want, wrong := range map[string]registry.Plugin{
		"is not among plugin supported versions": {Name: gpu, Endpoint: found.Endpoint, Versions: []string{"v2"}},
		`the ResourceName "cpu" is invalid`:      {Name: "cpu", Endpoint: found.Endpoint, Versions: found.Versions},
	} {
		if err := m.Register(t.Context(), wrong); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, not %q", err, want)
		}
	}
}
