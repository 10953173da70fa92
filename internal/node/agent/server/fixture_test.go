package server

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
)

// theirs is client-go's: a WebSocket client that gives up notices at its next ping, seconds later.
var theirs = goleak.IgnoreTopFunction("k8s.io/client-go/tools/remotecommand.(*heartbeat).start")

func TestMain(m *testing.M) {
	// The library lingers for a second after a SPDY connection that was cut.
	goleak.VerifyTestMain(m, theirs, goleak.IgnoreTopFunction("github.com/moby/spdystream.(*Connection).shutdown"))
}

const nodeName = "node-1"

// policy answers what the API server is asked.
type policy struct {
	mu      sync.Mutex
	tokens  map[string]string                // to users
	allowed func(user, question string) bool // question is "get nodes/proxy"
	fault   error
	asked   []string
}

func (p *policy) questions() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.asked)
}

func (p *policy) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

func (p *policy) client() kubernetes.Interface {
	client := fake.NewClientset()
	client.PrependReactor("create", "tokenreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		review := a.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview)
		p.asked = append(p.asked, "who is "+review.Spec.Token)
		if name, ok := p.tokens[review.Spec.Token]; ok {
			review.Status.Authenticated = true
			review.Status.User = authenticationv1.UserInfo{Username: name, Groups: []string{"system:authenticated"}}
		}
		return true, review, p.fault
	})
	client.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		review := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
		asked := review.Spec.ResourceAttributes
		question := fmt.Sprintf("%s %s/%s", asked.Verb, asked.Resource, asked.Subresource)
		if asked.Name != nodeName || asked.Group != "" || asked.Namespace != "" {
			question += fmt.Sprintf(" of %+v", asked)
		}
		p.asked = append(p.asked, "may "+review.Spec.User+" "+question)
		review.Status.Allowed = p.allowed != nil && p.allowed(review.Spec.User, question)
		return true, review, p.fault
	})
	return client
}

// serving is what all servers of the tests show; keys take their time to be made.
var serving = sync.OnceValue(func() *tls.Certificate {
	return newAuthority(&testing.T{}).client(&testing.T{}, nodeName)
})

func everything(string, string) bool { return true }

// fakeRuntime has a streaming server as real ones do; what runs in its containers are functions.
type fakeRuntime struct {
	streaming.Server
	mu       sync.Mutex
	logs     map[string]string // by container
	exited   map[string]bool
	fault    error
	run      func(ctx context.Context, cmd []string, in io.Reader, out, err io.WriteCloser, resize <-chan remotecommand.TerminalSize) error
	attached func(in io.Reader, out io.WriteCloser) error
	forward  func(port int32, stream io.ReadWriteCloser) error
	asked    []string
}

func newRuntime(t testing.TB) *fakeRuntime {
	f := &fakeRuntime{logs: map[string]string{}, exited: map[string]bool{}}
	listener := httptest.NewUnstartedServer(nil)
	config := streaming.DefaultConfig
	config.BaseURL = &url.URL{Scheme: "http", Host: listener.Listener.Addr().String(), Path: "/"}
	server, err := streaming.NewServer(config, f)
	if err != nil {
		t.Fatal(err)
	}
	f.Server = server
	listener.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			t.Error("the caller's credentials were handed to the runtime")
		}
		server.ServeHTTP(w, r)
	})
	listener.Start()
	t.Cleanup(listener.Close)
	return f
}

func (f *fakeRuntime) note(what string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, what)
	return f.fault
}

func (f *fakeRuntime) questions() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.asked)
}

func (f *fakeRuntime) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

type criSide struct{ *fakeRuntime }

func (f criSide) ContainerStatus(_ context.Context, id string, _ bool) (*runtimeapi.ContainerStatusResponse, error) {
	if err := f.note("status " + id); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	state := runtimeapi.ContainerState_CONTAINER_RUNNING
	if f.exited[id] {
		state = runtimeapi.ContainerState_CONTAINER_EXITED
	}
	return &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{Id: id, State: state, LogPath: f.logs[id]}}, nil
}

func (f criSide) ListPodSandbox(_ context.Context, filter *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	uid := filter.LabelSelector["io.kubernetes.pod.uid"]
	if uid != "uid-web" || filter.GetState().GetState() != runtimeapi.PodSandboxState_SANDBOX_READY {
		return nil, f.note("no sandbox of " + uid)
	}
	return []*runtimeapi.PodSandbox{{Id: "sandbox-web"}}, f.note("sandbox of " + uid)
}

func (f criSide) Exec(_ context.Context, request *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	if err := f.note(fmt.Sprintf("exec %s %q", request.ContainerId, request.Cmd)); err != nil {
		return nil, err
	}
	return f.GetExec(request)
}

func (f criSide) Attach(_ context.Context, request *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	if err := f.note(fmt.Sprintf("attach %s tty=%t stderr=%t", request.ContainerId, request.Tty, request.Stderr)); err != nil {
		return nil, err
	}
	return f.GetAttach(request)
}

