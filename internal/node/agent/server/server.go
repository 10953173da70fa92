package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"

	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/berth-k8s/berth/internal/kube/guard"
)

// Server is the node's API.
type Server struct {
	options Options
	limits  limits
	gate    *gate
	streams *streams
}

// New checks the options; nothing runs yet.
func New(o Options) (*Server, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	return &Server{
		options: o, limits: o.limits.withDefaults(),
		gate:    newGate(o.Client, o.NodeName, o.Authorities),
		streams: &streams{},
	}, nil
}

// Serve serves HTTPS on the listener until the context ends, which also cancels requests under way.
// It closes the listener.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	current := make(chan struct{})
	go func() {
		defer close(current)
		s.options.Authorities.Run(ctx)
	}()
	server := &http.Server{
		Handler:           s,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: s.limits.headerTime,
		ReadTimeout:       s.limits.requestTime,
		WriteTimeout:      s.limits.requestTime,
		IdleTimeout:       s.limits.idle,
		MaxHeaderBytes:    s.limits.header,
		ConnContext:       guard.ConnContext,
		ErrorLog:          klog.NewStandardLogger("INFO"),
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		drained, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.limits.drain)
		defer cancel()
		if server.Shutdown(drained) != nil {
			_ = server.Close()
		}
	})
	err := server.Serve(tls.NewListener(guard.Bound(l, s.limits.connections), s.tls()))
	if stop() {
		_ = server.Close() // it was the listener that failed
	} else {
		<-ended
	}
	cancel()
	s.streams.end(s.limits.drain)
	<-current
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve the node's API on %s: %w", l.Addr(), err)
}

// tls requests a client certificate. Here its validity decides only how much the client may send;
// the gate verifies it with each request, so that a client with an invalid one gets an answer.
func (s *Server) tls() *tls.Config {
	config := &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: s.options.Certificate,
		ClientAuth:     tls.RequestClientCert,
		// Exec, attach and port-forward take over the connection, which HTTP/2 does not allow.
		NextProtos: []string{"http/1.1"},
	}
	config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		own := config.Clone()
		own.VerifyConnection = func(state tls.ConnectionState) error {
			if s.gate.signed(&state) {
				guard.Vouch(hello.Conn)
			}
			return nil
		}
		return own, nil
	}
	return config
}

// ServeHTTP tells unknown callers nothing, not even whether a path exists. A caller that is refused
// before it is authorized also loses its connection.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	log := klog.FromContext(r.Context())
	who, err := s.gate.who(r)
	if errors.Is(err, guard.ErrBusy) {
		guard.Refuse(w, http.StatusTooManyRequests, err.Error())
		return
	}
	if err != nil {
		log.Error(err, "A caller could not be identified", "from", r.RemoteAddr)
	}
	if err != nil || who == nil {
		guard.Refuse(w, http.StatusUnauthorized, "Unauthorized")
		return
	}
	route, err := parse(r.URL.Path, r.URL.EscapedPath())
	if err != nil {
		guard.Refuse(w, statusOf(err), err.Error())
		return
	}
	verb := route.verb(r.Method)
	allowed, err := s.gate.may(r, who, verb, route.subresources())
	switch {
	case errors.Is(err, guard.ErrBusy):
		guard.Refuse(w, http.StatusTooManyRequests, err.Error())
	case err != nil:
		log.Error(err, "The API server could not be asked", "user", who.GetName(), "path", route.path)
		guard.Refuse(w, http.StatusInternalServerError, fmt.Sprintf("Authorization error (user=%s, verb=%s, resource=nodes, subresource(s)=%v)",
			who.GetName(), verb, route.subresources()))
	case !allowed:
		log.V(2).Info("Forbidden", "user", who.GetName(), "verb", verb, "path", route.path)
		guard.Refuse(w, http.StatusForbidden, fmt.Sprintf("Forbidden (user=%s, verb=%s, resource=nodes, subresource(s)=%v)",
			who.GetName(), verb, route.subresources()))
	case !guard.Admit(r):
		guard.Refuse(w, http.StatusServiceUnavailable, "too many connections are open")
	case route.kind != unknown && !route.takes(r.Method):
		http.Error(w, "Method Not Allowed", http.StatusMethodNotAllowed)
	case route.streams() && !httpstream.IsUpgradeRequest(r):
		http.Error(w, "Upgrade request required", http.StatusBadRequest)
	default:
		s.answer(w, r, route)
	}
}

func (s *Server) answer(w http.ResponseWriter, r *http.Request, route route) {
	switch route.kind {
	case pods:
		s.pods(w)
	case healthz:
		answerHealthz(w, s.options.Healthy, route.check)
	case configz:
		s.configz(w)
	case statsSummary:
		s.summary(w, r)
	case metrics:
		s.metrics(w, r, route.path)
	case containerLogs:
		s.logs(w, r, route)
	case exec:
		s.exec(w, r, route)
	case attach:
		s.attach(w, r, route)
	case portForward:
		s.portForward(w, r, route)
	case nodeLogs:
		http.Error(w, "logs endpoint is disabled.", http.StatusMethodNotAllowed)
	default:
		http.Error(w, "404: Page Not Found", http.StatusNotFound)
	}
}

func statusOf(err error) int {
	if errors.Is(err, errPathLong) {
		return http.StatusRequestURITooLong
	}
	return http.StatusBadRequest
}
