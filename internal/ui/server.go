// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/rest"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/inspect/question"
	"github.com/berth-k8s/berth/internal/inspect/snapshot"
	access "github.com/berth-k8s/berth/internal/kube/guard"
	"github.com/berth-k8s/berth/internal/kube/memoryrelease"
	"github.com/berth-k8s/berth/internal/ui/changefeed"
	"github.com/berth-k8s/berth/internal/ui/model"
)

// Options configures the dashboard's address and access to it. Address, Running and Parse must be
// set.
type Options struct {
	Address string // host:port; port 0 takes a free one
	// Token is required to open the dashboard. If it is empty, Listen generates one.
	Token string
	// Names are host names under which the dashboard may be requested.
	Names             []string
	CertFile, KeyFile string
	// Running returns the configuration of the cluster's schedulers at a given time. leases holds
	// the cluster's Leases.
	Running func(ctx context.Context, leases []*coordinationv1.Lease, at time.Time) (*config.Running, error)
	Parse   question.Parser
	// Decided returns the live scheduler's decision about a pod; nil if the scheduler is
	// unavailable or has no record of it. May be nil, as for a recording.
	Decided func(ctx context.Context, namespace, name string) (*decision.Decision, error)
	// Journal is the folder of the scheduler's journals, from which the history is restored; it may
	// be empty.
	Journal string
	// Recording is the folder of a recording to show instead of a live cluster.
	Recording string
	// Version is Berth's version.
	Version string
}

// Server serves the dashboard of a cluster, or of a recording. The shown data is held by watcher or
// recording. Explanations and forecasts are computed by asker, which reads a separate snapshot.
type Server struct {
	options Options
	cluster string // the API server's address, or the recording's folder
	watcher *changefeed.Watcher
	// recording is shown if it is not nil; then watcher is nil.
	recording *changefeed.Recording
	asker     *asker
	listener  net.Listener  // open since Listen
	epoch     string        // distinguishes this process's frame numbers from an earlier process's
	streams   chan struct{} // one element for each open stream

	mu   sync.Mutex
	held map[string]int // open streams by browser; see hold
}

// connections bounds the open connections. Callers without the token have the same bounds as on
// Berth's other ports. Callers with the token may hold all streams and still make requests.
var connections = access.Bounds{Unadmitted: access.Ports.Unadmitted, PerSource: access.Ports.PerSource, Admitted: mostStreams + 64}

// mostStreams bounds the number of open pages: each is a connection and a goroutine.
const mostStreams = 200

// Listen returns a server for the cluster of config, or for a recording, which needs no config. It
// listens already, so that URL is known; requests are served from Run on. An error names the
// offending flag.
func Listen(config *rest.Config, o Options) (*Server, error) {
	s, err := newShowing(config, &o)
	if err != nil {
		return nil, err
	}
	if o.CertFile != "" || o.KeyFile != "" {
		// Report an unreadable certificate now rather than at the first request.
		if _, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile); err != nil {
			return nil, fmt.Errorf("--tls-cert-file and --tls-private-key-file: %w", err)
		}
	}
	listener, err := net.Listen("tcp", o.Address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", o.Address, err)
	}
	o.Token = cmp.Or(o.Token, NewToken())
	random := make([]byte, 6)
	_, _ = rand.Read(random) // never fails
	s.options, s.listener, s.epoch, s.streams = o, listener, hex.EncodeToString(random), make(chan struct{}, mostStreams)
	s.held = map[string]int{}
	return s, nil
}

// newShowing returns a server that has its data source but does not listen yet. It reads a
// recording completely, but nothing from a live cluster.
func newShowing(config *rest.Config, o *Options) (s *Server, err error) {
	if o.Recording != "" {
		s = &Server{cluster: o.Recording}
		if s.recording, err = changefeed.Open(o.Recording); err == nil {
			s.asker = newAsker(recorded{s.recording}, o)
		}
		return s, err
	}

	s = &Server{cluster: config.Host}
	if s.watcher, err = changefeed.New(config); err != nil {
		return nil, err
	}

	client, err := snapshot.NewClient(config)
	if err != nil {
		return nil, err
	}

	client.ForPlans = true
	s.asker = newAsker(following{client}, o)
	return s, nil
}

