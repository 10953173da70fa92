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
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/authentication/user"
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
		gate := &gate{guard: guard.New(client), open: s.options.AlwaysAllow}
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

// gate lets callers read a path if the API server allows it, like kube-scheduler. The bearer token
// (by a TokenReview) or the client certificate identifies the caller, and a SubjectAccessReview of
// the path determines the permission. Package guard sends the reviews and limits them.
type gate struct {
	guard *guard.Guard
	open  []string // paths without authentication; see isOpen
	// own is the prefix of paths for every authenticated caller; their handler authorizes by
	// Caller.May. "" means none.
	own string
}

// Caller is an authenticated caller.
type Caller struct {
	user.Info
	source string
	guard  *guard.Guard
}

// May reports whether the API server grants the caller a permission on a resource.
func (c *Caller) May(ctx context.Context, on authorizationv1.ResourceAttributes) (bool, error) {
	return c.guard.May(ctx, c.source, c.Info, authorizationv1.SubjectAccessReviewSpec{ResourceAttributes: &on})
}

type callerKey struct{}

// CallerOf returns the caller of a request to the handlers of a secure listener, or nil.
func CallerOf(ctx context.Context) *Caller {
	c, _ := ctx.Value(callerKey{}).(*Caller)
	return c
}

// wrapHandler serves requests to open paths, and requests by callers allowed to read the path. Only
// connections of the latter are admitted (guard.Admit); connections of unauthenticated health
// probes stay unadmitted, and may be closed.
func (g *gate) wrapHandler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.isOpen(r.URL.Path) {
			next.ServeHTTP(w, r)
			return
		}
		caller, code, why := g.callerOf(r)
		if code != 0 {
			guard.Refuse(w, code, why)
			return
		}
		if !guard.Admit(r) {
			guard.Refuse(w, http.StatusServiceUnavailable, "too many connections are open")
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callerKey{}, caller)))
	})
}

// callerOf returns the caller, and the HTTP status and message for refusing the caller, or 0 if the
// caller is authorized.
func (g *gate) callerOf(r *http.Request) (caller *Caller, code int, why string) {
	// The timeout applies to both reviews together.
	ctx, cancel := context.WithTimeout(r.Context(), guard.AskTimeout)
	defer cancel()
	source := guard.Source(r.RemoteAddr)
	who, err := g.authenticateCaller(ctx, source, r)
	if err != nil {
		return nil, statusOf(err), "authentication by the API server: " + err.Error()
	}
	own := g.own != "" && strings.HasPrefix(r.URL.Path, g.own)
	if who == nil || own && who.GetName() == user.Anonymous {
		return nil, http.StatusUnauthorized, "Unauthorized"
	}
	if caller = (&Caller{who, source, g.guard}); own {
		return caller, 0, ""
	}

	allowed, err := g.guard.May(ctx, source, who, authorizationv1.SubjectAccessReviewSpec{
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: r.URL.Path, Verb: verbOf(r)},
	})
	switch {
	case err != nil:
		return nil, statusOf(err), "authorization by the API server: " + err.Error()
	case !allowed:
		return nil, http.StatusForbidden, fmt.Sprintf("forbidden: User %q cannot %s path %q", who.GetName(), verbOf(r), r.URL.Path)
	}

	return caller, 0, ""
}

// statusOf returns the HTTP status for the error of a review.
func statusOf(err error) int {
	if errors.Is(err, guard.ErrBusy) {
		return http.StatusTooManyRequests
	}
	return http.StatusInternalServerError
}

// isOpen reports whether a path requires no authentication. Like upstream, an entry of open is a
// path, or a prefix if it ends in *.
func (g *gate) isOpen(path string) bool {
	return slices.ContainsFunc(g.open, func(open string) bool {
		if below, ok := strings.CutSuffix(open, "*"); ok {
			return strings.HasPrefix(path, below)
		}
		return path == open
	})
}

// authenticateCaller returns the caller, or nil if the token is invalid. A caller without
// credentials is anonymous, and may still have permissions. A certificate takes precedence over a
// token, like upstream: the common name is the user, the organizations are the groups.
func (g *gate) authenticateCaller(ctx context.Context, source string, r *http.Request) (user.Info, error) {
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		subject := r.TLS.VerifiedChains[0][0].Subject
		return &user.DefaultInfo{Name: subject.CommonName, Groups: append(slices.Clone(subject.Organization), user.AllAuthenticated)}, nil
	}
	token := guard.Bearer(r)
	if token == "" {
		return &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}, nil
	}
	return g.guard.Who(ctx, source, token)
}

// verbOf returns the verb used in permissions on paths: the HTTP method in lower case.
func verbOf(r *http.Request) string { return strings.ToLower(r.Method) }
