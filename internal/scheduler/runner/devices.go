// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// releaseClaim removes a pod or a pod group from the claim's reservations, or deletes the claim if
// it was created for the extended resources of the pod. It returns the claim after the change, or
// nil if it no longer exists. The patch deletes one entry by its UID and has no resource version,
// so it does not conflict with concurrent reservations for other pods.
func (w *writer) releaseClaim(ctx context.Context, claim *resourcev1.ResourceClaim,
	holder types.UID) (*resourcev1.ResourceClaim, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*writtenWithin)
	defer cancel()
	if claim.Annotations[resourcev1.ExtendedResourceClaimAnnotation] == "true" {
		return nil, w.deleteClaim(ctx, claim)
	}

	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": claim.UID},
		"status":   map[string]any{"reservedFor": []map[string]any{{"$patch": "delete", "uid": holder}}},
	})

	if err != nil {
		return nil, err
	}
	without, err := w.client.ResourceV1().ResourceClaims(claim.Namespace).Patch(ctx, claim.Name,
		types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		if apierrors.IsNotFound(err) {
			err = nil
		}
		return nil, err
	}
	return without, nil
}

// deleteClaim removes the finalizer that protects claims with devices, and then deletes the claim.
// If the claim has been replaced by another claim of the same name, the other claim is not changed.
func (w *writer) deleteClaim(ctx context.Context, claim *resourcev1.ResourceClaim) error {
	claims, current := w.client.ResourceV1().ResourceClaims(claim.Namespace), claim
	err := retry.RetryOnConflict(retry.DefaultRetry, func() (err error) {
		if current == nil {
			if current, err = claims.Get(ctx, claim.Name, metav1.GetOptions{}); err != nil {
				return err
			}
		}
		if current.UID != claim.UID {
			return errReplaced
		}
		without := current.DeepCopy()
		without.Finalizers = slices.DeleteFunc(without.Finalizers, func(f string) bool { return f == resourcev1.Finalizer })
		current = nil
		_, err = claims.Update(ctx, without, metav1.UpdateOptions{})
		return err
	})

	if err == nil {
		err = claims.Delete(ctx, claim.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &claim.UID}})
	}
	if apierrors.IsNotFound(err) || errors.Is(err, errReplaced) {
		return nil
	}
	return err
}

// errReplaced means that the claim to delete has already been replaced.
var errReplaced = errors.New("another claim has the name")

// writeClaims writes the pod's claims one after the other. Outcome.Written reports for each claim
// whether the API server has, or may have, the allocation. If so, the core must keep the devices
// reserved, even after an error.
func (w *writer) writeClaims(ctx context.Context, a cycle.WriteClaims, turns []*claimTurn) (o cycle.Outcome) {
	o.Written = make([]bool, len(a.Claims.Claims))
	for i := range a.Claims.Claims {
		reserved, use := &a.Claims.Claims[i], a.Uses[i]
		// The claim was allocated before and is already reserved for this pod, so it is not
		// written.
		if reserved.Before != nil && !use.Decided && !use.Joined && reserved.IsReserved(reserved.Before) {
			continue
		}
		claim, written, err := w.writeClaim(ctx, a, reserved, use, turns[i])
		o.Written[i] = written
		if claim != nil {
			o.Claims = append(o.Claims, claim)
		}
		if err == nil && reserved.Extended {
			err = w.nameClaim(ctx, a, claim)
		}
		if err != nil {
			o.Fault = outcomeOf(err).Fault
			return o
		}
	}

	return o
}

