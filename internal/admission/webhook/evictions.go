// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/admission/evictionguard"
)

// mostHeld bounds the remembered evictions. Beyond it, evictions are admitted.
const mostHeld = 20_000

// evictions holds evictions until the controller has started a replacement. Every failure admits
// the eviction: without the guard, it would have been made.
type evictions struct {
	client  kubernetes.Interface
	metrics *instruments
	now     func() time.Time
	options evictionguard.Options

	mu    sync.Mutex
	first map[types.UID]sighting // first eviction of a guarded pod, as seen by this replica
	// alive is the time of the last new status. A controller that works off many evictions reports
	// the statuses of some pods late.
	alive time.Time
}

// sighting is the first eviction of a pod.
type sighting struct {
	at       time.Time
	answered bool // the pod has a status
	recorded time.Time
}

// recordsEvery is the time between two records of evictions of a pod.
const recordsEvery = time.Second

// judgeEviction decides about the creation of an Eviction.
func (e *evictions) judgeEviction(ctx context.Context, request *admissionv1.AdmissionRequest) (*admissionv1.AdmissionResponse, error) {
	if request.Operation != admissionv1.Create || request.Resource.Resource != "pods" || request.SubResource != "eviction" {
		return allowResponse(), nil
	}
	var eviction policyv1.Eviction
	if err := json.Unmarshal(request.Object.Raw, &eviction); err != nil {
		return nil, badRequest{fmt.Errorf("read eviction: %w", err)}
	}
	if ptr.Deref(request.DryRun, false) || eviction.DeleteOptions != nil && len(eviction.DeleteOptions.DryRun) > 0 ||
		eviction.Annotations[evictionguard.ReplacedAnnotation] == "true" {
		return e.admit("exempt"), nil
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	pod, err := e.client.CoreV1().Pods(request.Namespace).Get(ctx, request.Name, metav1.GetOptions{})
	unread := types.UID(request.Namespace + "/" + request.Name) // no UID has a slash
	if passes(err) {
		if first, _, ok := e.firstOf(unread, false); ok && e.now().Sub(first) < recordsWithin {
			return e.hold("the API server is slow; retry"), nil
		}
	}
	if err != nil {
		return e.admitAfter(ctx, request, err), nil
	}
	e.forget(unread)
	if !e.options.Holds(pod) {
		return e.admit("unguarded"), nil
	}
	first, alive, ok := e.firstOf(pod.UID, pod.Annotations[evictionguard.StatusAnnotation] != "")
	if !ok {
		return e.admit("bound"), nil
	}
	verdict := e.options.Judge(pod, e.now(), first, alive)
	switch {
	case verdict.Admit:
		return e.admit(verdict.Reason), nil
	case verdict.Deny:
		e.metrics.evictions.WithLabelValues("denied").Inc()
		return denyResponse(apierrors.NewForbidden(v1.Resource("pods"), pod.Name, errors.New(verdict.Message)).Status()), nil
	}
	if record := verdict.Records(e.now()); record != nil && e.recordsNow(pod.UID) {
		err := e.recordRequest(ctx, pod, record)
		if err != nil && verdict.First && !(passes(err) && e.now().Sub(first) < recordsWithin) {
			return e.admitAfter(ctx, request, err), nil
		}
	}
	return e.hold(verdict.Message), nil
}

// hold refuses an eviction for now. No delay is suggested: client-go would repeat the request
// within the same call, out of the evictor's control.
func (e *evictions) hold(message string) *admissionv1.AdmissionResponse {
	e.metrics.evictions.WithLabelValues("held").Inc()
	return denyResponse(apierrors.NewTooManyRequests(message, 0).Status())
}

// A slow API server does not admit an eviction: the evictor's next attempts record it.
const (
	answerTimeout = 3 * time.Second  // so that the eviction is answered within evictionTimeout
	recordsWithin = 30 * time.Second // time within which an eviction is recorded, or else admitted
)

// passes reports whether an error of a request is likely to pass.
func passes(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) ||
		apierrors.IsConflict(err) || apierrors.IsTooManyRequests(err) || apierrors.IsInternalError(err) || apierrors.IsServiceUnavailable(err)
}

// recordsNow reports whether an eviction of a pod may be recorded. It bounds the writes for a pod
// that is evicted very often.
func (e *evictions) recordsNow(uid types.UID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	seen := e.first[uid]
	if e.now().Sub(seen.recorded) < recordsEvery {
		return false
	}
	seen.recorded = e.now()
	e.first[uid] = seen
	return true
}

// recordRequest records an eviction in annotations of the pod.
func (e *evictions) recordRequest(ctx context.Context, pod *v1.Pod, annotations map[string]any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID, "annotations": annotations}})
	if err != nil {
		return err
	}
	_, err = e.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// forget removes a remembered eviction.
func (e *evictions) forget(key types.UID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.first, key)
}

// firstOf returns the time of the pod's first eviction, and records it, and the time at which the
// controller was last seen alive; answered states that the pod has a status. ok is false if there
// are too many evictions to remember. Evictions older than twice the deadline are forgotten.
func (e *evictions) firstOf(uid types.UID, answered bool) (first, alive time.Time, ok bool) {
	now := e.now()
	e.mu.Lock()
	defer e.mu.Unlock()
	seen, ok := e.first[uid]
	switch {
	case ok && now.Sub(seen.at) < 2*e.options.Deadline:
		if answered && !seen.answered {
			e.alive = now
		}
		seen.answered = answered
		e.first[uid] = seen
		return seen.at, e.alive, true
	case len(e.first) >= mostHeld:
		maps.DeleteFunc(e.first, func(_ types.UID, seen sighting) bool { return now.Sub(seen.at) >= 2*e.options.Deadline })
		if len(e.first) >= mostHeld {
			return now, e.alive, false
		}
	}
	e.first[uid] = sighting{at: now, answered: answered}
	return now, e.alive, true
}

// admit lets an eviction pass.
func (e *evictions) admit(reason string) *admissionv1.AdmissionResponse {
	e.metrics.evictions.WithLabelValues(reason).Inc()
	return allowResponse()
}

// admitAfter lets an eviction pass because the pod cannot be read or written. The API server
// reports a missing pod itself.
func (e *evictions) admitAfter(ctx context.Context, request *admissionv1.AdmissionRequest, err error) *admissionv1.AdmissionResponse {
	if apierrors.IsNotFound(err) {
		return e.admit("unguarded")
	}
	if unanswered.Due() {
		klog.FromContext(ctx).Error(err, "Eviction not guarded", "pod", klog.KRef(request.Namespace, request.Name))
	}
	return e.admit("failed")
}
