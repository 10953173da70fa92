// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-k8s/berth/internal/kube/guard"
)

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

// newGate returns a gate that sends reviews through the client.
func newGate(client kubernetes.Interface, open []string) *gate {
	return &gate{guard: guard.New(client), open: open}
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
