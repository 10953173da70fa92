package live

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

// Times and names for EvictionRequests. The controller that answers watches them, so seconds are
// enough where it works.
const (
	// answeredWithin is how long nobody may have looked at an EvictionRequest before its pod is
	// evicted directly.
	answeredWithin = 4 * time.Second
	// withdrawnWithin bounds a withdrawal, which also a command that ends waits for.
	withdrawnWithin = 10 * time.Second
	// requesterDomain is that of the names by which Berth asks.
	requesterDomain = "berth.dev/"
	drainRequester  = "drain"
)

// askedError is why an eviction that was asked for has not been made. outcomeOf turns it into the
// outcome Asked. It is no failure, but the caller has to ask again.
type askedError struct{ why string }

func (e askedError) Error() string { return e.why }

// asker asks for evictions by EvictionRequests, where these are served and somebody answers.
//
// An EvictionRequest lets the pod's own responders act before it is evicted. That the API serves it
// does not mean that anybody acts on it: without the controller that answers, a request would stand
// forever. So the first request that is not observed in time ends the use of EvictionRequests, for
// the rest of the process.
type asker struct {
	client kubernetes.Interface
	name   string // of the requester, without its domain
	told   func(why string)

	// Requests are carried out on several goroutines. mu guards the fields below.
	mu sync.Mutex
	// served is set once the API server is known to serve EvictionRequests.
	served bool
	direct bool                    // it is not asked any more
	since  map[types.UID]time.Time // when this process first asked
	// refused are the namespaces in which no EvictionRequests may be created.
	refused map[string]bool
}

// newAsker returns an asker. told is called once, if evictions are made directly from then on. name
// identifies the component: its requests have it in their names and in a label, by which a later
// process finds them.
func newAsker(client kubernetes.Interface, name string, told func(why string)) *asker {
	return &asker{client: client, name: name, told: told, since: map[types.UID]time.Time{}, refused: map[string]bool{}}
}

// isServed reports whether evictions are to be asked for. The API server is asked until it has said
// whether it serves EvictionRequests. An answer is final; an error is not, and evictions are made
// directly meanwhile.
func (a *asker) isServed() bool {
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

// giveUp has evictions be made directly from now on. told is called without the lock, since it may
// call back.
func (a *asker) giveUp(why string) {
	a.mu.Lock()
	first := !a.direct
	a.direct = true
	a.mu.Unlock()
	if first {
		a.told("EvictionRequests are served, but " + why + ": pods are evicted directly")
	}
}

// refuse has evictions in a namespace be made directly from now on: a quota, a policy or missing
// permissions refuse EvictionRequests there. The first namespace is reported.
func (a *asker) refuse(namespace string) {
	a.mu.Lock()
	first := len(a.refused) == 0
	a.refused[namespace] = true
	a.mu.Unlock()
	if first {
		a.told("EvictionRequests may not be created in namespace " + namespace + ": pods there are evicted directly")
	}
}

// isRefused reports whether EvictionRequests are refused in a namespace.
func (a *asker) isRefused(namespace string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.refused[namespace]
}

// ask requests a pod's eviction, or looks after the request that is there, and returns an
// askedError while it stands. With direct the pod is to be evicted without one.
//
// The name of the request is made of the component and the pod's UID: each pod has one of each
// component, and asking again finds it.
func (a *asker) ask(ctx context.Context, e execute.Evict) (direct bool, err error) {
	requests := a.client.LifecycleV1alpha1().EvictionRequests(e.Namespace)
	request := &lifecyclev1alpha1.EvictionRequest{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: e.Namespace, Name: "berth-" + a.name + "-" + string(e.UID), Labels: a.labels(),
			// It goes with the pod, also if this process is killed.
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
	// In a namespace that is being deleted nothing can be created; that says nothing of other
	// namespaces.
	case apierrors.IsForbidden(err) && !apierrors.HasStatusCause(err, v1.NamespaceTerminatingCause):
		a.refuse(e.Namespace)
		return true, nil
	case err != nil:
		return false, err
	}
	return a.followUp(ctx, there, a.firstAsked(e.UID))
}

// labels are on all requests of the component.
func (a *asker) labels() map[string]string { return map[string]string{"berth.dev/requester": a.name} }

// firstAsked returns when this process first asked for the pod: the clock of the API server, in
// creationTimestamp, may differ from ours.
func (a *asker) firstAsked(uid types.UID) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.since[uid].IsZero() {
		a.since[uid] = time.Now()
	}
	return a.since[uid]
}

// followUp looks how far a request is. One that has failed, or that nobody answers, is deleted.
//
//	not observed, younger than answeredWithin    wait
//	not observed, older                          nobody answers: delete it, and evict directly
//	observed, not failed                         wait: a responder is at work
//	failed: the eviction is invalid              delete it, and evict directly
//	failed otherwise                             delete it, and try again later
func (a *asker) followUp(ctx context.Context, r *lifecyclev1alpha1.EvictionRequest, since time.Time) (direct bool, err error) {
	failed := meta.FindStatusCondition(r.Status.Conditions, string(lifecyclev1alpha1.EvictionConditionFailed))
	switch {
	case r.Status.ObservedGeneration == nil && time.Since(since) < answeredWithin:
		return false, askedError{"its eviction has been requested"}
	case r.Status.ObservedGeneration == nil:
		a.giveUp("nobody answers them")
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

// One that has gone, or was replaced, counts as deleted.
func (a *asker) deleteRequest(ctx context.Context, r *lifecyclev1alpha1.EvictionRequest) error {
	err := a.client.LifecycleV1alpha1().EvictionRequests(r.Namespace).Delete(ctx, r.Name,
		metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(r.UID))})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// WithdrawDrains withdraws what drains that were killed have left of requests for the pods of
// nodes. A drain that ends by itself withdraws its own. Requests for pods that have gone need
// nothing: they go with their pods.
func WithdrawDrains(ctx context.Context, client kubernetes.Interface, nodes []string) error {
	a := newAsker(client, drainRequester, nil)
	if !a.isServed() {
		return nil
	}
	return a.withdraw(ctx, func(namespace string, of *lifecyclev1alpha1.EvictionRequestPodReference) bool {
		p, err := client.CoreV1().Pods(namespace).Get(ctx, of.Name, metav1.GetOptions{})
		return err == nil && p.UID == of.UID && slices.Contains(nodes, p.Spec.NodeName)
	})
}

// withdraw deletes the requests for these pods, by this process or an earlier one. It goes on after
// an error, and returns all of them: each request that is left evicts a pod.
func (a *asker) withdraw(ctx context.Context, which func(namespace string, of *lifecyclev1alpha1.EvictionRequestPodReference) bool) error {
	ctx, cancel := context.WithTimeout(ctx, withdrawnWithin)
	defer cancel()
	selector := metav1.FormatLabelSelector(&metav1.LabelSelector{MatchLabels: a.labels()})
	list, err := a.client.LifecycleV1alpha1().EvictionRequests("").List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return err
	}

	for i := range list.Items {
		if r := &list.Items[i]; r.Spec.Target.Pod != nil && which(r.Namespace, r.Spec.Target.Pod) {
			err = errors.Join(err, a.deleteRequest(ctx, r))
		}
	}
	return err
}
