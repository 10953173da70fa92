package volumes

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// tokens are the service account tokens of pods, until they are replaced.
type tokens struct {
	request func(ctx context.Context, namespace, serviceAccount string, request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error)

	mu    sync.Mutex
	cache map[string]*authenticationv1.TokenRequest // by tokenKey
}

// get returns a token as requested: the existing one as long as it is fresh, then a new one. If no
// new one can be had, the old one is used until it expires.
func (t *tokens) get(ctx context.Context, namespace, serviceAccount string, request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	key := tokenKey(namespace, serviceAccount, request)
	t.mu.Lock()
	held := t.cache[key]
	t.mu.Unlock()
	if held != nil && !isOld(held, time.Now()) {
		return held, nil
	}
	if t.request == nil {
		return nil, errors.New("cannot use TokenManager when kubelet is in standalone mode")
	}
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	fresh, err := t.request(limited, namespace, serviceAccount, request)
	switch {
	case err == nil:
		t.mu.Lock()
		t.cache[key] = fresh
		t.mu.Unlock()
		return fresh, nil
	case held == nil:
		return nil, fmt.Errorf("failed to fetch token: %w", err)
	case time.Now().After(held.Status.ExpirationTimestamp.Time):
		return nil, fmt.Errorf("token %s expired and refresh failed: %w", key, err)
	}
	klog.FromContext(ctx).Error(err, "A token could not be renewed; the old one serves on until it ends", "token", key, "ends", held.Status.ExpirationTimestamp)
	return held, nil
}

// Token returns a token of a service account for a pod, as requested.
func (m *Manager) Token(ctx context.Context, namespace, serviceAccount string, request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	return m.tokens.get(ctx, namespace, serviceAccount, request)
}

// forget drops the tokens of a pod that is gone.
func (t *tokens) forget(uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, token := range t.cache {
		if token.Spec.BoundObjectRef != nil && token.Spec.BoundObjectRef.UID == uid {
			delete(t.cache, key)
		}
	}
}

// patience bounds the request: the pod's volumes are locked meanwhile.
const patience = 10 * time.Second

const (
	oldest = 24 * time.Hour   // no token is kept longer, whatever its expiry
	jitter = 10 * time.Second // so that not all pods of a Deployment ask at once
)

// isOld reports whether it is time for a new token: four fifths of its life are over, or a day.
func isOld(token *authenticationv1.TokenRequest, now time.Time) bool {
	if token.Spec.ExpirationSeconds == nil {
		return false
	}
	life := time.Duration(*token.Spec.ExpirationSeconds) * time.Second
	end := token.Status.ExpirationTimestamp.Time
	early := now.Add(rand.N(jitter))
	return early.After(end.Add(-life/5)) || early.After(end.Add(oldest-life))
}

// tokenKey identifies a request, without anything secret.
func tokenKey(namespace, serviceAccount string, request *authenticationv1.TokenRequest) string {
	var seconds int64
	if request.Spec.ExpirationSeconds != nil {
		seconds = *request.Spec.ExpirationSeconds
	}
	return fmt.Sprintf("%s/%s for pod %s, audiences [%s], %ds", namespace, serviceAccount, request.Spec.BoundObjectRef.UID, strings.Join(request.Spec.Audiences, " "), seconds)
}
