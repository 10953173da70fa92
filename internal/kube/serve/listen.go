// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/kube/guard"
)

// Server holds the listeners. They are opened before requests are served, so that their addresses
// are known early, and an occupied port is an error at the start.
type Server struct {
	secure, plain net.Listener // nil if there is none
	tls           *tls.Config  // configuration of the secure listener
	options       Options
	bounds        guard.Bounds
}

// Listen opens the listeners selected by the options. Requests are served only by Run. If a
// listener cannot be opened, Listen closes the other one.
func Listen(o Options) (*Server, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	s := &Server{options: o, bounds: guard.Ports}
	var err error

	if o.SecurePort != 0 {
		if s.tls, err = o.tlsConfig(); err != nil {
			return nil, err
		}
		if s.secure, err = o.listenSecure(); err != nil {
			return nil, fmt.Errorf("--secure-port: %w", err)
		}
	}

	if o.Plain != "" {
		if s.plain, err = net.Listen("tcp", o.Plain); err != nil {
			s.Close()
			return nil, fmt.Errorf("--health-bind-address: %w", err)
		}
	}
	return s, nil
}

// listenSecure opens the HTTPS port, or a free port if the default port is in use.
func (o *Options) listenSecure() (net.Listener, error) {
	l, err := net.Listen("tcp", o.secureAddress())
	if errors.Is(err, syscall.EADDRINUSE) && o.moves {
		// A second scheduler on the machine must not prevent scheduling.
		return net.Listen("tcp", net.JoinHostPort(o.BindAddress, "0"))
	}
	return l, err
}

// URLs returns the URLs of the open listeners, beginning with the secure one, with their actual
// ports.
func (s *Server) URLs() (urls []string) {
	if s.secure != nil {
		urls = append(urls, "https://"+s.secure.Addr().String())
	}
	if s.plain != nil {
		urls = append(urls, "http://"+s.plain.Addr().String())
	}
	return urls
}

// PlainAddress returns the address of the plain listener, or "".
func (s *Server) PlainAddress() string {
	if s.plain == nil {
		return ""
	}
	return s.plain.Addr().String()
}

// Close closes the listeners of a server that does not run.
func (s *Server) Close() {
	for _, l := range []net.Listener{s.secure, s.plain} {
		if l != nil {
			_ = l.Close()
		}
	}
}

// Handlers holds the handlers of the two listeners. Callers of Plain are not authenticated, so it
// must not serve confidential content.
type Handlers struct {
	Secure, Plain http.Handler
	// Own, if set, is the prefix of paths of Secure that every authenticated caller may request.
	// The handler must authorize the caller itself; see [CallerOf].
	Own string
}

// Run serves until the context ends. The client is only used for reviews by the API server (see
// guard.Client); the plain listener does not need it. Requests still running when the context ends
// are aborted after Options.Grace.
func (s *Server) Run(ctx context.Context, handlers Handlers, client kubernetes.Interface) {
	var running sync.WaitGroup
	defer running.Wait()
	if s.secure != nil {
		gate := newGate(client, s.options.AlwaysAllow)
		gate.own = handlers.Own
		guarded := gate.wrapHandler(handlers.Secure)
		// The bounds apply below TLS, so that handshakes count as well.
		running.Go(func() {
			runServer(ctx, tls.NewListener(guard.Bound(s.secure, s.bounds), s.tls), guarded, s.options.Grace)
		})
	}
	if s.plain != nil {
		running.Go(func() { runServer(ctx, guard.Bound(s.plain, s.bounds), guard.RefuseRebound(handlers.Plain), 0) })
	}
}

// runServer serves one listener until the context ends. Then requests have the time of grace to
// complete.
func runServer(ctx context.Context, l net.Listener, handler http.Handler, grace time.Duration) {
	server := guard.Server(handler)
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		if grace > 0 {
			limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
			defer cancel()
			_ = server.Shutdown(limited)
		}
		_ = server.Close()
	})
	if err := server.Serve(l); !stop() {
		<-ended
	} else if err != nil {
		klog.FromContext(ctx).Error(err, "Endpoints ended", "address", l.Addr())
	}
}
