// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const (
	// Remember is the time for which responses of the API server are cached, as in kube-scheduler.
	// A revoked token may work for that time, and a new permission may not.
	Remember = 10 * time.Second
	// renewAfter is the age from which a cached response in use is renewed.
	renewAfter = Remember * 7 / 10
	// Remembered is the maximum number of cached grants, and of cached refusals, per kind of
	// review.
	Remembered = 1024
	// AskTimeout bounds a review, including the wait for its turn.
	AskTimeout = 10 * time.Second
	// MaxToken is the maximum length of a token. Tokens of service accounts have some 1,200 bytes.
	MaxToken = 16 << 10
)

// ErrBusy is returned if a source causes too many reviews. It is not cached.
var ErrBusy = errors.New("too many questions to the API server from here; try again in a second")

// Guard authenticates and authorizes callers. It is safe for concurrent use.
type Guard struct {
	client   kubernetes.Interface
	users    answers[user.Info]
	verdicts answers[bool]
}

// New returns a guard that sends its reviews through the client; see Client.
func New(client kubernetes.Interface) *Guard {
	return &Guard{
		client:   client,
		users:    newAnswers(func(u user.Info) bool { return u != nil }),
		verdicts: newAnswers(func(allowed bool) bool { return allowed }),
	}
}

// Client returns a client for exclusive use by the guard, with separate connections, rate limit and
// deadline, so that reviews do not delay other requests of this process.
func Client(config *rest.Config) (kubernetes.Interface, error) {
	own := rest.CopyConfig(config)
	// A separate dialer prevents client-go from sharing connections with other clients.
	own.Dial = (&net.Dialer{Timeout: AskTimeout, KeepAlive: 30 * time.Second}).DialContext
	own.QPS, own.Burst, own.RateLimiter = 50, 100, nil
	own.Timeout = AskTimeout
	client, err := kubernetes.NewForConfig(own)
	if err != nil {
		return nil, fmt.Errorf("client that asks who callers are: %w", err)
	}
	return client, nil
}

// Bearer returns the bearer token of a request, or "" if there is none or it is longer than
// MaxToken.
func Bearer(r *http.Request) string {
	scheme, token, _ := strings.Cut(strings.TrimSpace(r.Header.Get("Authorization")), " ")
	token = strings.TrimSpace(token)
	if !strings.EqualFold(scheme, "bearer") || len(token) > MaxToken {
		return ""
	}
	return token
}

