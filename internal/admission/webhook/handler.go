// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/admission/lookup"
	"github.com/berth-k8s/berth/internal/kube/guard"
	"github.com/berth-k8s/berth/internal/kube/loglimit"
)

// answer is mutateObject or validateObject of a reviewer. An error means no response to the review.
type answer func(context.Context, *admissionv1.AdmissionRequest) (*admissionv1.AdmissionResponse, error)

// newHandler serves the API server's protocol: /mutate, /validate, /evict.
func (w *Webhook) newHandler(r *reviewer) http.Handler {
	mux := http.NewServeMux()
	if w.options.GuardEvictions {
		guard := newEvictions(w.evictions, w.metrics, w.clock.Now, w.options.Guard)
		mux.Handle("POST "+evictPath, w.reviewHandler("evict", guard.judgeEviction))
	}
	mux.Handle("POST "+mutatePath, w.reviewHandler("mutate", r.mutateObject))
	mux.Handle("POST "+validatePath, w.reviewHandler("validate", r.validateObject))
	return mux
}

// reviewHandler responds to every review, or fails with a status that counts as a failed call for
// the API server.
func (w *Webhook) reviewHandler(kind string, answer answer) http.Handler {
	return http.HandlerFunc(func(out http.ResponseWriter, request *http.Request) {
		began := time.Now()
		review, response, err := w.answerReview(out, request, answer)
		// Count the review before sending the response, so that the duration excludes the API
		// server's reading time.
		w.metrics.countReview(kind, review.Request, response, err, time.Since(began))
		if err != nil {
			notAnswered(request.Context(), err, kind, review.Request)
			guard.Refuse(out, statusOf(err), err.Error())
			return
		}

		out.Header().Set("Content-Type", "application/json")
		reply := admissionv1.AdmissionReview{
			TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Response: response,
		}
		if err := json.NewEncoder(out).Encode(&reply); err != nil {
			klog.FromContext(request.Context()).V(2).Info("Answer not sent", "kind", kind, "err", err)
		}
	})
}

// answerReview reads a review and computes its response. The returned review is for logs and
// metrics, and may be empty.
//
// The order of its steps bounds the cost of any caller: it reads only after acquiring a slot in the
// lane, and no more than the lane allows.
func (w *Webhook) answerReview(out http.ResponseWriter, request *http.Request,
	answer answer) (review admissionv1.AdmissionReview, _ *admissionv1.AdmissionResponse, _ error) {
	ctx, cancel := withTimeoutOf(request)
	defer cancel()
	// A cold cache lacks all classes and annotations, so the response would be wrong.
	select {
	case <-w.warm:
	case <-ctx.Done():
		return review, nil, errCold
	}
	lane, longest := w.lanes.laneFor(request.ContentLength)
	leave, err := lane.takeRoom(ctx, guard.Source(request.RemoteAddr))
	if err != nil {
		return review, nil, err
	}
	defer leave()
	// A body arriving after the API server's timeout is useless.
	if deadline, ok := ctx.Deadline(); ok {
		connection := http.NewResponseController(out)
		_ = connection.SetReadDeadline(deadline)
		_ = connection.SetWriteDeadline(deadline.Add(answerEarly))
	}
	body, err := io.ReadAll(io.LimitReader(request.Body, longest+1))
	if err != nil {
		return review, nil, badRequest{fmt.Errorf("read the review: %w", err)}
	}
	if int64(len(body)) > longest {
		return review, nil, badRequest{fmt.Errorf("review of more than %d bytes", longest)}
	}
	if elements := elementsIn(body); elements > manyElements {
		if elements > mostElements {
			return review, nil, badRequest{fmt.Errorf("review of more than %d list elements", mostElements)}
		}
		leave, err := w.lanes.many.takeRoom(ctx, guard.Source(request.RemoteAddr))
		if err != nil {
			return review, nil, err
		}
		defer leave()
	}
	if err := json.Unmarshal(body, &review); err != nil {
		return review, nil, badRequest{fmt.Errorf("read the review: %w", err)}
	}
	if review.Request == nil || review.APIVersion != "admission.k8s.io/v1" {
		return review, nil, badRequest{fmt.Errorf("%q: must be an AdmissionReview of "+
			"admission.k8s.io/v1 with a request", review.APIVersion)}
	}
	response, err := answer(ctx, review.Request)
	if err != nil {
		return review, nil, err
	}
	// The API server matches the response to its request by the UID.
	response.UID = review.Request.UID
	if !response.Allowed {
		klog.FromContext(ctx).V(2).Info("Refused", "request", describeRequest(review.Request), "reason", response.Result.Message)
	}
	return review, response, nil
}

// answerEarly is the margin before the API server's timeout: enough to deliver the refusal.
const answerEarly = 100 * time.Millisecond

// withTimeoutOf returns the request's context, ending shortly before the API server's timeout, as
// given in the request. A later response would be lost, and the API server would log a timeout
// instead of the reason. If the request has no valid timeout of at most 30 s, the API's default of
// 10 s applies.
func withTimeoutOf(request *http.Request) (context.Context, context.CancelFunc) {
	timeout, err := time.ParseDuration(request.URL.Query().Get("timeout"))
	if err != nil || timeout > 30*time.Second {
		timeout = 10 * time.Second
	}
	return context.WithTimeout(request.Context(), max(timeout-answerEarly, timeout/2))
}

// unanswered limits the rate of logged failures, because any client of the port can cause failed
// reviews. The metrics count all of them.
var unanswered loglimit.Line

// notAnswered logs a review without a response.
func notAnswered(ctx context.Context, err error, kind string, request *admissionv1.AdmissionRequest) {
	log := klog.FromContext(ctx)
	if isBadRequest(err) || !unanswered.Due() {
		log.V(2).Info("Review not answered", "err", err, "kind", kind)
		return
	}
	log.Error(err, "Review not answered", "kind", kind, "request", describeRequest(request))
}

// badRequest is the error of a malformed review.
type badRequest struct{ error }

// errCold is the error before the caches are filled.
var errCold = fmt.Errorf("not yet ready to handle request: the caches are not filled")

// statusOf returns the HTTP status for a failed review. The API server treats each of these
// statuses as a failed call, but retries after 503, sent with Retry-After, if its timeout allows.
func statusOf(err error) int {
	switch {
	case errors.Is(err, errCold), errors.Is(err, errBusy), errors.Is(err, lookup.ErrCold), errors.Is(err, lookup.ErrBusy):
		return http.StatusServiceUnavailable
	case isBadRequest(err):
		return http.StatusBadRequest
	}
	return http.StatusInternalServerError
}

// isBadRequest reports whether the review itself is malformed.
func isBadRequest(err error) bool {
	_, bad := err.(badRequest)
	return bad
}

// describeRequest formats operation, resource and name for the log. A pod being created may lack a
// name.
func describeRequest(request *admissionv1.AdmissionRequest) string {
	if request == nil {
		return "unreadable"
	}
	name := request.Name
	if request.Namespace != "" {
		name = request.Namespace + "/" + name
	}
	return fmt.Sprintf("%s %s %s", request.Operation, request.Resource.Resource, name)
}
