package probe

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const patient = 30 * time.Second

// at is where a test's server listens.
func at(t *testing.T, raw string) (host string, port int) {
	t.Helper()
	parsed, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	port, err = strconv.Atoi(parsed.Port())
	if err != nil {
		t.Fatal(err)
	}
	return parsed.Hostname(), port
}

// probeHTTP makes the probe of an action against a server.
func probeHTTP(t *testing.T, action *v1.HTTPGetAction, c *v1.Container, server string) answer {
	t.Helper()
	host, port := at(t, server)
	if action.Port == (intstr.IntOrString{}) {
		action.Port = intstr.FromInt32(int32(port))
	}
	request, err := httpRequest(context.Background(), action, c, host, "probe")
	if err != nil {
		return impossible(err)
	}
	return get(request, patient)
}

func want(t *testing.T, what string, got answer, result Result, output string) {
	t.Helper()
	if got.err != nil || got.result != result || !strings.Contains(got.output, output) {
		t.Errorf("%s: got %v %q (%v), want %v %q", what, got.result, got.output, got.err, result, output)
	}
}

func TestHTTPStatusDecides(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		code, err := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/"))
		if err != nil {
			code = http.StatusTeapot
		}
		w.WriteHeader(code)
		fmt.Fprint(w, "a body that may hold secrets")
	}))
	defer server.Close()
	for _, code := range []int{200, 204, 299, 304, 399} {
		want(t, strconv.Itoa(code), probeHTTP(t, &v1.HTTPGetAction{Path: "/" + strconv.Itoa(code)}, nil, server.URL), Success, "")
	}
	for _, code := range []int{400, 404, 500, 503} {
		got := probeHTTP(t, &v1.HTTPGetAction{Path: "/" + strconv.Itoa(code)}, nil, server.URL)
		want(t, strconv.Itoa(code), got, Failure, fmt.Sprintf("HTTP probe failed with statuscode: %d", code))
		if strings.Contains(got.output, "secrets") {
			t.Errorf("%d: the event would show the body", code)
		}
	}
}

func TestHTTPRequestIsAsThePodSays(t *testing.T) {
	seen := make(chan *http.Request, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen <- r }))
	defer server.Close()
	_, port := at(t, server.URL)
	c := &v1.Container{Ports: []v1.ContainerPort{{Name: "web", ContainerPort: int32(port)}}}

	want(t, "plain", probeHTTP(t, &v1.HTTPGetAction{Path: "/healthz?a=b", Port: intstr.FromString("web")}, c, server.URL), Success, "")
	r := <-seen
	if r.Method != "GET" || r.URL.Path != "/healthz" || r.URL.RawQuery != "a=b" || r.Header.Get("Accept") != "*/*" || !strings.HasPrefix(r.UserAgent(), "kube-probe/") || r.Header.Get("Accept-Encoding") != "" {
		t.Errorf("%s %s %v", r.Method, r.URL, r.Header)
	}

	want(t, "headers", probeHTTP(t, &v1.HTTPGetAction{Path: "x", Port: intstr.FromString(strconv.Itoa(port)), HTTPHeaders: []v1.HTTPHeader{
		{Name: "X-Twice", Value: "1"}, {Name: "X-Twice", Value: "2"}, {Name: "Host", Value: "example.org"}, {Name: "user-agent", Value: "mine"}, {Name: "Accept", Value: ""},
	}}, c, server.URL), Success, "")
	r = <-seen
	if r.URL.Path != "/x" || fmt.Sprint(r.Header["X-Twice"]) != "[1 2]" || r.Host != "example.org" || r.UserAgent() != "mine" || r.Header.Get("Accept") != "" {
		t.Errorf("%s %s %v", r.Host, r.URL, r.Header)
	}

	for wrong, action := range map[string]*v1.HTTPGetAction{
		`strconv.Atoi: parsing "none": invalid syntax`: {Port: intstr.FromString("none")},
		"invalid port number: 70000":                   {Port: intstr.FromInt32(70000)},
	} {
		if got := probeHTTP(t, action, c, server.URL); got.err == nil || got.err.Error() != wrong {
			t.Errorf("got %v, want %s", got.err, wrong)
		}
	}
}

func TestRedirectsAreFollowedOnTheSameHostOnly(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/local":
			http.Redirect(w, r, "/fails", http.StatusFound)
		case "/foreign":
			http.Redirect(w, r, "http://192.0.2.1/", http.StatusFound)
		case "/round":
			http.Redirect(w, r, "/round", http.StatusFound)
		case "/fails":
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	defer server.Close()
	want(t, "to itself", probeHTTP(t, &v1.HTTPGetAction{Path: "/local"}, nil, server.URL), Failure, "500")
	got := probeHTTP(t, &v1.HTTPGetAction{Path: "/foreign"}, nil, server.URL)
	want(t, "to another host", got, Success, "Probe terminated redirects, Response body: ")
	if !got.warning {
		t.Error("to another host: no warning")
	}
	want(t, "round and round", probeHTTP(t, &v1.HTTPGetAction{Path: "/round"}, nil, server.URL), Failure, "stopped after 10 redirects")
}

