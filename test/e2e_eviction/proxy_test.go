// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2eeviction

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path"
	"path/filepath"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// fault describes what a proxy does with matching requests.
type fault struct {
	method, path string        // must match the request; "" matches any
	times        int           // number of affected requests; 0 for all
	status       int           // status returned without forwarding the request; 0 forwards the request
	unanswered   bool          // the connection breaks before the response or, if wait is 0, before the request is forwarded
	delay        time.Duration // delay before the request is forwarded
	wait         time.Duration // delay before the response is forwarded
}

// proxy simulates faults of the network and of the server between a controller and the API server.
type proxy struct {
	t       testing.TB
	forward *httputil.ReverseProxy
	note    func(r *http.Request) // if not nil, called with each request; set before the first request

	mu      sync.Mutex // guards the fields below
	faults  []*fault
	watches map[string]map[int]context.CancelFunc // running watches by resource
	count   int
	late    map[string]time.Duration // delay of watch events by resource
	forget  map[string]bool          // the next watch of the resource fails with an expired version
	held    map[string]bool          // the resource can be neither listed nor watched
	down    bool
}

// newProxy starts a proxy, and returns it with the path of a kubeconfig.
func newProxy(t testing.TB, api *rest.Config) (*proxy, string) {
	t.Helper()
	target, err := url.Parse(api.Host)
	if err != nil {
		t.Fatal(err)
	}
	transport, err := rest.TransportFor(api)
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{t: t, watches: map[string]map[int]context.CancelFunc{}, late: map[string]time.Duration{}, forget: map[string]bool{}, held: map[string]bool{}}
	p.forward = &httputil.ReverseProxy{
		Rewrite:        func(r *httputil.ProxyRequest) { r.SetURL(target); r.Out.Host = target.Host },
		Transport:      transport,
		FlushInterval:  -1,
		ModifyResponse: p.delay,
		ErrorHandler:   func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	server := httptest.NewUnstartedServer(p)
	server.Config.ErrorLog = nil
	server.Start()
	t.Cleanup(func() {
		p.cut("", false)
		server.CloseClientConnections()
		server.Close()
	})
	config := clientcmdapi.NewConfig()
	config.Clusters["proxy"] = &clientcmdapi.Cluster{Server: server.URL}
	config.AuthInfos["none"] = clientcmdapi.NewAuthInfo()
	config.Contexts["proxy"] = &clientcmdapi.Context{Cluster: "proxy", AuthInfo: "none"}
	config.CurrentContext = "proxy"
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, kubeconfig); err != nil {
		t.Fatal(err)
	}
	return p, kubeconfig
}

// watched returns the resource watched by the request, or "".
func watched(r *http.Request) string {
	if w := r.URL.Query().Get("watch"); w != "true" && w != "1" {
		return ""
	}
	return path.Base(r.URL.Path)
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	resource := watched(r)
	if p.note != nil {
		p.note(r)
	}
	p.mu.Lock()
	down, f := p.down, p.take(r)
	held := p.held[path.Base(r.URL.Path)]
	forgotten := p.forget[resource]
	if !held {
		delete(p.forget, resource)
	}
	p.mu.Unlock()
	switch {
	case down, held:
		panic(http.ErrAbortHandler)
	case forgotten:
		refuse(w, http.StatusGone, metav1.StatusReasonExpired)
	case resource != "":
		ctx, done := p.watch(r.Context(), resource)
		defer done()
		p.forward.ServeHTTP(w, r.WithContext(ctx))
		if ctx.Err() != nil {
			panic(http.ErrAbortHandler)
		}
	case f == nil:
		p.forward.ServeHTTP(w, r)
	default:
		p.spoil(w, r, f)
	}
}

