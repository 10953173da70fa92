package server

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	clientcert "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
)

const (
	// remember is how long an answer of the API server is good for: how long somebody gets in whose token was
	// revoked, and how long somebody does not who was just allowed to.
	remember = 10 * time.Second
	// remembered is of how many tokens, and of how many questions what may be done, the answer is known.
	remembered = 1024
	// askTimeout bounds a question to the API server.
	askTimeout = 10 * time.Second
	// asking is how many questions are under way at once; a flood of tokens must not become one at the API server.
	asking = 16
	// maxToken is longer than any token; those of service accounts have some 1,200 bytes.
	maxToken = 16 << 10
)

// guard knows who somebody is, and what they may do on this node.
type guard struct {
	client       kubernetes.Interface
	node         string
	certificates *clientcert.Authenticator
	users        *cache.LRUExpireCache // by hash of the token: user.Info, nil if it is nobody's
	verdicts     *cache.LRUExpireCache // by user, verb and subresource: bool
	questions    chan struct{}         // has room for those under way
}

func newGuard(client kubernetes.Interface, node string, a Authorities) *guard {
	return &guard{
		client: client, node: node,
		certificates: clientcert.NewDynamic(a.VerifyOptions, clientcert.CommonNameUserConversion),
		users:        cache.NewLRUExpireCache(remembered), verdicts: cache.NewLRUExpireCache(remembered),
		questions: make(chan struct{}, asking),
	}
}

// who is behind a request; nil is nobody that is known. The credentials are taken off the request: they are not
// the container runtime's business.
func (g *guard) who(r *http.Request) (user.Info, error) {
	given := r.Header.Get("Authorization")
	r.Header.Del("Authorization")
	if response, ok, err := g.certificates.AuthenticateRequest(r); err == nil && ok && response.User.GetName() != "" {
		return response.User, nil
	} else if err != nil {
		klog.FromContext(r.Context()).V(2).Info("Client certificate refused", "from", r.RemoteAddr, "err", err)
	}
	scheme, token, _ := strings.Cut(strings.TrimSpace(given), " ")
	token = strings.TrimSpace(token)
	if !strings.EqualFold(scheme, "bearer") || token == "" || len(token) > maxToken {
		return nil, nil
	}
	return g.bearer(r.Context(), token)
}

func (g *guard) bearer(ctx context.Context, token string) (user.Info, error) {
	key := sha256.Sum256([]byte(token))
	return ask(ctx, g, g.users, key, func(ctx context.Context) (user.Info, error) {
		review, err := g.client.AuthenticationV1().TokenReviews().Create(ctx,
			&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
		if err != nil {
			return nil, fmt.Errorf("review the token: %w", err)
		}
		said := review.Status.User
		if !review.Status.Authenticated || said.Username == "" {
			return nil, nil
		}
		extra := map[string][]string{}
		for k, v := range said.Extra {
			extra[k] = v
		}
		// A fault of the API server, which says at once yes and why not, is a no.
		if review.Status.Error != "" {
			return nil, errors.New("review the token: " + review.Status.Error)
		}
		return &user.DefaultInfo{Name: said.Username, UID: said.UID, Groups: said.Groups, Extra: extra}, nil
	})
}

// may asks for the subresources in turn.
func (g *guard) may(ctx context.Context, u user.Info, verb string, subresources []string) (bool, error) {
	for _, subresource := range subresources {
		allowed, err := g.mayOne(ctx, u, verb, subresource)
		if allowed || err != nil {
			return allowed, err
		}
	}
	return false, nil
}

func (g *guard) mayOne(ctx context.Context, u user.Info, verb, subresource string) (bool, error) {
	extra := map[string]authorizationv1.ExtraValue{}
	for k, v := range u.GetExtra() {
		extra[k] = v
	}
	key := sha256.Sum256(fmt.Appendf(nil, "%q %q %q %q %s %s", u.GetName(), u.GetUID(), u.GetGroups(), extra, verb, subresource))
	return ask(ctx, g, g.verdicts, key, func(ctx context.Context) (bool, error) {
		review, err := g.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{
				User: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups(), Extra: extra,
				ResourceAttributes: &authorizationv1.ResourceAttributes{
					Verb: verb, Version: "v1", Resource: "nodes", Subresource: subresource, Name: g.node,
				},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			return false, fmt.Errorf("review the access: %w", err)
		}
		return review.Status.Allowed && !review.Status.Denied, nil
	})
}

// ask gives the answer that is known, or asks for it; faults are not remembered.
func ask[A any](ctx context.Context, g *guard, known *cache.LRUExpireCache, key [sha256.Size]byte, question func(context.Context) (A, error)) (A, error) {
	if answer, ok := known.Get(key); ok {
		return answer.(box[A]).answer, nil
	}
	var none A
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	select {
	case g.questions <- struct{}{}:
		defer func() { <-g.questions }()
	case <-ctx.Done():
		return none, fmt.Errorf("too many questions to the API server are under way: %w", ctx.Err())
	}
	// While this one waited, another may have asked the same.
	if answer, ok := known.Get(key); ok {
		return answer.(box[A]).answer, nil
	}
	answer, err := question(ctx)
	if err != nil {
		return none, err
	}
	known.Add(key, box[A]{answer}, remember)
	return answer, nil
}

// box holds an answer that may be nil.
type box[A any] struct{ answer A }
