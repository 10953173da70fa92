// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package guard_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	kuberuntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"github.com/berth-k8s/berth/examples/extender/datasets"
	"github.com/berth-k8s/berth/internal/admission/webhook"
	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/inspect/snapshot/apitest"
	"github.com/berth-k8s/berth/internal/kube/guard"
	"github.com/berth-k8s/berth/internal/kube/serve"
	"github.com/berth-k8s/berth/internal/ui"
	"github.com/berth-k8s/berth/internal/up/relay"
)

// port is a listening port of a Berth process.
type port struct {
	name   string
	opened string // file that opens the port
	secure bool   // the port uses HTTPS
	at     string
	// known is a path for authorized clients, and unknown a path for unauthenticated clients; "" if
	// there is none.
	known, unknown string
	post           string // a path that accepts bodies
	stream         string // a path with an endless response; "" if there is none
	// strangers is the maximum number of unadmitted connections of one source, and admitted the
	// maximum number of admitted connections; 0 if they are not bounded.
	strangers, admitted int
	want                int // expected status of a permitted request; 0 means 200

	open []net.Conn // connections of the flood
}

const good = "good-token-of-24-characters"

// TestEveryPortStandsAFlood verifies that during an attack by one source on a port, clients of all
// sources are still served in time. The connections and the memory held by the attacker must be
// bounded, and released when it disconnects.
func TestEveryPortStandsAFlood(t *testing.T) {
	ports := everyPort(t)
	theyAreAll(t, ports)
	// Another source opens connections that stall in a header. The floods do not displace them, so
	// the server must close them when the time for headers is over.
	patient := make([]net.Conn, len(ports))
	for i, p := range ports {
		patient[i] = p.connect(t, "127.0.0.4", "GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: a")
	}
	began := time.Now()
	idle, heap := runtime.NumGoroutine(), heapInUse()
	for _, f := range floods() {
		t.Run(f.name, func(t *testing.T) {
			var all sync.WaitGroup
			for _, p := range ports {
				all.Go(func() { p.flood(t, f) })
			}
			all.Wait()
			if grown := heapInUse() - heap; grown > 128<<20 {
				t.Errorf("%d MiB are held, by servers and clients", grown>>20)
			}
			for _, p := range ports {
				p.letGo()
			}
		})
	}
	for i, p := range ports {
		if !closed(patient[i], max(time.Until(began.Add(headersWithin)), 0)+2*time.Second) {
			t.Errorf("%s: a header that does not end is waited for longer than %v", p.name, headersWithin)
		}
	}
	for end := time.Now().Add(within); runtime.NumGoroutine() > idle+20; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Errorf("%d goroutines before the floods and %d after", idle, runtime.NumGoroutine())
			break
		}
	}
	for _, p := range ports {
		if p.unknown != "" {
			p.asks(t, "afterwards, the same source", "127.0.0.1", p.unknown, "")
		}
		if p.known != "" {
			if said := p.asks(t, "afterwards, one who is known", "127.0.0.2", p.known, good); said != p.wants() {
				t.Errorf("%s: afterwards, one who is known is told %d", p.name, said)
			}
		}
	}
}

const (
	// within is the maximum response time for a client, on a machine with other load.
	within = 10 * time.Second
	// headersWithin exceeds the maximum time for headers on any port.
	headersWithin = 13 * time.Second
	// beyond is the number of connections opened by a flood in excess of a port's bound.
	beyond = 24
)

// flood is an attack with many simultaneous connections from one source.
type flood struct {
	name string
	// words returns the bytes that connection i sends before it falls silent. It returns false if
	// the attack does not apply to the port.
	words func(p *port, i int) (string, bool)
	known bool // the attacker is an authorized client
	raw   bool // the bytes are sent without TLS
}