// servedNames returns the names of the schedulers served by Berth. It reads the configuration at
// each call, because schedulers may have been added.
func (s *Server) servedNames(ctx context.Context, leases []*coordinationv1.Lease) ([]string, error) {
	running, err := s.options.Running(ctx, leases, time.Now())
	if err != nil {
		return nil, err
	}
	return answer.Mapped(running.Profiles, func(p *plugins.Profile) string { return p.SchedulerName }), nil
}

// isSecure reports whether the dashboard is served over HTTPS.
func (s *Server) isSecure() bool { return s.options.CertFile != "" }

// URL returns the dashboard's address, with the token. Show it only to the user that started the
// dashboard: the token must not be logged.
func (s *Server) URL() string {
	address := s.listener.Addr().(*net.TCPAddr)
	host := address.IP.String()
	switch {
	case len(s.options.Names) > 0:
		host = s.options.Names[0]
	// If the server listens on all addresses, use the loopback address.
	case address.IP.IsUnspecified():
		host = "localhost"
	}
	url := fmt.Sprintf("http://%s/", net.JoinHostPort(host, fmt.Sprint(address.Port)))
	if s.isSecure() {
		url = "https" + strings.TrimPrefix(url, "http")
	}
	return url + "?token=" + s.options.Token
}

// Run follows the cluster and serves the dashboard until the context ends; then it returns nil
// immediately, cutting off the streams: pages reconnect by themselves.
func (s *Server) Run(ctx context.Context) error {
	server := &http.Server{
		ErrorLog:          access.ErrorLog(),
		Handler:           s.newHandler(),
		ReadHeaderTimeout: 10 * time.Second, // there is no ReadTimeout, which would end streams and long requests
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		// Requests are cancelled when Run ends.
		BaseContext: func(net.Listener) context.Context { return ctx },
		ConnContext: access.ConnContext,
	}
	listener := access.Bound(s.listener, connections)
	watching, stop := context.WithCancel(ctx)
	go memoryrelease.Run(watching) // a question takes hundreds of megabytes, and the next may come a day later
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		if s.watcher == nil {
			return
		}
		var following sync.WaitGroup
		following.Go(func() { s.watcher.FollowSchedulers(watching, s.servedNames) })
		if s.options.Journal != "" {
			following.Go(func() { s.watcher.RestoreHistory(watching, s.options.Journal) })
		}
		s.watcher.Run(watching)
		following.Wait()
	}()
	// The watches end before Run returns, even if serving has failed.
	defer func() { stop(); <-watched }()
	// Close rather than Shutdown, which would wait for streams that never end.
	ended := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer ended()
	var err error
	if s.isSecure() {
		err = server.ServeTLS(listener, s.options.CertFile, s.options.KeyFile)
	} else {
		err = server.Serve(listener)
	}
	if ctx.Err() != nil && errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// newHandler routes requests for the page's files, the state, and the questions of the query
// service. guard protects all paths. None of the requests writes to the cluster.
func (s *Server) newHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { serveFile(w, "index.html", http.StatusOK) })
	mux.HandleFunc("GET /{file}", func(w http.ResponseWriter, r *http.Request) { serveFile(w, r.PathValue("file"), http.StatusOK) })
	mux.HandleFunc("GET /api/about", s.serveAbout)
	if s.recording != nil {
		mux.HandleFunc("GET /api/state", s.serveState)
	} else {
		mux.HandleFunc("GET /api/stream", s.serveStream)
	}
	mux.HandleFunc("GET /api/nodes/{name}", s.serveLook(nodeOf))
	mux.HandleFunc("GET /api/select", s.serveLook(selectNodes))
	mux.HandleFunc("GET /api/labels", s.serveLook(labelsOf))
	mux.HandleFunc("GET /api/pods", s.serveLook(choosePods))
	mux.HandleFunc("GET /api/objects", s.asker.limitRequests(http.HandlerFunc(s.asker.serveObjects)))
	mux.HandleFunc("GET /api/find", s.serveLook(find))
	path, questions := s.asker.handler()
	mux.HandleFunc("POST "+path, s.asker.limitRequests(questions))
	return &guard{
		next: compress(mux), token: s.options.Token, secure: s.isSecure(), names: s.options.Names,
		patience: sendWithin,
		// Cookies do not distinguish ports.
		cookie: fmt.Sprintf("berth-ui-%d", s.listener.Addr().(*net.TCPAddr).Port),
	}
}

