// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
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

// longestKey and longestMessage bound the memory for one eviction. No pod has a longer name.
const longestKey, longestMessage = 63 + 1 + 253, 512

// evictions holds evictions until the controller has started a replacement. Every failure admits
// the eviction: without the guard, it would have been made.
type evictions struct {
	client  kubernetes.Interface
	metrics *instruments
	now     func() time.Time
	options evictionguard.Options

	mu    sync.Mutex
	first map[string]sighting // evictions of guarded pods, by namespace/name
	// alive is the time of the last new status, or of the last request that timed out. A controller
	// reports the statuses of some pods late if it works off many evictions, or if the API server
	// is slow.
	alive time.Time

	all    *rate.Limiter     // of reads beyond the first ones of each namespace
	firsts *rate.Limiter     // of the first reads of all namespaces
	shares map[string]*share // of reads, by namespace
	under  int               // evictions whose pods are being read or written
}

// share limits the reads for the evictions of a namespace.
type share struct {
	*rate.Limiter
	first   *rate.Limiter // of reads that other namespaces do not take
	under   int           // evictions whose pods are being read or written
	spacing time.Duration // between reads of a pod: longer in a mass eviction, so that all pods have their turn
	widened time.Time
}

// sighting holds the evictions of a guarded pod, as seen by this replica.
type sighting struct {
	uid      types.UID // empty until the pod has been read
	at       time.Time // the first eviction
	answered bool      // the pod has a status
	read     time.Time
	failing  time.Time // the first attempt since the last success of a read and its record; zero without one
	message  string    // the last refusal
}

// Bounds of the requests that evictions cause. An eviction beyond them is refused without a
// request, so that neither a mass eviction nor a tenant that evicts all the time delays other
// evictions, or keeps the API server from its work.
const (
	readsEvery = time.Second      // the least spacing
	readsTurn  = 30 * time.Second // the most spacing, shorter than evictionguard.RepeatsWithin
	// readsOfOne and burstOfOne bound the reads for a namespace, per second and initially; the
	// bounds of all namespaces are twice as high. firstReads and firstBurst of a namespace's reads
	// have bounds of their own, so that a tenant with several namespaces leaves some to others.
	readsOfOne, burstOfOne = 40, 200
	firstReads, firstBurst = 2, 10
	// mostOfOne bounds the evictions of a namespace whose pods are being read or written. mostUnder
	// is the bound of all, fewer than the reviews of one API server that are answered at a time.
	mostOfOne, mostUnder = 16, 32
	mostShares           = 10_000
	crowdedMessage       = "many evictions are held; retry"
)

// newEvictions returns evictions with nothing held.
func newEvictions(client kubernetes.Interface, metrics *instruments, now func() time.Time, options evictionguard.Options) *evictions {
	return &evictions{client: client, metrics: metrics, now: now, options: options, first: map[string]sighting{},
		all: rate.NewLimiter(2*readsOfOne, 2*burstOfOne), firsts: rate.NewLimiter(2*readsOfOne, 2*burstOfOne), shares: map[string]*share{}}
}

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
	key := request.Namespace + "/" + request.Name
	if len(key) > longestKey { // the API server calls admission before it looks for the pod
		return e.admit("unguarded"), nil
	}
	seen, answer := e.begin(key, request.Namespace)
	if answer != nil {
		return answer, nil
	}
	defer e.end(key, request.Namespace, &seen)
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	pod, err := e.client.CoreV1().Pods(request.Namespace).Get(ctx, request.Name, metav1.GetOptions{})
	if err != nil {
		patience := e.patienceWith(err)
		if e.now().Sub(seen.failing) < patience {
			return e.hold(&seen, "the API server is slow; retry"), nil
		}
		if patience == 0 {
			seen = sighting{} // is forgotten
		}
		return e.admitAfter(ctx, request, err), nil
	}

	if !e.options.Holds(pod) {
		seen = sighting{}
		return e.admit("unguarded"), nil
	}
	verdict := e.options.Judge(pod, e.now(), seen.at, e.observe(&seen, pod))
	if !verdict.First { // no record can fail
		seen.failing = time.Time{}
	}
	switch {
	case verdict.Admit:
		seen.read = time.Time{} // a budget may refuse the eviction, and the next one is judged again
		return e.admit(verdict.Reason), nil
	case verdict.Deny: // again, if the request cannot be removed
		seen.at = e.now()
		_ = e.recordRequest(ctx, pod, verdict.Records(e.now()))
		e.metrics.evictions.WithLabelValues("denied").Inc()
		return denyResponse(apierrors.NewForbidden(v1.Resource("pods"), pod.Name, errors.New(verdict.Message)).Status()), nil
	}
	if record := verdict.Records(e.now()); record != nil {
		if err := e.recordRequest(ctx, pod, record); err != nil && verdict.First {
			if e.now().Sub(seen.failing) < e.patienceWith(err) {
				return e.hold(&seen, verdict.Message), nil
			}
			return e.admitAfter(ctx, request, err), nil
		}
	}
	seen.failing = time.Time{}
	return e.hold(&seen, verdict.Message), nil
}

