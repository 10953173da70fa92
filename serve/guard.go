package serve

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/kubernetes"
)

const (
	// remember is how long an answer of the API server is good for; upstream's.
	remember = 10 * time.Second
	// askTimeout bounds a question to the API server.
	askTimeout = 10 * time.Second
)

// guard lets those read a path whom the API server allows to, as kube-scheduler
// does: who somebody is says their bearer token (TokenReview) or client
// certificate, what they may says a SubjectAccessReview of the path.
type guard struct {
	client   kubernetes.Interface
	open     []string
	users    *cache.LRUExpireCache // by hash of the token: *user, nil if it is nobody's
	verdicts *cache.LRUExpireCache // by user, verb and path: bool
}

type user struct {
	name, uid string
	groups    []string
	extra     map[string]authorizationv1.ExtraValue
}

func newGuard(client kubernetes.Interface, open []string) *guard {
	return &guard{client: client, open: open, users: cache.NewLRUExpireCache(1000), verdicts: cache.NewLRUExpireCache(1000)}
}

func (g *guard) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.isOpen(r.URL.Path) {
			next.ServeHTTP(w, r)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), askTimeout)
		defer cancel()
		who, err := g.who(ctx, r)
		switch {
		case err != nil:
			http.Error(w, "the API server was asked who you are: "+err.Error(), http.StatusInternalServerError)
			return
		case who == nil:
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
			return
		}
		switch allowed, err := g.may(ctx, who, r); {
		case err != nil:
			http.Error(w, "the API server was asked what you may do: "+err.Error(), http.StatusInternalServerError)
		case !allowed:
			http.Error(w, fmt.Sprintf("forbidden: User %q cannot %s path %q", who.name, verb(r), r.URL.Path), http.StatusForbidden)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// isOpen follows upstream: a path, or all below it if it ends in *.
func (g *guard) isOpen(path string) bool {
	return slices.ContainsFunc(g.open, func(open string) bool {
		if below, ok := strings.CutSuffix(open, "*"); ok {
			return strings.HasPrefix(path, below)
		}
		return path == open
	})
}

// who asks; nil means that the token is nobody's. Without any credentials one
// is anonymous, whom the API server may allow something, too.
func (g *guard) who(ctx context.Context, r *http.Request) (*user, error) {
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		subject := r.TLS.VerifiedChains[0][0].Subject
		return &user{name: subject.CommonName, groups: append(subject.Organization, "system:authenticated")}, nil
	}
	scheme, token, _ := strings.Cut(strings.TrimSpace(r.Header.Get("Authorization")), " ")
	token = strings.TrimSpace(token)
	if !strings.EqualFold(scheme, "bearer") || token == "" {
		return &user{name: "system:anonymous", groups: []string{"system:unauthenticated"}}, nil
	}
	key := sha256.Sum256([]byte(token))
	if known, ok := g.users.Get(key); ok {
		return known.(*user), nil
	}
	review, err := g.client.AuthenticationV1().TokenReviews().Create(ctx,
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	var found *user
	if review.Status.Authenticated {
		said := review.Status.User
		found = &user{name: said.Username, uid: said.UID, groups: said.Groups, extra: map[string]authorizationv1.ExtraValue{}}
		for k, v := range said.Extra {
			found.extra[k] = authorizationv1.ExtraValue(v)
		}
	}
	g.users.Add(key, found, remember)
	return found, nil
}

func verb(r *http.Request) string { return strings.ToLower(r.Method) }

func (g *guard) may(ctx context.Context, u *user, r *http.Request) (bool, error) {
	key := fmt.Sprintf("%q %q %q %v %s %s", u.name, u.uid, u.groups, u.extra, verb(r), r.URL.Path)
	if known, ok := g.verdicts.Get(key); ok {
		return known.(bool), nil
	}
	review, err := g.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: u.name, UID: u.uid, Groups: u.groups, Extra: u.extra,
			NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: r.URL.Path, Verb: verb(r)},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	allowed := review.Status.Allowed && !review.Status.Denied
	g.verdicts.Add(key, allowed, remember)
	return allowed, nil
}
