// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package requestcontroller

import (
	"context"
	"encoding/json"
	"time"

	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/controller/evictionrequest"
	"github.com/berth-k8s/berth/internal/kube/loglimit"
	"github.com/berth-k8s/berth/internal/kube/outcome"
	"github.com/berth-k8s/berth/internal/response"
)

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
	var answer evictionrequest.Answered
	var err error
	switch a := action.(type) {
	case evictionrequest.ReadPod:
		answer.Ticket = a.Ticket
		answer.Pod, err = r.readPod(ctx, a)
	case evictionrequest.Evict:
		answer.Ticket = a.Ticket
		err = r.evictPod(ctx, a)
	case evictionrequest.Create:
		answer.Ticket = a.Ticket
		var made *lifecyclev1alpha1.Eviction
		// The name is derived from the pod's UID, so an existing Eviction is the intended one. It
		// was created by a request with a lost response, or by another process.
		if made, err = api.Evictions(a.Eviction.Namespace).Create(ctx, a.Eviction, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
			made, err = api.Evictions(a.Eviction.Namespace).Get(ctx, a.Eviction.Name, metav1.GetOptions{})
		}
		answer.Written = made
	case evictionrequest.Label:
		answer.Ticket = a.Ticket
		answer.Written, err = r.labelEviction(ctx, a.Eviction)
	case evictionrequest.WriteEviction:
		answer.Ticket = a.Ticket
		answer.Written, err = api.Evictions(a.Eviction.Namespace).UpdateStatus(ctx, a.Eviction, metav1.UpdateOptions{})
	case evictionrequest.WriteRequest:
		answer.Ticket = a.Ticket
		answer.Written, err = api.EvictionRequests(a.Request.Namespace).UpdateStatus(ctx, a.Request, metav1.UpdateOptions{})
	case evictionrequest.Delete:
		answer.Ticket = a.Ticket
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
	pod := evictionrequest.PodOf(p)
	return &pod, nil
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