func floods() []flood {
	always := func(words string) func(*port, int) (string, bool) {
		return func(*port, int) (string, bool) { return words, true }
	}
	large := "GET / HTTP/1.1\r\nHost: localhost\r\nX-Large: " + strings.Repeat("x", 600<<10)
	return []flood{
		{name: "connections that say nothing", words: always(""), raw: true},
		{name: "handshakes that do not end", raw: true, words: func(p *port, _ int) (string, bool) { return "\x16\x03\x01\x02", p.secure }},
		{name: "headers that do not end", words: always("GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: a")},
		{name: "large headers", words: always(large)},
		{name: "bodies that do not come", words: func(p *port, _ int) (string, bool) {
			return "POST " + p.post + " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n{", true
		}},
		{name: "answers that nobody takes", words: func(p *port, _ int) (string, bool) {
			return strings.Repeat("GET "+p.unknown+" HTTP/1.1\r\nHost: localhost\r\n\r\n", 200), true
		}},
		{name: "tokens that are nobody's", words: func(p *port, i int) (string, bool) {
			return fmt.Sprintf("GET %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer made-up-%d\r\n\r\n", p.known, i), p.known != ""
		}},
		{name: "streams", words: func(p *port, _ int) (string, bool) {
			return "GET " + p.stream + " HTTP/1.1\r\nHost: localhost\r\n\r\n", p.stream != ""
		}},
		{name: "answers that nobody takes, to one who is let in", known: true, words: func(p *port, _ int) (string, bool) {
			path := p.known
			if p.stream != "" {
				path = p.stream
			}
			return strings.Repeat("GET "+path+" HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "+good+"\r\n\r\n", 20), p.admitted > 0
		}},
	}
}

// flood runs one attack, and checks that clients are served during it.
func (p *port) flood(t *testing.T, f flood) {
	if _, concerned := f.words(p, 0); !concerned {
		return
	}
	most := p.strangers
	if f.known {
		most = p.admitted
	}
	several := max(most, 64) + beyond
	for i := range several {
		words, _ := f.words(p, i)
		if f.raw {
			p.open = append(p.open, dial(t, p.at, "127.0.0.1"))
			_, _ = io.WriteString(p.open[i], words)
		} else {
			p.open = append(p.open, p.connect(t, "127.0.0.1", words))
		}
	}
	if p.unknown != "" {
		p.asks(t, "somebody else", "127.0.0.3", p.unknown, "")
		p.asks(t, "the same source", "127.0.0.1", p.unknown, "")
	}
	if p.known != "" {
		said := p.asks(t, "one who is known", "127.0.0.2", p.known, good)
		if f.known && said == http.StatusServiceUnavailable {
			said = p.wants() // the maximum number of admitted connections is reached, so further clients are refused immediately
		}
		if said != p.wants() {
			t.Errorf("%s: one who is known is told %d", p.name, said)
		}
	}
	if most == 0 {
		return
	}
	var gone atomic.Int64
	for _, c := range p.open {
		go func() {
			_, _ = io.Copy(io.Discard, c)
			gone.Add(1)
		}()
	}
	for end := time.Now().Add(within); several-int(gone.Load()) > most; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Errorf("%s: of %d connections %d are held, want no more than %d", p.name, several, several-int(gone.Load()), most)
			return
		}
	}
}

// letGo closes the connections of the flood.
func (p *port) letGo() {
	for _, c := range p.open {
		_ = c.Close()
	}
	p.open = nil
}

func (p *port) wants() int {
	if p.want != 0 {
		return p.want
	}
	return http.StatusOK
}

