package live

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

// releaseClaim removes a pod or a pod group from those that a claim is reserved for, or deletes a
// claim that was made for the pod. It returns the claim as it is then; nil if it is gone. The patch
// deletes one entry by its UID and names no version, so it does not conflict with other pods that
// reserve the claim meanwhile.
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

// deleteClaim removes the finalizer that protects claims with devices, and then the claim. Another
// claim that has its name by now keeps both.
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

// errReplaced ends a deletion: the claim that was to be deleted is gone already.
var errReplaced = errors.New("another claim has the name")

// writeClaims writes the pod's claims one after the other. Written tells per claim whether the
// allocation is in the API, or may be: then the core must not give the devices to others, whatever
// the error is.
func (w *writer) writeClaims(ctx context.Context, a cycle.WriteClaims, turns []*claimTurn) (o cycle.Outcome) {
	o.Written = make([]bool, len(a.Claims.Claims))
	for i := range a.Claims.Claims {
		reserved, use := &a.Claims.Claims[i], a.Uses[i]
		// Nothing to write: the claim was allocated before, and is reserved for this pod.
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

// writeClaim writes allocation and reservation of a claim, with the finalizer first, as it must be.
// What it returns in spite of an error is a claim that has to be given back: it was made for the
// pod, or another writer has reserved it for the pod.
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
	// Where to start from: the last writer's result is the newest; a claim that another pod may
	// have written is read; anything else is tried as the core knows it, and the API server reports
	// a conflict if that is outdated.
	case t.newest != nil:
		current = t.newest
	case use.Decided && (!reserved.Allocated || t.written): // what is known of it is not what is in the API
		current = nil
	case w.strips() && made == nil && !slices.Contains(current.Finalizers, resourcev1.Finalizer): // to be written as a whole
		current = nil
	}

	with := []*plugins.ReservedClaim{reserved}
	err = retry.RetryOnConflict(retry.DefaultRetry, func() (err error) {
		if current == nil {
			if current, err = claims.Get(ctx, name, metav1.GetOptions{}); err != nil {
				return fmt.Errorf("read claim %s: %w", name, err)
			}
		}
		// After a conflict, the next round reads the claim, unless sendAllocation has.
		claim, fresh := current.DeepCopy(), current != reserved.Before
		current = nil
		if claim.UID != uid { // another has its name: what was decided is not for that one
			return errClaimGone(claim)
		}
		complete, err := t.fillClaim(claim, reserved, use)
		if err != nil {
			return err
		}
		if complete && fresh { // another pod has written it
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

// fillClaim puts the allocation into a claim, as it is in the API. complete tells that the claim
// has it already, with the pod's reservation.
//
// It refuses a claim that has changed in a way that the decision did not know of: deleted,
// deallocated, or allocated with other devices. The messages are upstream's where upstream has
// them.
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

	// A claim that was allocated before keeps its time.
	if claim.Status.Allocation.AllocationTimestamp == nil {
		now := metav1.NewTime(time.Now())
		claim.Status.Allocation.AllocationTimestamp = &now
	}
	return complete, nil
}

// isUnchanged reports whether the claim is as the core has seen it last, without an allocation:
// none was written, or the watch has shown that it was revoked.
func isUnchanged(claim *resourcev1.ResourceClaim, reserved *plugins.ReservedClaim) bool {
	return reserved.Before != nil && claim.ResourceVersion == reserved.Before.ResourceVersion
}

// reserveFor adds the reservations that the claim does not have, as far as it takes them: the first
// is the writer's own, which the API server refuses if it is one too many.
func reserveFor(claim *resourcev1.ResourceClaim, all []*plugins.ReservedClaim) {
	for i, reserved := range all {
		if !reserved.IsReserved(claim) && (i == 0 || len(claim.Status.ReservedFor) < resourcev1.ResourceClaimReservedForMaxSize) {
			claim.Status.ReservedFor = append(claim.Status.ReservedFor, reserved.Holder)
		}
	}
}

// errClaimGone words the failure as upstream does.
func errClaimGone(claim *resourcev1.ResourceClaim) error {
	return fmt.Errorf("claim %s got deleted in the meantime", klog.KObj(claim))
}

// sameDevice compares what identifies a device and the request that it is for. The rest, such as
// conditions, may be added by drivers later.
func sameDevice(a, b resourcev1.DeviceRequestAllocationResult) bool {
	return a.Request == b.Request && a.Driver == b.Driver && a.Pool == b.Pool && a.Device == b.Device
}

// createClaim creates the claim for a pod's extended resources, and reports it to the core in place
// of its stand-in: the claim that the decision was made with before it existed. The API server
// makes the name, so none can be taken.
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

// nameClaim tells the kubelet in the pod's status which claim has its extended resources.
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

// giveBackClaim frees the devices of a claim, or deletes it if it was made for a pod. The update
// names the version that the core knew: if somebody else has changed the claim, it is not
// overwritten.
func (w *writer) giveBackClaim(ctx context.Context, a cycle.GiveBackClaim) error {
	ctx, cancel := context.WithTimeout(ctx, 2*writtenWithin)
	defer cancel()
	if a.Delete {
		return w.deleteClaim(ctx, a.Claim)
	}
	_, err := w.client.ResourceV1().ResourceClaims(a.Claim.Namespace).UpdateStatus(ctx, a.Claim, metav1.UpdateOptions{})
	return err
}
