// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package requestcontroller

import (
	"context"
	"encoding/json"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/controller/evictionrequest"
	"github.com/berth-k8s/berth/internal/kube/feed"
	"github.com/berth-k8s/berth/internal/kube/loglimit"
	"github.com/berth-k8s/berth/internal/kube/loop"
	"github.com/berth-k8s/berth/internal/kube/outcome"
	"github.com/berth-k8s/berth/internal/pacing"
	"github.com/berth-k8s/berth/internal/response"
)

// Name is the controller's name in the API and in --controllers.
const Name = "evictionrequest-controller"

// servedAgain is the interval between checks for an API not served by the API server.
const servedAgain = time.Minute

// servedSoon are the intervals between checks after other failures.
var servedSoon = pacing.Backoff{First: time.Second, Last: 5 * time.Second}

// Controller responds to EvictionRequests: it runs the Core in a loop (package loop). The API is
// alpha and off by default, so most API servers do not serve it; then the controller waits, and
// counts as synced.
type Controller struct {
	*loop.Loop[evictionrequest.Event, evictionrequest.Action]
	requests *requests
	wall     time.Time      // the wall-clock time of this step
	listed   [3]atomic.Bool // by kind
	unserved atomic.Bool    // at the last try, the API was not served
}

// New returns a controller. The client should have no rate limit: the requests in flight are
// bounded.
func New(client kubernetes.Interface) *Controller {
	c := &Controller{
		Loop: loop.New[evictionrequest.Event, evictionrequest.Action](Name), requests: &requests{client: client},
	}
	// The loop's clock is never adjusted, but the times written into objects must be wall-clock
	// times.
	core := evictionrequest.New(evictionrequest.Options{Wall: func(time.Time) time.Time { return c.wall }})
	c.Tick, c.Wake = evictionrequest.Tick{}, loop.Idle(core.Wake)
	c.Step = func(now time.Time, event evictionrequest.Event) []evictionrequest.Action {
		c.wall = time.Now().Round(0).UTC()
		return core.Step(now, event)
	}
	c.Do = func(_ context.Context, action evictionrequest.Action) func(context.Context) evictionrequest.Event {
		return func(ctx context.Context) evictionrequest.Event { return c.requests.carryOut(ctx, action) }
	}
	return c
}

// Synced reports whether all kinds have been listed, or the API is not served.
func (c *Controller) Synced() bool {
	return c.unserved.Load() || c.listed[0].Load() && c.listed[1].Load() && c.listed[2].Load()
}

// Run responds to requests until the context ends, and returns once nothing is in flight. Run must
// be called only once.
func (c *Controller) Run(ctx context.Context) {
	if c.waitServed(ctx) {
		c.Loop.Run(ctx, c.feeds()...)
	}
}

// waitServed waits until EvictionRequests can be listed. It returns false only if the context ends
// first. If the API is not served, or the permission to read it is missing, waitServed logs this
// once.
func (c *Controller) waitServed(ctx context.Context) bool {
	said := false
	for tries := 1; ctx.Err() == nil; tries++ {
		_, err := c.requests.client.LifecycleV1alpha1().EvictionRequests("").List(ctx, metav1.ListOptions{Limit: 1})
		c.unserved.Store(apierrors.IsNotFound(err))

		wait := servedAgain
		switch {
		case err == nil:
			return true
		// The API server is unavailable, so it may serve the API.
		case !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err):
			wait = servedSoon.After(tries, Name)
		case !said:
			klog.FromContext(ctx).Info("EvictionRequests are not answered: they cannot be listed", "err", err)
			said = true
		}

		pacing.Sleep(ctx, wait)
	}
	return false
}

// feeds returns functions that feed the core with all requests, Evictions and pods. Requests and
// Evictions are copied, because the core keeps them, and an object of a list would keep its whole
// page in memory. Of a pod, the core gets only a few fields.
func (c *Controller) feeds() []func(context.Context) {
	lifecycle, core := c.requests.client.LifecycleV1alpha1().RESTClient(), c.requests.client.CoreV1().RESTClient()
	follow := func(kind evictionrequest.Kind, source feed.Source, seen, gone func(runtime.Object)) func(context.Context) {
		sink := feed.Sink{
			Listing: func() { c.See(evictionrequest.Listing{Kind: kind}) },
			Listed:  func() { c.See(evictionrequest.Listed{Kind: kind}); c.listed[kind].Store(true) },
			Seen:    seen, Gone: gone,
		}
		return func(ctx context.Context) { feed.Run(ctx, source, sink) }
	}

	// Pods without a node are included, because a request may be for any pod.
	pods := feed.Of(core, "", "pods", func() runtime.Object { return &v1.PodList{} })
	return []func(context.Context){
		follow(evictionrequest.Requests,
			feed.Of(lifecycle, "", "evictionrequests", func() runtime.Object { return &lifecyclev1alpha1.EvictionRequestList{} }),
			func(o runtime.Object) {
				c.Show(evictionrequest.RequestSeen{Request: o.DeepCopyObject().(*lifecyclev1alpha1.EvictionRequest)}, feed.SizeOf(o))
			},
			func(o runtime.Object) {
				c.See(evictionrequest.RequestGone{Request: o.(*lifecyclev1alpha1.EvictionRequest)})
			}),
		follow(evictionrequest.Evictions,
			feed.Of(lifecycle, "", "evictions", func() runtime.Object { return &lifecyclev1alpha1.EvictionList{} }),
			func(o runtime.Object) {
				c.Show(evictionrequest.EvictionSeen{Eviction: o.DeepCopyObject().(*lifecyclev1alpha1.Eviction)}, feed.SizeOf(o))
			},
			func(o runtime.Object) { c.See(evictionrequest.EvictionGone{Eviction: o.(*lifecyclev1alpha1.Eviction)}) }),
		follow(evictionrequest.Pods, pods,
			func(o runtime.Object) {
				c.Show(evictionrequest.PodSeen{Pod: evictionrequest.PodOf(o.(*v1.Pod))}, feed.SizeOf(o))
			},
			func(o runtime.Object) {
				p := o.(*v1.Pod)
				c.See(evictionrequest.PodGone{Name: types.NamespacedName{Namespace: p.Namespace, Name: p.Name}, UID: p.UID})
			}),
	}
}

