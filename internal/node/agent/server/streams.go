package server

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/proxy"
	translate "k8s.io/apiserver/pkg/util/proxy"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// DeclaredFeatures are written into the node's status.declaredFeatures: API servers since v1.36
// then pass kubectl's WebSockets through to the node, without translating them to SPDY.
var DeclaredFeatures = []string{"ExtendWebSocketsToKubelet"}

func (s *Server) exec(w http.ResponseWriter, r *http.Request, route route) {
	query := r.URL.Query()
	streams, err := streamOptions(query)
	if err != nil {
		fail(w, err)
		return
	}
	if len(query["command"]) == 0 {
		fail(w, refuse(http.StatusBadRequest, "you must specify at least 1 command for the container"))
		return
	}
	_, id, err := s.target(route)
	if err != nil {
		fail(w, err)
		return
	}
	response, err := s.options.Runtime.Exec(r.Context(), &runtimeapi.ExecRequest{
		ContainerId: id, Cmd: query["command"],
		Stdin: streams.Stdin, Stdout: streams.Stdout, Stderr: streams.Stderr, Tty: streams.Tty,
	})
	if err != nil {
		fail(w, err)
		return
	}
	s.connect(w, r, response.GetUrl(), &streams)
}

func (s *Server) attach(w http.ResponseWriter, r *http.Request, route route) {
	streams, err := streamOptions(r.URL.Query())
	if err != nil {
		fail(w, err)
		return
	}
	tty, id, err := s.target(route)
	if err != nil {
		fail(w, err)
		return
	}
	// Whether there is a terminal was decided when the container was created; with one there is no
	// other stderr.
	response, err := s.options.Runtime.Attach(r.Context(), &runtimeapi.AttachRequest{
		ContainerId: id, Tty: tty,
		Stdin: streams.Stdin, Stdout: streams.Stdout, Stderr: streams.Stderr && !tty,
	})
	if err != nil {
		fail(w, err)
		return
	}
	s.connect(w, r, response.GetUrl(), &streams)
}

func (s *Server) portForward(w http.ResponseWriter, r *http.Request, route route) {
	ports, err := ports(r)
	if err != nil {
		fail(w, err)
		return
	}
	pod, err := s.pod(route)
	if err != nil {
		fail(w, err)
		return
	}
	sandbox, err := s.sandbox(r.Context(), pod.Name, pod.UID)
	if err != nil {
		fail(w, err)
		return
	}
	response, err := s.options.Runtime.PortForward(r.Context(), &runtimeapi.PortForwardRequest{PodSandboxId: sandbox, Port: ports})
	if err != nil {
		fail(w, err)
		return
	}
	s.connect(w, r, response.GetUrl(), nil)
}

// target is the running container that a path names, and whether it has a terminal.
func (s *Server) target(r route) (tty bool, id string, err error) {
	pod, err := s.pod(r)
	if err != nil {
		return false, "", err
	}
	if tty, err = container(pod, r.container); err != nil {
		return false, "", err
	}
	id, err = running(pod, r.container)
	return tty, id, err
}

func streamOptions(query url.Values) (translate.Options, error) {
	o := translate.Options{
		Stdin: query.Get("input") == "1", Stdout: query.Get("output") == "1",
		Stderr: query.Get("error") == "1", Tty: query.Get("tty") == "1",
	}
	// A terminal merges both; upstream silently drops the flag.
	o.Stderr = o.Stderr && !o.Tty
	if !o.Stdin && !o.Stdout && !o.Stderr {
		return o, refuse(http.StatusBadRequest, "you must specify at least 1 of stdin, stdout, stderr")
	}
	return o, nil
}

// ports are in the query only in the older WebSocket protocol; otherwise every stream names its
// own.
func ports(r *http.Request) ([]int32, error) {
	if !wsstream.IsWebSocketRequest(r) || wsstream.IsWebSocketRequestWithTunnelingProtocol(r) {
		return nil, nil
	}
	texts := r.URL.Query()["port"]
	if len(texts) == 0 {
		return nil, refuse(http.StatusBadRequest, "query parameter %q is required", "port")
	}
	var found []int32
	for _, text := range texts {
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil || port == 0 {
			return nil, refuse(http.StatusBadRequest, "unable to parse %q as a port", text)
		}
		found = append(found, int32(port))
	}
	return found, nil
}