func TestHTTPSIsNotCheckedForItsName(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	want(t, "https", probeHTTP(t, &v1.HTTPGetAction{Scheme: "HTTPS"}, nil, server.URL), Success, "")
	want(t, "http", probeHTTP(t, &v1.HTTPGetAction{}, nil, server.URL), Failure, "400")
}

func TestServerThatHangsFails(t *testing.T) {
	hang := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/body" {
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
		}
		<-hang
	}))
	defer server.Close()
	defer close(hang)
	host, port := at(t, server.URL)
	for _, path := range []string{"/head", "/body"} {
		request, err := httpRequest(context.Background(), &v1.HTTPGetAction{Path: path, Port: intstr.FromInt32(int32(port))}, nil, host, "probe")
		if err != nil {
			t.Fatal(err)
		}
		want(t, path, get(request, 50*time.Millisecond), Failure, "Client.Timeout")
	}
}

func TestTCP(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port := at(t, "tcp://"+listener.Addr().String())
	want(t, "open", connect(context.Background(), "127.0.0.1", port, patient), Success, "")
	listener.Close()
	want(t, "closed", connect(context.Background(), "127.0.0.1", closedPort(t), patient), Failure, "connection refused")
}

// closedPort is one on which nobody listens, nor anybody can until the test ends: it is taken.
func closedPort(t *testing.T) int {
	t.Helper()
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(socket) })
	if err := unix.Bind(socket, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(socket)
	if err != nil {
		t.Fatal(err)
	}
	return name.(*unix.SockaddrInet4).Port
}

func TestGRPC(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port := at(t, "tcp://"+listener.Addr().String())
	server, state := grpc.NewServer(), health.NewServer()
	state.SetServingStatus("ill", healthpb.HealthCheckResponse_NOT_SERVING)
	healthpb.RegisterHealthServer(server, state)
	go func() { _ = server.Serve(listener) }()
	ask := func(service string) answer { return check(context.Background(), "127.0.0.1", port, service, patient) }
	want(t, "well", ask(""), Success, "service healthy")
	want(t, "ill", ask("ill"), Failure, `service unhealthy (responded with "NOT_SERVING")`)
	want(t, "unknown", ask("none"), Failure, "error: health rpc probe failed: rpc error: code = NotFound")
	server.Stop()
	port = closedPort(t)
	got := check(context.Background(), "127.0.0.1", port, "", 50*time.Millisecond)
	want(t, "gone", got, Failure, fmt.Sprintf(`timeout: failed to connect service "127.0.0.1:%d" within 50ms: context deadline exceeded`, port))

	bare, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port = at(t, "tcp://"+bare.Addr().String())
	without := grpc.NewServer()
	go func() { _ = without.Serve(bare) }()
	defer without.Stop()
	want(t, "without the protocol", check(context.Background(), "127.0.0.1", port, "", patient), Failure,
		"error: this server does not implement the grpc health protocol (grpc.health.v1.Health): unknown service grpc.health.v1.Health")
}

func TestHookThatSpeaksHTTPWhereHTTPSWasAskedFor(t *testing.T) {
	seen := make(chan *http.Request, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen <- r
		w.WriteHeader(http.StatusInternalServerError) // hooks do not mind
	}))
	defer server.Close()
	host, port := at(t, server.URL)
	r := newRuntime()
	pod := parsePod(t, `spec: {containers: [{name: main, lifecycle: {postStart: {httpGet: {path: /hook, scheme: HTTPS, httpHeaders: [{name: Authorization, value: secret}]}}}}]}`)
	pod.Spec.Containers[0].Lifecycle.PostStart.HTTPGet.Port = intstr.FromInt32(int32(port))
	if err := NewHooks(r.options()).PostStart(context.Background(), pod, &pod.Spec.Containers[0], "containerd://c1", host); err != nil {
		t.Fatal(err)
	}
	got := <-seen
	if got.URL.Path != "/hook" || got.Header.Get("Authorization") != "" || !strings.HasPrefix(got.UserAgent(), "kube-lifecycle/") {
		t.Errorf("%s %v", got.URL, got.Header)
	}
	if len(r.events) != 1 || !strings.Contains(r.events[0], "LifecycleHTTPFallback: request to HTTPS lifecycle hook") {
		t.Errorf("events %q", r.events)
	}
	if transport.TLSClientConfig.MinVersion > tls.VersionTLS12 {
		t.Error("servers of today would be refused")
	}
}