// asks sends a request and returns the status of the response, which must arrive within the limit.
func (p *port) asks(t *testing.T, who, from, path, token string) int {
	local := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	client := &http.Client{Timeout: within, Transport: &http.Transport{
		DialContext: local.DialContext, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	method, body := http.MethodGet, ""
	if path == p.post {
		method, body = http.MethodPost, "{}"
	}
	scheme := "http"
	if p.secure {
		scheme = "https"
	}
	request, err := http.NewRequest(method, scheme+"://"+p.at+path, strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return 0
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := client.Do(request)
	if err != nil {
		t.Errorf("%s: %s: %v", p.name, who, err)
		return 0
	}
	defer response.Body.Close()
	if token == "" && response.StatusCode != p.wants() {
		t.Errorf("%s: %s: %s", p.name, who, response.Status)
	}
	return response.StatusCode
}

// connect opens a connection, with TLS if the port uses it, and sends the words. Write errors are
// ignored, because the server may close the connection.
func (p *port) connect(t *testing.T, from, words string) net.Conn {
	conn := dial(t, p.at, from)
	if !p.secure {
		_, _ = io.WriteString(conn, words)
		return conn
	}
	_ = conn.SetDeadline(time.Now().Add(within))
	_, _ = io.WriteString(tls.Client(conn, &tls.Config{InsecureSkipVerify: true}), words)
	_ = conn.SetDeadline(time.Time{})
	return conn
}

func dial(t *testing.T, address, from string) net.Conn {
	local := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: within}
	conn, err := local.Dial("tcp", address)
	if err != nil {
		t.Error(err)
		conn, _ = net.Pipe()
	}
	_ = conn.SetWriteDeadline(time.Now().Add(within))
	return conn
}

// closed reports whether the server closes the connection within the limit.
func closed(conn net.Conn, limit time.Duration) bool {
	_ = conn.SetReadDeadline(time.Now().Add(limit))
	_, err := io.Copy(io.Discard, conn)
	return !errors.Is(err, os.ErrDeadlineExceeded)
}

func heapInUse() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int(m.HeapInuse)
}

// everyPort opens all ports of Berth's processes within the test process, on loopback addresses.
func everyPort(t *testing.T) []*port {
	who := apiServerThatKnows(good)
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	running := func(run func(ctx context.Context)) {
		ctx, stop := context.WithCancel(context.Background())
		var ended sync.WaitGroup
		ended.Go(func() { run(ctx) })
		t.Cleanup(func() { stop(); ended.Wait() })
	}
	few := guard.Ports
	var all []*port
	add := func(p port) { all = append(all, &p) }

	// These are the ports of the scheduler, and of components with the same endpoints.
	free := listen()
	options := serve.Defaults(free.Addr().(*net.TCPAddr).Port)
	_ = free.Close()
	options.BindAddress, options.Plain = "127.0.0.1", "127.0.0.1:0"
	endpoints, err := serve.Listen(options)
	if err != nil {
		t.Fatal(err)
	}
	handler := (&serve.Endpoints{Component: "berth", Profiling: true}).Handler()
	running(func(ctx context.Context) { endpoints.Run(ctx, serve.Handlers{Secure: handler, Plain: handler}, who) })
	urls := endpoints.URLs()
	add(port{name: "scheduler, 10259", opened: "internal/kube/serve/listen.go", secure: true, at: strings.TrimPrefix(urls[0], "https://"),
		known: "/metrics", unknown: "/livez", post: "/debug/pprof/symbol", strangers: few.PerSource, admitted: few.Admitted})
	add(port{name: "controller, 10357, and --health-bind-address of the scheduler", opened: "internal/kube/serve/listen.go", at: strings.TrimPrefix(urls[1], "http://"),
		unknown: "/livez", post: "/other", strangers: few.PerSource})

	// The webhook.
	api := httptest.NewServer(emptyAPI{})
	t.Cleanup(func() { api.CloseClientConnections(); api.Close() })
	asked := webhook.DefaultOptions()
	asked.Address, asked.Health, asked.ShutdownDelay = "127.0.0.1:0", "127.0.0.1:0", 0
	hook, err := webhook.New(&rest.Config{Host: api.URL, QPS: -1}, asked)
	if err != nil {
		t.Fatal(err)
	}
	running(func(ctx context.Context) { _ = hook.Run(ctx) })
	select {
	case <-hook.Ready():
	case <-time.After(time.Minute):
		t.Fatal("the webhook does not become ready: " + hook.NotReady())
	}
	add(port{name: "webhook, 9443", opened: "internal/admission/webhook/webhook.go", secure: true, at: hook.Address(),
		unknown: "/mutate", post: "/mutate", want: http.StatusBadRequest, strangers: few.PerSource})
	add(port{name: "webhook, 10360", opened: "internal/admission/webhook/webhook.go", at: hook.HealthAddress(), unknown: "/livez", post: "/other", strangers: few.PerSource})

	// The dashboard.
	cluster := apitest.New(t)
	cluster.Refuse("events", http.StatusForbidden)
	page, err := ui.Listen(cluster.Config, ui.Options{
		Address: "127.0.0.1:0", Token: good,
		Running: func(context.Context, []*coordinationv1.Lease, time.Time) (*config.Running, error) {
			return &config.Running{}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	running(func(ctx context.Context) { _ = page.Run(ctx) })
	at := strings.Split(strings.TrimPrefix(page.URL(), "http://"), "/")[0]
	add(port{name: "dashboard, 8422", opened: "internal/ui/server.go", at: at, unknown: "/style.css", known: "/api/about", post: "/berth.v1alpha1.QueryService/WhatIf", stream: "/api/stream",
		strangers: few.PerSource, admitted: 264})

	// Pods reach the API server of `berth up --agent` through this port.
	behind := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") }))
	behind.Config.ReadHeaderTimeout = 12 * time.Second // longer than a flood is observed
	behind.Start()
	t.Cleanup(behind.Close)
	entrance := listen()
	go relay.Serve(entrance, func() (string, error) { return behind.Listener.Addr().String(), nil })
	add(port{name: "berth up --agent, for pods", opened: "internal/up/localcluster/relay.go", at: entrance.Addr().String(), unknown: "/", post: "/other", strangers: few.PerSource})

	// The example of an extender does not bound its connections.
	example := listen()
	go func() { _ = datasets.Inventory{}.Serve(example) }()
	add(port{name: "example of an extender, 8888", opened: "examples/extender/main.go", at: example.Addr().String(), unknown: "/filter", post: "/filter", want: http.StatusBadRequest})
	return all
}

// theyAreAll checks that everyPort contains every port opened in the source code.
func theyAreAll(t *testing.T, ports []*port) {
	others := map[string]string{
		"internal/up/localcluster/run.go": "closed at once: it shows whether a port that was named is free",
		"controlplane/port.go":            "of the API server and etcd, which are upstream's, on loopback, with certificates",
	}
	root := filepath.Join("..", "..", "..")
	for _, room := range []string{"cmd", "internal", "scheduler", "controlplane", "examples"} {
		err := filepath.WalkDir(filepath.Join(root, room), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			name, _ := filepath.Rel(root, path)
			for _, opens := range []string{"net.Listen(", "net.ListenTCP(", "ListenConfig{", "ListenAndServe", "tls.Listen("} {
				if strings.Contains(string(text), opens) && others[name] == "" && !slices.ContainsFunc(ports, func(p *port) bool { return p.opened == name }) {
					t.Errorf("%s has %q: who floods that port?", name, opens)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// apiServerThatKnows returns an API server that accepts only the token, as that of a user with all
// permissions.
func apiServerThatKnows(token string) kubernetes.Interface {
	client := &fake.Clientset{}
	client.AddReactor("create", "*", func(action clienttesting.Action) (bool, kuberuntime.Object, error) {
		switch review := action.(clienttesting.CreateAction).GetObject().DeepCopyObject().(type) {
		case *authenticationv1.TokenReview:
			review.Status.Authenticated = review.Spec.Token == token
			review.Status.User = authenticationv1.UserInfo{Username: "reader", Groups: []string{"system:authenticated"}}
			return true, review, nil
		case *authorizationv1.SubjectAccessReview:
			review.Status.Allowed = review.Spec.User == "reader"
			return true, review, nil
		}
		return false, nil, nil
	})
	return client
}

// emptyAPI has no objects, and accepts every write.
type emptyAPI struct{}

func (emptyAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method != http.MethodGet:
		given, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(given)
	case r.URL.Query().Get("sendInitialEvents") != "":
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnprocessableEntity)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`)
	case r.URL.Query().Get("watch") != "":
		w.Header().Set("Content-Type", "application/json")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	case r.URL.Query().Has("limit"), r.URL.Query().Has("resourceVersion"):
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"metadata":{"resourceVersion":"1"},"items":[]}`)
	default:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
	}
}
