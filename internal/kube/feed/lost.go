// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"context"
	"errors"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
)

// countRefusal counts consecutive refusals. A lost connection is not a refusal: such requests cost
// the API server nothing.
func (f *feed) countRefusal(err error) {
	if errors.Is(err, errUnreadable) || errors.Is(err, errBrief) || apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
		f.refusals++
		return
	}
	f.refusals = 0
}

// logError logs an error. It uses level 2 if a similar error has been logged recently, or if the
// version was dropped, because a new list then suffices.
func (f *feed) logError(ctx context.Context, err error) {
	log := klog.FromContext(ctx)
	complaint := unreached
	if apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
		complaint = &f.complaint
	}
	if isForgotten(err) || !complaint.Due() {
		log = log.V(2)
	}
	log.Info("Watch interrupted, will resume", "of", f.source.Name, "err", err)
}

// isForgotten reports whether the server cannot continue from the version, so that a list is
// required. Either the server has dropped the version (410), or it has not reached the version yet,
// because it was restored from a backup or replaced.
func isForgotten(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) ||
		apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge)
}

// isPermanent reports whether every watch from the same version may end with the same error: the
// changes cannot be decoded, the API server does not serve the watch, or an intermediary ends each
// watch immediately. Errors of a busy or unreachable server are not permanent.
func isPermanent(err error) bool {
	if errors.Is(err, errUnreadable) || errors.Is(err, errBrief) {
		return true
	}
	if status := apierrors.APIStatus(nil); errors.As(err, &status) && status.Status().Code == http.StatusBadGateway {
		return false // a proxy cannot reach the API server
	}
	switch apierrors.ReasonForError(err) {
	case metav1.StatusReasonUnknown, metav1.StatusReasonTimeout, metav1.StatusReasonServerTimeout, metav1.StatusReasonTooManyRequests,
		metav1.StatusReasonServiceUnavailable:
		return false
	}
	return true
}
