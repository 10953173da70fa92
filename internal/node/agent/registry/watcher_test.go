package registry

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	api "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// plugin is one that registers.
type plugin struct {
	api.UnimplementedRegistrationServer
	info  *api.PluginInfo
	hang  bool
	asked atomic.Int32 // how often

	mu     sync.Mutex
	told   []*api.RegistrationStatus
	server *grpc.Server
}

func (p *plugin) GetInfo(ctx context.Context, _ *api.InfoRequest) (*api.PluginInfo, error) {
	p.asked.Add(1)
	if p.hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return p.info, nil
}

func (p *plugin) NotifyRegistrationStatus(_ context.Context, s *api.RegistrationStatus) (*api.RegistrationStatusResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.told = append(p.told, s)
	return &api.RegistrationStatusResponse{}, nil
}

// refusals that it was told of.
func (p *plugin) refusals() (out []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.told {
		if !s.GetPluginRegistered() {
			out = append(out, s.GetError())
		}
	}
	return out
}

// serve has it listen at a socket in place of what was there; stale leaves the socket when it ends.
func (p *plugin) serve(t *testing.T, socket string, stale bool) {
	t.Helper()
	if err := os.RemoveAll(socket); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(!stale)
	p.server = grpc.NewServer()
	api.RegisterRegistrationServer(p.server, p)
	go func() { _ = p.server.Serve(listener) }()
	t.Cleanup(p.server.Stop)
}

func named(name string) *plugin {
	return &plugin{info: &api.PluginInfo{Type: "Kind", Name: name, Endpoint: "/run/" + name, SupportedVersions: []string{"1"}}}
}

// users is a handler that writes down what it was called with.
type users struct {
	// hold keeps the first registration going until it is closed, whatever the context; nil: none.
	hold chan struct{}
	held sync.Once

	mu     sync.Mutex
	calls  []string
	refuse error
}

func (u *users) Register(ctx context.Context, p Plugin) error {
	late := false
	u.held.Do(func() {
		if late = u.hold != nil; late {
			<-u.hold
		}
	})
	if late {
		return ctx.Err()
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.refuse == nil {
		u.calls = append(u.calls, "+"+p.Name+" at "+p.Endpoint)
	}
	return u.refuse
}

func (u *users) Deregister(p Plugin) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.calls = append(u.calls, "-"+p.Name)
}

func (u *users) await(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		u.mu.Lock()
		got = slices.Clone(u.calls)
		u.mu.Unlock()
		if slices.Equal(got, want) {
			return
		}
	}
	t.Fatalf("calls: %q, not %q", got, want)
}

// folder for sockets; its path is short enough for them.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "registry")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// watch runs a watcher until the returned function is called, or the test ends.
func watch(t *testing.T, dir string, u *users) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { (&Watcher{Dir: dir, Handlers: map[string]Handler{"Kind": u}}).Run(ctx) })
	stop = func() { cancel(); done.Wait() }
	t.Cleanup(stop)
	return stop
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A plugin is taken when its socket is there, also in a folder of its own, and given up when it is
// gone; made anew, it is another.
func TestPluginsComeAndGo(t *testing.T) {
	t.Parallel()
	dir, u := folder(t), &users{}
	watch(t, dir, u)
	a := named("a")
	a.serve(t, filepath.Join(dir, "a.sock"), false)
	u.await(t, "+a at /run/a")
	again := named("a")
	again.info.Endpoint = ""
	again.serve(t, filepath.Join(dir, "a.sock"), false)
	u.await(t, "+a at /run/a", "-a", "+a at "+filepath.Join(dir, "a.sock"))
	again.server.Stop()
	u.await(t, "+a at /run/a", "-a", "+a at "+filepath.Join(dir, "a.sock"), "-a")
	if err := os.Mkdir(filepath.Join(dir, "below"), 0o755); err != nil {
		t.Fatal(err)
	}
	named("b").serve(t, filepath.Join(dir, "below", "b.sock"), false)
	u.await(t, "+a at /run/a", "-a", "+a at "+filepath.Join(dir, "a.sock"), "-a", "+b at /run/b")
	if got := append(a.refusals(), again.refusals()...); len(got) > 0 {
		t.Errorf("refused: %q", got)
	}
}

// A watcher that starts takes what is there; one that ends gives up nothing.
func TestWatcherIsRestarted(t *testing.T) {
	t.Parallel()
	dir, u := folder(t), &users{}
	named("a").serve(t, filepath.Join(dir, "a.sock"), false)
	stop := watch(t, dir, u)
	u.await(t, "+a at /run/a")
	stop()
	u.await(t, "+a at /run/a")
	watch(t, dir, u)
	u.await(t, "+a at /run/a", "+a at /run/a")
}