func (f criSide) PortForward(_ context.Context, request *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	if err := f.note("port-forward " + request.PodSandboxId); err != nil {
		return nil, err
	}
	return f.GetPortForward(request)
}

func (f *fakeRuntime) Exec(ctx context.Context, _ string, cmd []string, in io.Reader, out, err io.WriteCloser, _ bool, resize <-chan remotecommand.TerminalSize) error {
	return f.run(ctx, cmd, in, out, err, resize)
}

func (f *fakeRuntime) Attach(_ context.Context, _ string, in io.Reader, out, _ io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize) error {
	return f.attached(in, out)
}

func (f *fakeRuntime) PortForward(_ context.Context, _ string, port int32, stream io.ReadWriteCloser) error {
	return f.forward(port, stream)
}

// world is a server with all around it.
type world struct {
	*Server
	address   string
	policy    *policy
	authority *authority
	runtime   *fakeRuntime
	logDir    string
	stop      func()
	// connections are those that the server has open.
	connections atomic.Int64
	mu          sync.Mutex
	list        []*v1.Pod
}

func newWorld(t testing.TB, change ...func(*Options)) *world {
	w := &world{
		policy: &policy{allowed: everything, tokens: map[string]string{"good": "reader"}}, authority: newAuthority(t), runtime: newRuntime(t),
		logDir: t.TempDir(), list: []*v1.Pod{web()},
	}
	o := Options{
		NodeName: nodeName, Client: w.policy.client(), Authorities: w.authority, Certificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return serving(), nil },
		Pods: w.pods, Runtime: criSide{w.runtime}, LogDir: w.logDir,
	}
	for _, f := range change {
		f(&o)
	}
	var err error
	if w.Server, err = New(o); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) pods() []*v1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.list)
}

// serve listens until the test ends.
func (w *world) serve(t testing.TB) *world {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.address = listener.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Serve(ctx, countingListener{listener, &w.connections}) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(w.stop)
	return w
}

type countingListener struct {
	net.Listener
	open *atomic.Int64
}

func (l countingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.open.Add(1)
	return &countedConn{Conn: conn, closed: sync.OnceFunc(func() { l.open.Add(-1) })}, nil
}

type countedConn struct {
	net.Conn
	closed func()
}

func (c *countedConn) Close() error { c.closed(); return c.Conn.Close() }

// config is a client's, with a certificate, a token, or neither.
func (w *world) config(certificate *tls.Certificate, token string) *rest.Config {
	c := &rest.Config{Host: "https://" + w.address, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	if certificate != nil {
		c.CertData, c.KeyData = pemOf(certificate)
	}
	return c
}

func (w *world) url(path string) *url.URL {
	u, err := url.Parse("https://" + w.address + path)
	if err != nil {
		panic(err)
	}
	return u
}

// get asks once, on a connection of its own.
func (w *world) get(t testing.TB, certificate *tls.Certificate, token, method, path string) (int, string) {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}
	if certificate != nil {
		transport.TLSClientConfig.Certificates = []tls.Certificate{*certificate}
	}
	request, err := http.NewRequestWithContext(t.Context(), method, "https://"+w.address+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

// web has a container that runs, one with a terminal, one that waits, one that ended, and one that
// was restarted.
func web() *v1.Pod {
	runs := v1.ContainerState{Running: &v1.ContainerStateRunning{}}
	ended := func(id string) v1.ContainerState {
		return v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ContainerID: id}}
	}
	waits := func(reason string) v1.ContainerState {
		return v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reason}}
	}
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "uid-web"},
		Spec: v1.PodSpec{
			Containers:          []v1.Container{{Name: "app"}, {Name: "shell", TTY: true}, {Name: "pulling"}, {Name: "crashing"}, {Name: "restarted"}, {Name: "new"}},
			InitContainers:      []v1.Container{{Name: "init"}},
			EphemeralContainers: []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "debug"}}},
		},
		Status: v1.PodStatus{
			ContainerStatuses: []v1.ContainerStatus{
				{Name: "app", ContainerID: "containerd://c-app", State: runs},
				{Name: "shell", ContainerID: "containerd://c-shell", State: runs},
				{Name: "pulling", State: waits("ImagePullBackOff")},
				{Name: "crashing", ContainerID: "containerd://c-crashing-2", State: waits("CrashLoopBackOff"), LastTerminationState: ended("containerd://c-crashing-2")},
				{Name: "restarted", ContainerID: "containerd://c-restarted-2", State: runs, LastTerminationState: ended("containerd://c-restarted-1")},
			},
			InitContainerStatuses:      []v1.ContainerStatus{{Name: "init", ContainerID: "containerd://c-init", State: ended("containerd://c-init")}},
			EphemeralContainerStatuses: []v1.ContainerStatus{{Name: "debug", ContainerID: "containerd://c-debug", State: runs}},
		},
	}
}

// log writes a container's log.
func (w *world) log(t testing.TB, id, content string) string {
	path := filepath.Join(w.logDir, "default_web_uid-web", id, "0.log")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	w.runtime.set(func() { w.runtime.logs[id] = path })
	return path
}