// answerWithin bounds a request. It exceeds the API server's own limit (--request-timeout, a
// minute). An unreachable webhook takes up to 30 s of that.
const answerWithin = 65 * time.Second

// requests carries out the core's requests. client-go does not retry evictions, because the core
// decides about retries.
type requests struct {
	client    kubernetes.Interface // without a rate limit
	complaint loglimit.Line        // limits the log lines about failed requests
}

// carryOut sends one request, and returns a response with its ticket in any case.
func (r *requests) carryOut(ctx context.Context, action evictionrequest.Action) evictionrequest.Answered {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	api := r.client.LifecycleV1alpha1()
	answer, err := evictionrequest.Answered{Ticket: response.TicketOf(action)}, error(nil)
	switch a := action.(type) {
	case evictionrequest.ReadPod:
		answer.Pod, err = r.readPod(ctx, a)
	case evictionrequest.Evict:
		err = r.evictPod(ctx, a)
	case evictionrequest.Create:
		var made *lifecyclev1alpha1.Eviction
		// The name is derived from the pod's UID, so an existing Eviction is the intended one. It
		// was created by a request with a lost response, or by another process.
		if made, err = api.Evictions(a.Eviction.Namespace).Create(ctx, a.Eviction, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
			made, err = api.Evictions(a.Eviction.Namespace).Get(ctx, a.Eviction.Name, metav1.GetOptions{})
		}
		answer.Written = made
	case evictionrequest.Label:
		answer.Written, err = r.labelEviction(ctx, a.Eviction)
	case evictionrequest.WriteEviction:
		answer.Written, err = api.Evictions(a.Eviction.Namespace).UpdateStatus(ctx, a.Eviction, metav1.UpdateOptions{})
	case evictionrequest.WriteRequest:
		answer.Written, err = api.EvictionRequests(a.Request.Namespace).UpdateStatus(ctx, a.Request, metav1.UpdateOptions{})
	case evictionrequest.Delete:
		err = api.Evictions(a.Eviction.Namespace).Delete(ctx, a.Eviction.Name,
			metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(a.Eviction.UID))})
	}
	if err == nil {
		return answer
	}

	// client-go returns an empty object with an error; the core must not mistake it for the current
	// object.
	answer.Written, answer.Outcome, answer.Message = nil, outcome.Of(err), err.Error()
	answer.RetryAfter = outcome.RetryAfter(err)
	if (answer.Outcome == response.Failed || answer.Outcome == response.Refused) && ctx.Err() == nil && r.complaint.Due() {
		klog.FromContext(ctx).Info("Request failed, will try again", "request", action, "err", err)
	}
	return answer
}

// readPod returns the pod with the name, or NotFound if the name now belongs to a pod with another
// UID.
func (r *requests) readPod(ctx context.Context, a evictionrequest.ReadPod) (*evictionrequest.Pod, error) {
	p, err := r.client.CoreV1().Pods(a.Name.Namespace).Get(ctx, a.Name.Name, metav1.GetOptions{})
	switch {
	case err != nil:
		return nil, err
	case p.UID != a.UID:
		// Another pod has the name; the intended one no longer exists.
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, a.Name.Name)
	}
	return new(evictionrequest.PodOf(p)), nil
}

// evictPod evicts through the Eviction API. The UID is a precondition, which protects another pod
// of the same name. The error contains the budget's reason, which becomes visible to requesters.
func (r *requests) evictPod(ctx context.Context, a evictionrequest.Evict) error {
	return r.client.CoreV1().RESTClient().Post().Namespace(a.Name.Namespace).Resource("pods").Name(a.Name.Name).SubResource("eviction").
		MaxRetries(0).Body(&policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: a.Name.Namespace, Name: a.Name.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(a.UID))},
	}).Do(ctx).Error()
}

// labelEviction merges the labels into the labels of the Eviction, unless the Eviction has changed
// since.
func (r *requests) labelEviction(ctx context.Context, e *lifecyclev1alpha1.Eviction) (*lifecyclev1alpha1.Eviction, error) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": e.UID, "resourceVersion": e.ResourceVersion, "labels": e.Labels,
	}})
	if err != nil {
		return nil, err
	}
	return r.client.LifecycleV1alpha1().Evictions(e.Namespace).Patch(ctx, e.Name, types.MergePatchType, patch, metav1.PatchOptions{})
}