// Sockets that nobody listens at, plugins that hang, files that are no sockets, hidden ones and
// links delay nobody. A name whose holder was killed is free.
func TestOthersAreNotDelayed(t *testing.T) {
	t.Parallel()
	dir, u := folder(t), &users{}
	for i := range 10 {
		stuck := named(fmt.Sprint("stuck", i))
		stuck.hang = true
		stuck.serve(t, filepath.Join(dir, fmt.Sprintf("0%d.sock", i)), false)
		stale := named(fmt.Sprint("stale", i))
		stale.serve(t, filepath.Join(dir, fmt.Sprintf("1%d.sock", i)), true)
		stale.server.Stop()
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	elsewhere := folder(t)
	named("linked").serve(t, filepath.Join(elsewhere, "s"), false)
	if err := errors.Join(os.Symlink(filepath.Join(elsewhere, "s"), filepath.Join(dir, "link.sock")), os.Symlink(elsewhere, filepath.Join(dir, "linked"))); err != nil {
		t.Fatal(err)
	}
	named("hidden").serve(t, filepath.Join(dir, ".hidden"), false)
	first := named("a")
	first.serve(t, filepath.Join(dir, "a.sock"), true)
	began := time.Now()
	watch(t, dir, u)
	u.await(t, "+a at /run/a")
	if took := time.Since(began); took > askMost {
		t.Errorf("it took %s", took)
	}
	second := named("a")
	second.info.Endpoint = "/run/second"
	second.serve(t, filepath.Join(dir, "b.sock"), false)
	for end := time.Now().Add(30 * time.Second); len(second.refusals()) == 0 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
	}
	if got := second.refusals(); len(got) == 0 || !strings.Contains(got[0], "a plugin named a is registered already, at socket "+filepath.Join(dir, "a.sock")) {
		t.Errorf("the second of the name was told %q", got)
	}
	first.server.Stop() // its socket stays
	u.await(t, "+a at /run/a", "+a at /run/second")
	if err := os.Remove(filepath.Join(dir, "a.sock")); err != nil {
		t.Fatal(err)
	}
	named("c").serve(t, filepath.Join(dir, "c.sock"), false)
	u.await(t, "+a at /run/a", "+a at /run/second", "+c at /run/c") // the removed socket does not concern the second
}

// What a plugin says is checked, and it hears what is wrong.
func TestLies(t *testing.T) {
	t.Parallel()
	dir, u := folder(t), &users{refuse: errors.New("not wanted")}
	for name, one := range map[string]struct {
		change func(*api.PluginInfo)
		want   string
	}{
		"type":     {func(i *api.PluginInfo) { i.Type = "Other" }, "no handler registered for plugin type: Other"},
		"name":     {func(i *api.PluginInfo) { i.Name = "" }, "has no name"},
		"endpoint": {func(i *api.PluginInfo) { i.Endpoint = "../run/x" }, `endpoint "../run/x": must be an absolute path`},
		"versions": {func(i *api.PluginInfo) { i.SupportedVersions = nil }, "empty list for supported versions"},
		"handler":  {func(*api.PluginInfo) {}, "not wanted"},
	} {
		p := named(name)
		one.change(p.info)
		p.serve(t, filepath.Join(dir, name), false)
		defer func() {
			for end := time.Now().Add(30 * time.Second); len(p.refusals()) == 0 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			}
			if got := p.refusals(); len(got) == 0 || !strings.Contains(got[0], one.want) {
				t.Errorf("%s: told %q, not %q", name, got, one.want)
			}
		}()
	}
	watch(t, dir, u)
}

// Whoever can write to the folder does not make the node ask without end.
func TestSocketsAreBounded(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	for i := range mostSockets + 20 {
		listener, err := net.Listen("unix", filepath.Join(dir, fmt.Sprint(i)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = listener.Close() })
	}
	w := Watcher{Dir: dir}
	found, err := w.sockets()
	if err != nil || len(found) != mostSockets || !w.full {
		t.Errorf("%d sockets, full %t (%v)", len(found), w.full, err)
	}
	if err := os.MkdirAll(filepath.Join(dir, strings.Repeat("d/", 300)), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := w.sockets(); err != nil {
		t.Error(err)
	}
}

// A plugin that is restarted while it is being registered is not refused because of itself.
func TestRestartDuringRegistration(t *testing.T) {
	t.Parallel()
	dir, u := folder(t), &users{hold: make(chan struct{})}
	socket := filepath.Join(dir, "a.sock")
	first := named("a")
	first.serve(t, socket, false)
	watch(t, dir, u)
	await(t, "it is being registered", func() bool { return first.asked.Load() > 0 })
	first.server.Stop()
	second := named("a")
	second.info.Endpoint = "/run/second"
	second.serve(t, socket, false)
	await(t, "it is asked again", func() bool { return second.asked.Load() > 1 })
	close(u.hold)
	u.await(t, "+a at /run/second")
	if got := second.refusals(); len(got) > 0 {
		t.Errorf("refused: %q", got)
	}
}

// A plugin that was killed is given up, with what it left, if the next one of its name is refused.
func TestSuccessorIsRefused(t *testing.T) {
	t.Parallel()
	dir, u := folder(t), &users{}
	first := named("a")
	first.serve(t, filepath.Join(dir, "a.sock"), true)
	watch(t, dir, u)
	u.await(t, "+a at /run/a")
	u.mu.Lock()
	u.refuse = errors.New("not wanted")
	u.mu.Unlock()
	first.server.Stop() // its socket stays
	named("a").serve(t, filepath.Join(dir, "b.sock"), false)
	u.await(t, "+a at /run/a", "-a")
}

func await(t *testing.T, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !so(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}