// connect passes the connection to the runtime's streaming server, translating the protocol if
// necessary. options are those of exec and attach, nil for port-forward.
func (s *Server) connect(w http.ResponseWriter, r *http.Request, to string, options *translate.Options) {
	location, err := url.Parse(to)
	if err != nil || location.Host == "" {
		fail(w, refuse(http.StatusInternalServerError, "the runtime answered with a URL that is none: %q", to))
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	r = r.WithContext(ctx)
	taken := &takenOver{ResponseWriter: w, streams: s.streams, gone: cancel}
	defer taken.release()

	transport := &http.Transport{DialContext: dialFor(ctx), DisableKeepAlives: true}
	var handler http.Handler = proxy.NewUpgradeAwareHandler(location, transport, false, true, responder{})
	switch {
	case options != nil && wsstream.IsWebSocketRequestWithStreamCloseProtocol(r):
		handler = translate.NewStreamTranslatorHandler(location, transport, 0, *options)
	case options == nil && wsstream.IsWebSocketRequestWithTunnelingProtocol(r):
		handler = translate.NewTunnelingHandler(handler)
	}
	handler.ServeHTTP(taken, r)
}

// dialTime is long for a socket of the same machine.
const dialTime = 10 * time.Second

// dialFor connects to the runtime on behalf of a request, and for no longer than it lasts: the
// libraries wait for the runtime's answer without limit, even after the client has gone.
func dialFor(request context.Context) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		dialer := net.Dialer{Timeout: dialTime}
		conn, err := dialer.DialContext(ctx, network, address)
		if err == nil {
			context.AfterFunc(request, func() { _ = conn.Close() })
		}
		return conn, err
	}
}

type responder struct{}

func (responder) Error(w http.ResponseWriter, r *http.Request, err error) {
	klog.FromContext(r.Context()).V(2).Info("Not connected to the runtime", "path", r.URL.Path, "err", err)
	code := http.StatusInternalServerError
	if known, ok := err.(apierrors.APIStatus); ok {
		code = int(known.Status().Code)
	}
	http.Error(w, err.Error(), code)
}

// takenOver is the answer to a request whose connection is taken over.
type takenOver struct {
	http.ResponseWriter
	streams *streams
	gone    func()
	conn    net.Conn
}

// Hijack hands over the connection, wrapped so that it reports when the client has gone.
func (t *takenOver) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(t.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	if !t.streams.add() {
		_ = conn.Close()
		return nil, nil, errEnding
	}
	t.conn = conn
	watched := &watchedConn{Conn: conn, gone: t.gone}
	if n := buffered.Reader.Buffered(); n > 0 {
		early, _ := buffered.Reader.Peek(n)
		watched.early = slices.Clone(early)
	}
	return watched, bufio.NewReadWriter(bufio.NewReader(watched), bufio.NewWriter(watched)), nil
}

func (t *takenOver) release() {
	if t.conn != nil {
		_ = t.conn.Close()
		t.streams.remove()
	}
}

// watchedConn reports when nothing more comes from the client.
type watchedConn struct {
	net.Conn
	early []byte // read before the connection was taken over
	gone  func()
}

func (c *watchedConn) Read(p []byte) (int, error) {
	if len(c.early) > 0 {
		n := copy(p, c.early)
		c.early = c.early[n:]
		return n, nil
	}
	n, err := c.Conn.Read(p)
	var timeout net.Error
	if err != nil && !(errors.As(err, &timeout) && timeout.Timeout()) {
		c.gone()
	}
	return n, err
}

var errEnding = errors.New("the server is ending")

// streams counts the hijacked connections, which the HTTP server no longer tracks. They end with
// the contexts of their requests.
type streams struct {
	mu     sync.Mutex
	open   int
	ending chan struct{} // not nil: none is added, and it is closed when none is left
}

func (s *streams) add() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ending != nil {
		return false
	}
	s.open++
	return true
}

func (s *streams) remove() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
	if s.ending != nil && s.open == 0 {
		close(s.ending)
	}
}

// end gives open streams some time to end.
func (s *streams) end(limit time.Duration) {
	s.mu.Lock()
	ending := make(chan struct{})
	s.ending = ending
	if s.open == 0 {
		close(ending)
	}
	s.mu.Unlock()
	select {
	case <-ending:
	case <-time.After(limit):
	}
}