// Who returns the user of the token, or nil if the API server does not accept the token. The review
// counts against the limits of the source; see Source. The cache contains only hashes of tokens.
func (g *Guard) Who(ctx context.Context, source, token string) (user.Info, error) {
	return g.users.ask(ctx, source, sha256.Sum256([]byte(token)), func(ctx context.Context) (user.Info, error) {
		review, err := g.client.AuthenticationV1().TokenReviews().Create(ctx,
			&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
		if err != nil {
			return nil, fmt.Errorf("review the token: %w", err)
		}
		// A status with both a user and an error is contradictory, and counts as a refusal.
		// Upstream ignores the error if there is a user, and would accept the token.
		said := review.Status.User
		if !review.Status.Authenticated || review.Status.Error != "" || said.Username == "" {
			return nil, nil
		}
		extra := map[string][]string{}
		for k, v := range said.Extra {
			extra[k] = v
		}
		return &user.DefaultInfo{Name: said.Username, UID: said.UID, Groups: said.Groups, Extra: extra}, nil
	})
}

// May reports whether the user has the permission named by the spec, on a resource or a path. The
// review counts against the limits of the user or, if the user is anonymous, of the source.
func (g *Guard) May(ctx context.Context, source string, u user.Info, spec authorizationv1.SubjectAccessReviewSpec) (bool, error) {
	spec.User, spec.UID, spec.Groups = u.GetName(), u.GetUID(), u.GetGroups()
	spec.Extra = map[string]authorizationv1.ExtraValue{}
	for k, v := range u.GetExtra() {
		spec.Extra[k] = v
	}
	if !slices.Contains(u.GetGroups(), user.AllUnauthenticated) {
		source = "user " + u.GetName()
	}

	key, err := spec.Marshal()
	if err != nil {
		return false, err
	}
	return g.verdicts.ask(ctx, source, sha256.Sum256(key), func(ctx context.Context) (bool, error) {
		review, err := g.client.AuthorizationV1().SubjectAccessReviews().Create(ctx,
			&authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
		if err != nil {
			return false, fmt.Errorf("review the access: %w", err)
		}
		return review.Status.Allowed && !review.Status.Denied, nil
	})
}

// answers caches the API server's responses to one kind of review. Errors are not cached.
type answers[A any] struct {
	yes func(A) bool // reports whether the response admits the caller
	// granted and refused hold responses by the hash of the request. Refusals are kept separately,
	// so that made-up tokens do not evict the tokens of known callers.
	granted, refused *cache.LRUExpireCache
	turns            *turns
}

// newAnswers returns an empty cache.
func newAnswers[A any](yes func(A) bool) answers[A] {
	return answers[A]{
		yes: yes, granted: cache.NewLRUExpireCache(Remembered), refused: cache.NewLRUExpireCache(Remembered),
		turns: &turns{all: make(chan struct{}, asking), sources: cache.NewLRUExpireCache(sources)},
	}
}

// box is a cached response.
type box[A any] struct {
	answer   A // may be nil
	at       time.Time
	renewing atomic.Bool
}

// known returns the cached response, or nil.
func (k answers[A]) known(key [sha256.Size]byte) *box[A] {
	for _, known := range []*cache.LRUExpireCache{k.granted, k.refused} {
		if found, ok := known.Get(key); ok {
			return found.(*box[A])
		}
	}
	return nil
}

// ask returns the cached response. If there is none, ask waits for the source's turn and calls
// question. Both together take AskTimeout at most. Responses in use are renewed before they expire,
// so that the callers of a busy source do not all wait for a review.
func (k answers[A]) ask(ctx context.Context, source string, key [sha256.Size]byte, question func(context.Context) (A, error)) (A, error) {
	known := k.known(key)
	if known == nil {
		return k.review(ctx, source, key, nil, question)
	}
	if time.Since(known.at) > renewAfter && known.renewing.CompareAndSwap(false, true) {
		go func() {
			defer known.renewing.Store(false)
			_, _ = k.review(context.WithoutCancel(ctx), source, key, known, question) // the next caller repeats a failed review
		}()
	}
	return known.answer, nil
}

// review calls question and caches its response, unless another caller completes the same request
// during the wait. was is the cached response that is renewed, or nil.
func (k answers[A]) review(ctx context.Context, source string, key [sha256.Size]byte, was *box[A],
	question func(context.Context) (A, error)) (A, error) {
	var none A
	ctx, cancel := context.WithTimeout(ctx, AskTimeout)
	defer cancel()
	done, err := k.turns.take(ctx, source)
	if err != nil {
		return none, err
	}
	defer done()
	if other := k.known(key); other != nil && other != was {
		return other.answer, nil
	}

	answer, err := question(ctx)
	if err != nil {
		return none, err
	}
	if fresh := (&box[A]{answer: answer, at: time.Now()}); k.yes(answer) {
		k.granted.Add(key, fresh, Remember)
	} else {
		k.granted.Remove(key)
		k.refused.Add(key, fresh, Remember)
	}
	return answer, nil
}

// Local reports whether the request originates on this machine: through a forwarded port, or from a
// local program. It relies on the connection and not on headers, which a caller can forge.
func Local(r *http.Request) bool {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	return err == nil && net.ParseIP(host).IsLoopback()
}

// Rebound reports whether a request from this machine names a foreign host. If the name of a
// foreign site resolves to this machine, browsers consider this port to be of the same origin as
// the site (DNS rebinding).
func Rebound(r *http.Request) bool {
	return Local(r) && !namesMachine(hostOf(r))
}

// hostOf returns the host named in a request, without a port.
func hostOf(r *http.Request) string {
	name := r.Host
	if host, _, err := net.SplitHostPort(name); err == nil {
		name = host
	}
	return strings.TrimSuffix(strings.Trim(name, "[]"), ".")
}

// namesMachine reports whether a host is localhost or an IP address, and not a foreign name.
func namesMachine(host string) bool {
	return strings.EqualFold(host, "localhost") || net.ParseIP(host) != nil
}

// OnlyNamed refuses requests unless they name one of the hosts, localhost or an IP address.
func OnlyNamed(hosts []string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := hostOf(r)
		if !namesMachine(host) && !slices.ContainsFunc(hosts, func(known string) bool { return strings.EqualFold(known, host) }) {
			Refuse(w, http.StatusMisdirectedRequest, "no such host is served here")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// RefuseRebound refuses rebound requests. It protects ports without authentication from foreign
// pages in the user's browser.
func RefuseRebound(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if Rebound(r) {
			Refuse(w, http.StatusMisdirectedRequest, "use localhost or an address")
			return
		}
		next.ServeHTTP(w, r)
	})
}
