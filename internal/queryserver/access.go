// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package queryserver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/time/rate"
	authorizationv1 "k8s.io/api/authorization/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/kube/serve"
)

// view is the permitted extent of a caller's results.
type view struct {
	caller *account
	// whole is set if the caller may list all nodes and the pods of all namespaces.
	whole bool
	nodes bool // the caller may list nodes
}

// viewOf authorizes a question about a namespace; "" means all namespaces.
func (s *Server) viewOf(ctx context.Context, namespace string) (*view, error) {
	caller := serve.CallerOf(ctx)
	if ctx.Value(localKey{}) != nil {
		return &view{caller: s.accounts.newAccount(), whole: true, nodes: true}, nil
	}
	if caller == nil {
		return nil, connect.NewError(connect.CodeUnauthenticated, errors.New("the caller is not authenticated"))
	}
	may := func(resource, namespace string) (bool, error) {
		allowed, err := caller.May(ctx, authorizationv1.ResourceAttributes{Verb: "list", Version: "v1", Resource: resource, Namespace: namespace})
		if err != nil {
			return false, connect.NewError(connect.CodeUnavailable, err)
		}
		return allowed, nil
	}
	nodes, err := may("nodes", "")
	if err != nil {
		return nil, err
	}

	pods, err := may("pods", "")
	if err != nil {
		return nil, err
	}
	v := &view{caller: s.accounts.of(caller.GetName()), nodes: nodes, whole: pods && nodes}
	if !pods && namespace != "" {
		if pods, err = may("pods", namespace); err != nil {
			return nil, err
		}
	}
	if !pods || namespace == "" && !v.whole {
		where := "the pods of namespace " + namespace
		if namespace == "" {
			where = "all nodes, and the pods of all namespaces"
		}
		return nil, connect.NewError(connect.CodePermissionDenied, fmt.Errorf("user %q may not list %s", caller.GetName(), where))
	}
	return v, nil
}

// narrowed is the reason that an answer lacks names.
const narrowed = "names of nodes and of other pods are left out: the caller may not list all nodes, and the pods of all namespaces"

// checkTerms refuses pods with affinity to pods of other namespaces, which would reveal these pods.
func (v *view) checkTerms(pods []*v1.Pod) error {
	if v.whole {
		return nil
	}
	for _, p := range pods {
		if affinity := p.Spec.Affinity; affinity != nil && slices.ContainsFunc(podTerms(affinity), func(t v1.PodAffinityTerm) bool {
			return t.NamespaceSelector != nil || slices.ContainsFunc(t.Namespaces, func(name string) bool { return name != p.Namespace })
		}) {
			return connect.NewError(connect.CodePermissionDenied,
				errors.New("the affinity to pods of other namespaces requires the permission to list all nodes, and the pods of all namespaces"))
		}
	}
	return nil
}

// podTerms returns all terms that select pods.
func podTerms(a *v1.Affinity) (terms []v1.PodAffinityTerm) {
	var preferred []v1.WeightedPodAffinityTerm
	if to := a.PodAffinity; to != nil {
		terms = append(terms, to.RequiredDuringSchedulingIgnoredDuringExecution...)
		preferred = append(preferred, to.PreferredDuringSchedulingIgnoredDuringExecution...)
	}
	if from := a.PodAntiAffinity; from != nil {
		terms = append(terms, from.RequiredDuringSchedulingIgnoredDuringExecution...)
		preferred = append(preferred, from.PreferredDuringSchedulingIgnoredDuringExecution...)
	}
	return append(terms, answer.Mapped(preferred, func(t v1.WeightedPodAffinityTerm) v1.PodAffinityTerm { return t.PodAffinityTerm })...)
}

const (
	// remembered is the number of callers with separate accounts. The account of a caller without
	// questions for forget is dropped; it would be full again by then.
	remembered = 4096
	forget     = 10 * time.Minute
	// burst is the work that a caller may cause immediately, in seconds of the rate.
	burst = 10
)

// accounts holds the work of the callers.
type accounts struct {
	rate int // judgements per second and caller

	mu    sync.Mutex
	known *cache.LRUExpireCache
}

// account is the work of one caller.
type account struct {
	work *rate.Limiter
	long chan struct{} // has an element while the caller's long question runs
}

// of returns the account of a caller.
func (a *accounts) of(name string) *account {
	a.mu.Lock()
	defer a.mu.Unlock()
	known, ok := a.known.Get(name)
	if !ok {
		known = a.newAccount()
	}
	a.known.Add(name, known, forget)
	return known.(*account)
}

// newAccount returns an account without charges.
func (a *accounts) newAccount() *account {
	return &account{work: rate.NewLimiter(rate.Limit(a.rate), a.rate*burst), long: make(chan struct{}, 1)}
}

// charge refuses a question by a caller without budget. A question may cost more than the rest of
// the budget: the caller must then wait until the debt is paid off.
func (a *account) charge(work int) error {
	now := time.Now()
	if a.work.TokensAt(now) < 1 {
		wait := time.Duration((1 - a.work.TokensAt(now)) / float64(a.work.Limit()) * float64(time.Second)).Round(time.Millisecond)
		return exhausted(fmt.Sprintf("the work of this caller is used up: try again in %s", wait), wait)
	}
	a.work.ReserveN(now, min(work, a.work.Burst()))
	return nil
}

// exhausted returns an error with the time after which the caller may try again.
func exhausted(why string, wait time.Duration) error {
	err := connect.NewError(connect.CodeResourceExhausted, errors.New(why))
	err.Meta().Set("Retry-After", fmt.Sprint(int(wait/time.Second)+1))
	return err
}