// writeClaim first adds the finalizer to a claim, as the API requires, and then writes the
// allocation and the reservation. If it returns a claim together with an error, the claim must be
// released, because it was created for the pod, or another writer reserved it for the pod.
func (w *writer) writeClaim(ctx context.Context, a cycle.WriteClaims, reserved *plugins.ReservedClaim,
	use cycle.ClaimUse, t *claimTurn) (
	made *resourcev1.ResourceClaim, written bool, err error,
) {
	claims, current := w.client.ResourceV1().ResourceClaims(a.Attempt.Pod.Namespace), reserved.Before
	if current == nil {
		if made, err = w.createClaim(ctx, a.Ticket, reserved); err != nil {
			return nil, false, err
		}
		current = made
	}
	name, uid := current.Name, current.UID
	held, err := t.awaitTurn(ctx, reserved)
	if !held {
		return made, false, err
	}
	defer t.passTurn()
	if t.newest != nil && reserved.IsReserved(t.newest) {
		made = t.newest
	}
	if err != nil {
		return made, t.written, err
	}

	ctx, cancel := context.WithTimeout(ctx, 2*writtenWithin)
	defer cancel()
	switch {
	// This determines the version to start from. The result of the last writer, if any, is the
	// newest version. A claim that another pod may have written is read. Otherwise the core's
	// version is used; if it is outdated, the API server reports a conflict.
	case t.newest != nil:
		current = t.newest
	case use.Decided && (!reserved.Allocated || t.written): // the known version may differ from the API's
		current = nil
	case w.strips() && made == nil && !slices.Contains(current.Finalizers, resourcev1.Finalizer): // Update needs the whole claim
		current = nil
	}

	with := []*plugins.ReservedClaim{reserved}
	err = retry.RetryOnConflict(retry.DefaultRetry, func() (err error) {
		if current == nil {
			if current, err = claims.Get(ctx, name, metav1.GetOptions{}); err != nil {
				return fmt.Errorf("read claim %s: %w", name, err)
			}
		}
		// After a conflict, the claim is read again, unless sendAllocation has read it.
		claim, fresh := current.DeepCopy(), current != reserved.Before
		current = nil
		if claim.UID != uid { // the claim was replaced by another claim of the same name
			return errClaimGone(claim)
		}
		complete, err := t.fillClaim(claim, reserved, use)
		if err != nil {
			return err
		}
		if complete && fresh { // the writer for another pod has written the allocation and the reservation
			made, t.newest = claim, claim
			return nil
		}

		if !slices.Contains(claim.Finalizers, resourcev1.Finalizer) {
			status := claim.Status
			claim.Finalizers = append(claim.Finalizers, resourcev1.Finalizer)
			if claim, err = claims.Update(ctx, claim, metav1.UpdateOptions{}); err != nil {
				return fmt.Errorf("add finalizer to claim %s: %w", name, err)
			}
			claim = claim.DeepCopy()
			claim.Status = status
		}

		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		with = append(with, t.takeWaiting()...)
		reserveFor(claim, with)
		newest, known, err := w.sendAllocation(ctx, claim)
		t.written = t.written || err == nil || !known
		if err != nil {
			current = newest
			return fmt.Errorf("add allocation and reservation to claim %s: %w", name, err)
		}
		made, t.newest = newest, newest
		return nil
	})
	return made, t.written, err
}

// fillClaim sets the allocation in a claim read from the API server. complete is true if the claim
// already has the allocation, the pod's reservation and the finalizer.
//
// It returns an error if the claim has changed since the decision: it is being deleted, or was
// deallocated, or has other devices. The messages are the same as in upstream, where they exist.
func (t *claimTurn) fillClaim(claim *resourcev1.ResourceClaim, reserved *plugins.ReservedClaim,
	use cycle.ClaimUse) (complete bool, err error) {
	decided := reserved.Claim.Status.Allocation
	switch {
	case claim.DeletionTimestamp != nil:
		return false, errClaimGone(claim)
	case claim.Status.Allocation == nil && use.Decided && (!t.written || isUnchanged(claim, reserved)):
		claim.Status.Allocation = decided.DeepCopy()
	case claim.Status.Allocation == nil:
		return false, fmt.Errorf("claim %s got deallocated elsewhere in the meantime", klog.KObj(claim))
	case use.Decided && !slices.EqualFunc(claim.Status.Allocation.Devices.Results, decided.Devices.Results, sameDevice):
		return false, fmt.Errorf("claim %s got allocated elsewhere in the meantime", klog.KObj(claim))
	default:
		t.written = true
		complete = reserved.IsReserved(claim) && slices.Contains(claim.Finalizers, resourcev1.Finalizer)
	}

	// A claim that was allocated before keeps its timestamp.
	if claim.Status.Allocation.AllocationTimestamp == nil {
		claim.Status.Allocation.AllocationTimestamp = new(metav1.Now())
	}
	return complete, nil
}

