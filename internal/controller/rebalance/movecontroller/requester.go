// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package movecontroller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
)

// Times and names for EvictionRequests. The EvictionRequest controller watches EvictionRequests, so
// it responds within seconds.
const (
	// answeredWithin is the time an EvictionRequest may remain unobserved before its pod is evicted
	// directly.
	answeredWithin = 4 * time.Second
	// withdrawnWithin bounds a withdrawal, including the one on exit of a command.
	withdrawnWithin = 10 * time.Second
	// requesterDomain is the domain of Berth's requester names.
	requesterDomain = "berth.dev/"
	drainRequester  = "drain"
)

// askedError is the reason a requested eviction has not been made. outcomeOf maps it to the outcome
// Asked. It is not a failure, but the caller must repeat the request.
type askedError struct{ why string }

func (e askedError) Error() string { return e.why }

// requester evicts pods through EvictionRequests if these are served and have a controller.
//
// An EvictionRequest lets the pod's own responders act before it is evicted. The API may serve
// EvictionRequests without a controller acting on them, and a request would then never complete. So
// the first request not observed in time ends the use of EvictionRequests for the rest of the
// process.
type requester struct {
	client     kubernetes.Interface
	name       string // requester's name, without its domain
	onFallback func(why string)

	// Requests run on several goroutines. mu guards the fields below.
	mu sync.Mutex
	// served is set once the API server is known to serve EvictionRequests.
	served bool
	direct bool                    // EvictionRequests are no longer used
	since  map[types.UID]time.Time // time of this process's first request, by pod
	// refused holds the namespaces that forbid EvictionRequests.
	refused map[string]bool
}

// newRequester returns a requester. The requester calls the function told when it switches to
// direct evictions, and when a namespace refuses EvictionRequests for the first time. name
// identifies the component: it is part of the names of its requests and the value of their label,
// so that a later process can find them.
func newRequester(client kubernetes.Interface, name string, told func(why string)) *requester {
	return &requester{client: client, name: name, onFallback: told, since: map[types.UID]time.Time{}, refused: map[string]bool{}}
}

// isServed reports whether the API server serves EvictionRequests. It queries the server until the
// first definite response, which is final; after an error, evictions are made directly in the
// meantime.
func (a *requester) isServed() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.served || a.direct {
		return !a.direct
	}
	list, err := a.client.Discovery().ServerResourcesForGroupVersion(lifecyclev1alpha1.SchemeGroupVersion.String())
	if err == nil {
		for i := range list.APIResources {
			a.served = a.served || list.APIResources[i].Name == "evictionrequests"
		}
	}
	a.direct = (err == nil || apierrors.IsNotFound(err)) && !a.served
	return a.served
}

// giveUp switches to direct evictions. onFallback is called without the lock, because it may call
// the requester.
func (a *requester) giveUp(why string) {
	a.mu.Lock()
	first := !a.direct
	a.direct = true
	a.mu.Unlock()
	if first {
		a.onFallback("EvictionRequests are served, but " + why + ": pods are evicted directly")
	}
}

// refuse switches a namespace to direct evictions: a quota, a policy or missing permissions forbid
// EvictionRequests there. The first such namespace is reported.
func (a *requester) refuse(namespace string) {
	a.mu.Lock()
	first := len(a.refused) == 0
	a.refused[namespace] = true
	a.mu.Unlock()
	if first {
		a.onFallback("EvictionRequests may not be created in namespace " + namespace + ": pods there are evicted directly")
	}
}

// isRefused reports whether EvictionRequests are refused in a namespace.
func (a *requester) isRefused(namespace string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.refused[namespace]
}

// ask requests a pod's eviction, or checks on the existing request, and returns an askedError while
// it is pending. If direct is true, the pod must be evicted without a request.
//
// The request's name consists of the component and the pod's UID: a pod has one request per
// component, and repeating the call finds it.
func (a *requester) ask(ctx context.Context, e execute.Evict) (direct bool, err error) {
	requests := a.client.LifecycleV1alpha1().EvictionRequests(e.Namespace)
	request := &lifecyclev1alpha1.EvictionRequest{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: e.Namespace, Name: "berth-" + a.name + "-" + string(e.UID), Labels: a.labels(),
			// The request is deleted with the pod, even if this process is killed.
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: e.Name, UID: e.UID}},
		},
		Spec: lifecyclev1alpha1.EvictionRequestSpec{
			Requester: requesterDomain + a.name, Intent: lifecyclev1alpha1.EvictionRequestIntentEviction,
			Target: lifecyclev1alpha1.EvictionRequestTarget{Pod: &lifecyclev1alpha1.EvictionRequestPodReference{Name: e.Name, UID: e.UID}},
		},
	}

	there, err := requests.Create(ctx, request, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		there, err = requests.Get(ctx, request.Name, metav1.GetOptions{})
	}
	switch {
	// A terminating namespace rejects all creations, so its Forbidden error does not mean that
	// EvictionRequests are refused.
	case apierrors.IsForbidden(err) && !apierrors.HasStatusCause(err, v1.NamespaceTerminatingCause):
		a.refuse(e.Namespace)
		return true, nil
	case err != nil:
		return false, err
	}
	return a.followUp(ctx, there, a.firstAsked(e.UID))
}