// take returns the fault for the request, if any, and counts the request. The caller must hold mu.
func (p *proxy) take(r *http.Request) *fault {
	for i, f := range p.faults {
		if f.method != "" && f.method != r.Method || f.path != "" && f.path != r.URL.Path {
			continue
		}
		if f.times > 0 {
			if f.times--; f.times == 0 {
				p.faults = append(p.faults[:i:i], p.faults[i+1:]...)
			}
		}
		return f
	}
	return nil
}

func (p *proxy) spoil(w http.ResponseWriter, r *http.Request, f *fault) {
	switch {
	case f.status != 0:
		refuse(w, f.status, metav1.StatusReasonUnknown)
		return
	case f.unanswered && f.wait == 0:
		panic(http.ErrAbortHandler)
	}
	<-time.After(f.delay)
	answer := httptest.NewRecorder()
	p.forward.ServeHTTP(answer, r.WithContext(context.WithoutCancel(r.Context()))) // independent of the client's connection
	<-time.After(f.wait)
	if f.unanswered {
		panic(http.ErrAbortHandler)
	}
	maps.Copy(w.Header(), answer.Header())
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body.Bytes()) // the client may have disconnected
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{ // the client may have disconnected
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: int32(code), Reason: reason, Message: "as the test asks",
	})
}

// watch registers a watch, so that it can be cut.
func (p *proxy) watch(ctx context.Context, resource string) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.count++
	id := p.count
	if p.watches[resource] == nil {
		p.watches[resource] = map[int]context.CancelFunc{}
	}
	p.watches[resource][id] = cancel
	return ctx, func() {
		cancel()
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.watches[resource], id)
	}
}

// cut breaks the watches of a resource; "" selects all. With relist, the next watch fails because
// its version is too old.
func (p *proxy) cut(resource string, relist bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, watches := range p.watches {
		if resource != "" && resource != name {
			continue
		}
		p.forget[name] = relist
		for _, cancel := range watches {
			cancel()
		}
	}
}

// hold breaks the watches of a resource, and rejects lists and watches until release is called.
// Afterwards, clients must list the resource again.
func (p *proxy) hold(resource string) {
	p.mu.Lock()
	p.held[resource] = true
	p.mu.Unlock()
	p.cut(resource, true)
}

func (p *proxy) release(resource string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.held, resource)
}

// setDown sets whether the API server is unreachable.
func (p *proxy) setDown(down bool) {
	p.mu.Lock()
	p.down = down
	p.mu.Unlock()
	if down {
		p.cut("", false)
	}
}

// setLate delays all further events of a resource's watches.
func (p *proxy) setLate(resource string, by time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.late[resource] = by
}

func (p *proxy) lateness(resource string) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.late[resource]
}

func (p *proxy) add(f fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = append(p.faults, &f)
}

// delay replaces the response body of a watch by a delayed one.
func (p *proxy) delay(answer *http.Response) error {
	if resource := watched(answer.Request); resource != "" {
		answer.Body = delayed(answer.Request.Context(), answer.Body, func() time.Duration { return p.lateness(resource) })
	}
	return nil
}

// delayed returns a stream with the data of body, each chunk of which is delayed, in the original
// order.
func delayed(ctx context.Context, body io.ReadCloser, by func() time.Duration) io.ReadCloser {
	type chunk struct {
		data []byte
		due  time.Time
	}
	chunks := make(chan chunk, 10_000)
	out, in := io.Pipe()
	go func() {
		defer close(chunks)
		for {
			data := make([]byte, 32<<10)
			n, err := body.Read(data)
			if n > 0 {
				chunks <- chunk{data[:n], time.Now().Add(by())}
			}
			if err != nil {
				return
			}
		}
	}()
	go func() {
		for c := range chunks {
			select {
			case <-ctx.Done():
			case <-time.After(time.Until(c.due)):
				_, _ = in.Write(c.data) // the client may have disconnected
			}
		}
		in.Close()
	}()
	return struct {
		io.Reader
		io.Closer
	}{out, both{out, body}}
}

type both []io.Closer

func (b both) Close() error {
	for _, c := range b {
		c.Close()
	}
	return nil
}