// isUnchanged reports whether the claim still has the version known to the core. If that version
// has no allocation, none was written, or it was revoked and the watch has delivered that.
func isUnchanged(claim *resourcev1.ResourceClaim, reserved *plugins.ReservedClaim) bool {
	return reserved.Before != nil && claim.ResourceVersion == reserved.Before.ResourceVersion
}

// reserveFor adds the missing reservations up to the limit for a claim. The first reservation is
// for the writer's own pod. It is always added; if it exceeds the limit, the API server refuses the
// write.
func reserveFor(claim *resourcev1.ResourceClaim, all []*plugins.ReservedClaim) {
	for i, reserved := range all {
		if !reserved.IsReserved(claim) && (i == 0 || len(claim.Status.ReservedFor) < resourcev1.ResourceClaimReservedForMaxSize) {
			claim.Status.ReservedFor = append(claim.Status.ReservedFor, reserved.Holder)
		}
	}
}

// errClaimGone returns the error for a deleted claim, with upstream's message.
func errClaimGone(claim *resourcev1.ResourceClaim) error {
	return fmt.Errorf("claim %s got deleted in the meantime", klog.KObj(claim))
}

// sameDevice reports whether two results have the same device and request. Other fields are
// ignored.
func sameDevice(a, b resourcev1.DeviceRequestAllocationResult) bool {
	return a.Request == b.Request && a.Driver == b.Driver && a.Pool == b.Pool && a.Device == b.Device
}

// createClaim creates the claim for a pod's extended resources, and reports it to the core, so that
// it replaces the stand-in, which is the claim used for the decision. The API server generates the
// name, so there are no conflicts.
func (w *writer) createClaim(ctx context.Context, ticket cycle.Ticket,
	reserved *plugins.ReservedClaim) (*resourcev1.ResourceClaim, error) {
	ctx, cancel := context.WithTimeout(ctx, writtenWithin)
	defer cancel()
	standIn := reserved.Claim
	claim := standIn.DeepCopy()
	claim.Name, claim.UID, claim.Finalizers, claim.Status = "", "", nil, resourcev1.ResourceClaimStatus{}
	made, err := w.client.ResourceV1().ResourceClaims(claim.Namespace).Create(ctx, claim, metav1.CreateOptions{})
	w.observer.MadeClaim(err == nil)
	if err != nil {
		return nil, fmt.Errorf("create claim for extended resources of pod: %w", err)
	}
	w.see(cycle.ClaimMade{Ticket: ticket, StandIn: cluster.Name{Namespace: standIn.Namespace, Name: standIn.Name}, Claim: made})
	return made, nil
}

// nameClaim writes the name of the claim with the pod's extended resources to the pod's status, for
// the kubelet.
func (w *writer) nameClaim(ctx context.Context, a cycle.WriteClaims, claim *resourcev1.ResourceClaim) error {
	ctx, cancel := context.WithTimeout(ctx, writtenWithin)
	defer cancel()
	pod := a.Attempt.Pod
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID},
		"status": map[string]any{"extendedResourceClaimStatus": v1.PodExtendedResourceClaimStatus{
			RequestMappings: a.Claims.Mappings, ResourceClaimName: claim.Name,
		}},
	})

	if err != nil {
		return err
	}
	_, err = w.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("update pod %s/%s ExtendedResourceClaimStatus: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// deallocateClaim writes the status of a claim without its allocation, or deletes a claim created
// for a pod. The update has the core's resource version, so that it never overwrites a change of
// another client.
func (w *writer) deallocateClaim(ctx context.Context, a cycle.DeallocateClaim) error {
	ctx, cancel := context.WithTimeout(ctx, 2*writtenWithin)
	defer cancel()
	if a.Delete {
		return w.deleteClaim(ctx, a.Claim)
	}
	_, err := w.client.ResourceV1().ResourceClaims(a.Claim.Namespace).UpdateStatus(ctx, a.Claim, metav1.UpdateOptions{})
	return err
}

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