// serveAbout reports the shown cluster, and the version of Berth.
func (s *Server) serveAbout(w http.ResponseWriter, _ *http.Request) {
	about := map[string]any{"cluster": s.cluster, "version": s.options.Version}
	if s.recording != nil {
		about["recording"] = map[string]int64{"from": s.recording.From.UnixMilli(), "until": s.recording.Until.UnixMilli()}
	}
	writeJSON(w, http.StatusOK, about)
}

// momentOf returns the requested time of a recording, given in milliseconds since 1970; the default
// is the end. For a live cluster, the time is ignored.
func momentOf(r *http.Request) time.Time {
	at, err := strconv.ParseInt(r.URL.Query().Get("at"), 10, 64)
	if err != nil {
		// Half of the maximum leaves room for additions without overflow.
		return time.UnixMilli(math.MaxInt64 / 2)
	}
	return time.UnixMilli(at)
}

// serveState serves the cluster at a time of the recording. Only recordings are served this way: a
// live cluster is served as a stream.
func (s *Server) serveState(w http.ResponseWriter, r *http.Request) {
	state, err := s.recording.State(momentOf(r))
	if err != nil {
		writeError(w, http.StatusInternalServerError, err.Error())
		return
	}
	writeJSON(w, http.StatusOK, state)
}

// listedWithin is the maximum time a request waits until the cluster has been read.
const listedWithin = 10 * time.Second

// look computes the response to a request from the state of the cluster. It must not retain the
// cluster or its data, which change after its return.
type look func(c *model.Cluster, r *http.Request) (status int, document any)

// serveLook serves the documents of look. Requests wait until the cluster has been read; otherwise
// every object would seem to be missing.
func (s *Server) serveLook(look look) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), listedWithin)
		defer cancel()
		var status int
		var document any
		see := func(c *model.Cluster) { status, document = look(c, r) }
		switch {
		case s.recording != nil:
			if err := s.recording.Look(momentOf(r), see); err != nil {
				status, document = http.StatusInternalServerError, fault(err.Error())
			}
		case s.watcher.Listed(ctx):
			s.watcher.Look(see)
		default:
			status, document = http.StatusServiceUnavailable, fault("the cluster has not been read yet")
		}
		writeJSON(w, status, document)
	}
}

// nodeOf serves GET /api/nodes/NAME with the details of the node.
func nodeOf(c *model.Cluster, r *http.Request) (int, any) {
	if detail, ok := c.Node(r.PathValue("name")); ok {
		return http.StatusOK, detail
	}
	return http.StatusNotFound, fault("there is no node with that name")
}

const (
	// mostFound bounds the nodes and pods listed by a search; users do not read longer lists.
	mostFound = 20
	// mostChosen bounds the listed pods of a workload.
	mostChosen = 2000
)

// find serves GET /api/find?q=TEXT.
func find(c *model.Cluster, r *http.Request) (int, any) {
	return http.StatusOK, c.Find(r.URL.Query().Get("q"), mostFound)
}

// selectNodes serves GET /api/select?labels=SELECTOR&taint=TAINT with the names of the nodes.
func selectNodes(c *model.Cluster, r *http.Request) (int, any) {
	nodes, err := c.Select(r.URL.Query().Get("labels"), r.URL.Query().Get("taint"))
	if err != nil {
		return http.StatusBadRequest, fault(err.Error())
	}
	return http.StatusOK, map[string]any{"nodes": nodes}
}
