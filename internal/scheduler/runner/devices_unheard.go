// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"context"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
)

// sendAllocation writes the status of a claim and returns the API server's version of the claim.
// The request does not end with ctx, the context of the pod, because a request that was sent cannot
// be recalled. If the response is lost, sendAllocation reads the claim and writes it again from the
// same version, so that at most one of the writes is carried out. If the claim has changed, it is
// returned with a conflict. known is false if it cannot be determined whether the devices are
// allocated.
//
// For example, the API server carries out the write, and the connection breaks. The claim is read
// and has the allocation and the reservation, so the pod is bound. kube-scheduler would report a
// failure and release the devices in its memory. It could then allocate them to another claim
// before the watch delivers the first allocation.
func (w *writer) sendAllocation(ctx context.Context, claim *resourcev1.ResourceClaim) (
	newest *resourcev1.ResourceClaim, known bool, err error,
) {
	var arrives time.Time // time until which a write without a response may still be carried out
	for try := 1; ; try++ {
		sending, cancel := context.WithTimeout(w.life.finishing, writtenWithin)
		began := time.Now()
		newest, err = w.client.ResourceV1().ResourceClaims(claim.Namespace).UpdateStatus(sending, claim, metav1.UpdateOptions{})
		cancel()
		switch {
		case err == nil:
			return newest, true, nil
		case try == 1 && isAnswered(err):
			return nil, true, err
		}
		switch apierrors.ReasonForError(err) {
		case metav1.StatusReasonUnknown, metav1.StatusReasonTimeout:
			arrives = began.Add(writtenWithin)
		}

		again := func() bool { return try < bindTries && !isAnswered(err) && ctx.Err() == nil }
		newest, known = w.readUnheard(claim, arrives, again)
		switch {
		case !known:
			return nil, false, err
		case newest == nil:
			return nil, true, errClaimGone(claim)
		case newest.ResourceVersion != claim.ResourceVersion:
			return newest, true, apierrors.NewConflict(resourcev1.Resource("resourceclaims"), claim.Name, err)
		case !again() && !time.Now().Before(arrives): // the write has not been and will not be carried out
			return nil, true, err
		case !w.life.sleepAbout(firstPause << try):
			return nil, false, err
		}
	}
}

// readUnheard reads a claim after a write without a response; newest is nil if the claim was
// deleted. An unchanged claim is returned immediately if the write will be repeated, and otherwise
// only when the write can no longer be carried out. known is false if the scheduler stops, or if
// the API server refuses the read.
func (w *writer) readUnheard(claim *resourcev1.ResourceClaim, arrives time.Time, again func() bool) (
	newest *resourcev1.ResourceClaim, known bool,
) {
	w.life.retryUntilStopped(w.life.finishing, func(ctx context.Context) bool {
		found, err := w.client.ResourceV1().ResourceClaims(claim.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err), err == nil && found.UID != claim.UID:
			known = true
		case err != nil && isAnswered(err):
			klog.FromContext(ctx).Error(err, "A claim cannot be read to find out whether it was allocated", "claim", klog.KObj(claim))
		case err != nil:
			return false
		case again(), found.ResourceVersion != claim.ResourceVersion, !time.Now().Before(arrives):
			newest, known = found, true
		default:
			return false
		}
		return true
	})
	return newest, known
}