// hold refuses an eviction for now. No delay is suggested: client-go would repeat the request
// within the same call, out of the evictor's control.
func (e *evictions) hold(seen *sighting, message string) *admissionv1.AdmissionResponse {
	seen.message = strings.Clone(strings.ToValidUTF8(message[:min(len(message), longestMessage)], ""))
	e.metrics.evictions.WithLabelValues("held").Inc()
	return denyResponse(apierrors.NewTooManyRequests(message, 0).Status())
}

const (
	answerTimeout = 1500 * time.Millisecond // so that the eviction is answered within evictionTimeout by far
	recordsWithin = time.Minute             // from the first failed attempt until an eviction is admitted without a record
)

// patienceWith returns for how long evictions of a pod are held that cannot be recorded because of
// an error. A slow API server does not admit evictions before their deadline: with hundreds of
// drains, the evictions themselves make it slow. Nor does it count against the controller.
func (e *evictions) patienceWith(err error) time.Duration {
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled), apierrors.IsTimeout(err),
		apierrors.IsServerTimeout(err), apierrors.IsTooManyRequests(err):
		e.mu.Lock()
		defer e.mu.Unlock()
		e.alive = e.now()
		return e.options.Deadline
	case apierrors.IsConflict(err), apierrors.IsInternalError(err), apierrors.IsServiceUnavailable(err):
		return recordsWithin
	}
	return 0
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

// begin returns what is known about the evictions of a pod, and counts a read of it, which lasts
// until end. It returns an answer if the pod is not to be read now. After the deadline a pod is
// read beyond the bounds of a second. Evictions older than twice the deadline are forgotten, and in
// a flood also those of pods that were never read.
func (e *evictions) begin(key, namespace string) (seen sighting, answer *admissionv1.AdmissionResponse) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.now()
	old := func(s sighting) bool { return now.Sub(s.at) >= 2*e.options.Deadline }
	seen, ok := e.first[key]
	if !ok || old(seen) {
		if len(e.first) >= mostHeld {
			maps.DeleteFunc(e.first, func(_ string, s sighting) bool { return old(s) || s.uid == "" })
		}
		if len(e.first) >= mostHeld {
			return seen, e.admit("bound")
		}
		seen = sighting{at: now}
	}

	if e.mayRead(&seen, namespace) {
		e.under++
		e.shares[namespace].under++
		seen.read = now
		if seen.failing.IsZero() {
			seen.failing = now
		}
	} else {
		answer = e.hold(&seen, cmp.Or(seen.message, crowdedMessage))
	}
	e.first[key] = seen
	return seen, answer
}

// mayRead reports whether a pod may be read now.
func (e *evictions) mayRead(seen *sighting, namespace string) bool {
	now := e.now()
	own := e.shares[namespace]
	if own == nil {
		if len(e.shares) >= mostShares {
			clear(e.shares)
		}
		own = &share{Limiter: rate.NewLimiter(readsOfOne, burstOfOne), first: rate.NewLimiter(firstReads, firstBurst)}
		e.shares[namespace] = own
	}
	if own.TokensAt(now) >= burstOfOne/2 && own.under < mostOfOne/2 {
		own.spacing = readsEvery
	}

	switch {
	case now.Sub(seen.read) < readsEvery:
		return false
	case own.under >= mostOfOne || e.under >= mostUnder: // the API server is slow
	case now.Sub(seen.at) >= e.options.Deadline:
		return true
	case now.Sub(seen.read) < own.spacing:
		return false
	case own.AllowN(now, 1) && (own.first.AllowN(now, 1) && e.firsts.AllowN(now, 1) || e.all.AllowN(now, 1)):
		return true
	}
	if now.Sub(own.widened) >= readsEvery {
		own.spacing, own.widened = min(2*own.spacing, readsTurn), now
	}
	return false
}

// end stores what is known after a read.
func (e *evictions) end(key, namespace string, seen *sighting) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.under--
	if own := e.shares[namespace]; own != nil { // unless the shares have been forgotten
		own.under = max(0, own.under-1)
	}
	if seen.at.IsZero() {
		delete(e.first, key)
	} else {
		e.first[key] = *seen
	}
}

// observe updates what is known by the pod, which may replace one of the same name, and returns the
// time at which the controller was last seen alive.
func (e *evictions) observe(seen *sighting, pod *v1.Pod) (alive time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now, answered := e.now(), pod.Annotations[evictionguard.StatusAnnotation] != ""
	if seen.uid != pod.UID {
		if seen.uid != "" {
			seen.at = now
		}
		seen.uid, seen.answered = pod.UID, answered
	}
	if answered && !seen.answered {
		e.alive = now
	}
	seen.answered = answered
	return e.alive
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