// labels are on all requests of the component.
func (a *requester) labels() map[string]string {
	return map[string]string{"berth.dev/requester": a.name}
}

// firstAsked returns the time of this process's first request for the pod. It does not use
// creationTimestamp, because the API server's clock may differ.
func (a *requester) firstAsked(uid types.UID) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.since[uid].IsZero() {
		a.since[uid] = time.Now()
	}
	return a.since[uid]
}

// followUp checks the progress of a request. It deletes a failed request, and a request that was
// not observed in time.
//
//	not observed, younger than answeredWithin    wait
//	not observed, older                          no controller: delete it, and evict directly
//	observed, not failed                         wait: a responder is at work
//	failed: the eviction is invalid              delete it, and evict directly
//	failed otherwise                             delete it, and try again later
func (a *requester) followUp(ctx context.Context, r *lifecyclev1alpha1.EvictionRequest, since time.Time) (direct bool, err error) {
	failed := meta.FindStatusCondition(r.Status.Conditions, string(lifecyclev1alpha1.EvictionConditionFailed))
	switch {
	case r.Status.ObservedGeneration == nil && time.Since(since) < answeredWithin:
		return false, askedError{"its eviction has been requested"}
	case r.Status.ObservedGeneration == nil:
		a.giveUp("no responder answers them")
		return true, a.deleteRequest(ctx, r)
	case failed == nil:
		return false, askedError{"its eviction has been requested"}
	case failed.Status != metav1.ConditionTrue:
		return false, askedError{failed.Message}
	}

	if err := a.deleteRequest(ctx, r); err != nil {
		return false, err
	}
	if failed.Reason == string(lifecyclev1alpha1.EvictionConditionReasonEvictionInvalid) {
		return true, nil
	}
	return false, apierrors.NewTooManyRequests(fmt.Sprintf("its EvictionRequest failed: %s: %s", failed.Reason, failed.Message), 0)
}

// deleteRequest deletes a request. A missing or replaced request counts as deleted.
func (a *requester) deleteRequest(ctx context.Context, r *lifecyclev1alpha1.EvictionRequest) error {
	err := a.client.LifecycleV1alpha1().EvictionRequests(r.Namespace).Delete(ctx, r.Name,
		metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(r.UID))})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// WithdrawDrains withdraws the requests of killed drains for pods on the given nodes. A drain that
// exits normally withdraws its own requests. Requests for deleted pods are garbage-collected with
// their pods.
func WithdrawDrains(ctx context.Context, client kubernetes.Interface, nodes []string) error {
	a := newRequester(client, drainRequester, nil)
	if !a.isServed() {
		return nil
	}
	return a.withdraw(ctx, func(namespace string, of *lifecyclev1alpha1.EvictionRequestPodReference) bool {
		p, err := client.CoreV1().Pods(namespace).Get(ctx, of.Name, metav1.GetOptions{})
		return err == nil && p.UID == of.UID && slices.Contains(nodes, p.Spec.NodeName)
	})
}

// withdraw deletes the requests of this component, including those of earlier processes, for the
// pods for which match returns true. It continues after errors and returns all of them, because
// each remaining request evicts a pod.
func (a *requester) withdraw(ctx context.Context, match func(namespace string, of *lifecyclev1alpha1.EvictionRequestPodReference) bool) error {
	ctx, cancel := context.WithTimeout(ctx, withdrawnWithin)
	defer cancel()
	selector := metav1.FormatLabelSelector(&metav1.LabelSelector{MatchLabels: a.labels()})
	list, err := a.client.LifecycleV1alpha1().EvictionRequests("").List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return err
	}

	for i := range list.Items {
		if r := &list.Items[i]; r.Spec.Target.Pod != nil && match(r.Namespace, r.Spec.Target.Pod) {
			err = errors.Join(err, a.deleteRequest(ctx, r))
		}
	}
	return err
}
