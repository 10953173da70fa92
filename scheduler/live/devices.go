package live

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/cluster"
	"github.com/berth-k8s/berth/decide"
	"github.com/berth-k8s/berth/plugins"
)

// deviceWork is what is to be written of a pod's devices before it is bound.
type deviceWork struct {
	plugins.ReservedClaims
	uses    []claimUse                  // of Claims, in their order; nil once the pod has left them
	written []*resourcev1.ResourceClaim // what has been, as the API server answered
}

func (w *deviceWork) any() bool { return len(w.Claims) > 0 }

// reserveDevices takes them in the cluster's objects.
func (s *Scheduler) reserveDevices(b *placement, plugin *plugins.DynamicResources, n *cluster.Node) (undo func(), err error) {
	claims, give, err := plugin.ReserveClaims(s.cluster, b.Waiting, n)
	if err != nil || len(claims.Claims) == 0 {
		return nil, err
	}
	b.devices.ReservedClaims = claims
	for i := range claims.Claims {
		b.devices.uses = append(b.devices.uses, s.claims.join(&claims.Claims[i]))
	}
	return func() { s.unreserveDevices(b, give) }, nil
}

// unreserveDevices gives back what was decided, and what was written already.
func (s *Scheduler) unreserveDevices(b *placement, give func(func(*resourcev1.ResourceClaim) bool)) {
	written := map[types.UID]bool{}
	for _, claim := range b.devices.written {
		written[claim.UID] = true
	}
	give(func(c *resourcev1.ResourceClaim) bool { return written[c.UID] })
	s.leaveClaims(b)
	for _, claim := range b.devices.written {
		s.helpers.do(func(ctx context.Context) {
			if err := s.releaseClaim(ctx, claim, b.Pod.UID); err != nil {
				klog.FromContext(ctx).Error(err, "Claim not given back", "claim", klog.KObj(claim), "pod", klog.KObj(b.Pod))
			}
		})
	}
}

// releaseClaim takes the pod off a claim, or deletes one that was made for it.
func (s *Scheduler) releaseClaim(ctx context.Context, claim *resourcev1.ResourceClaim, pod types.UID) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if claim.Annotations[resourcev1.ExtendedResourceClaimAnnotation] == "true" {
		return s.deleteClaim(ctx, claim)
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": claim.UID},
		"status":   map[string]any{"reservedFor": []map[string]any{{"$patch": "delete", "uid": pod}}},
	})
	if err != nil {
		return err
	}
	_, err = s.client.ResourceV1().ResourceClaims(claim.Namespace).Patch(ctx, claim.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// deleteClaim takes away the finalizer that keeps claims with devices, and then the claim.
func (s *Scheduler) deleteClaim(ctx context.Context, claim *resourcev1.ResourceClaim) error {
	claims, current := s.client.ResourceV1().ResourceClaims(claim.Namespace), claim
	err := retry.RetryOnConflict(retry.DefaultRetry, func() (err error) {
		if current == nil {
			if current, err = claims.Get(ctx, claim.Name, metav1.GetOptions{}); err != nil {
				return err
			}
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
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// bindDevices writes the claims, and waits until their devices are ready.
func (s *Scheduler) bindDevices(ctx context.Context, b *placement) error {
	defer s.inbox.put(func() { s.leaveClaims(b) })
	for i, use := range b.devices.uses {
		reserved := &b.devices.Claims[i]
		if reserved.Before != nil && !use.decided && resourceclaim.IsReservedForPod(b.Pod, reserved.Before, false) {
			continue
		}
		claim, err := s.writeClaim(ctx, b, reserved, use)
		if claim != nil {
			b.devices.written = append(b.devices.written, claim)
		}
		if err == nil && reserved.Extended {
			err = s.nameClaim(ctx, b, claim)
		}
		if err != nil {
			return err
		}
	}
	if !slices.ContainsFunc(b.devices.Claims, awaitsDevices) {
		return nil
	}
	return s.awaitObjects(ctx, b.devices.Timeout, errors.New("device binding timeout"), func() (bool, error) { return s.devicesReady(b) })
}

func awaitsDevices(c plugins.ReservedClaim) bool {
	return c.Claim.Status.Allocation != nil && slices.ContainsFunc(c.Claim.Status.Allocation.Devices.Results,
		func(r resourcev1.DeviceRequestAllocationResult) bool { return len(r.BindingConditions) > 0 })
}

// devicesReady looks at the claims as they are now. On the owner.
func (s *Scheduler) devicesReady(b *placement) (bool, error) {
	for i := range b.devices.Claims {
		name := b.devices.Claims[i].Claim
		claim, ok := s.cluster.ResourceClaims.Get(name.Namespace, name.Name)
		if !ok {
			return false, fmt.Errorf("resourceclaim %q not found", name.Name)
		}
		if ready, err := plugins.Ready(claim); !ready || err != nil {
			return false, err
		}
	}
	return true, nil
}

// writeClaim writes allocation and reservation of a claim, with the finalizer first, as it must be. What it returns in spite of an
// error is a claim that was made and must be deleted.
func (s *Scheduler) writeClaim(ctx context.Context, b *placement, reserved *plugins.ReservedClaim, use claimUse) (
	made *resourcev1.ResourceClaim, err error,
) {
	claims, current := s.client.ResourceV1().ResourceClaims(b.Pod.Namespace), reserved.Before
	if current == nil {
		if made, err = s.createClaim(ctx, reserved, use.sharedClaim); err != nil {
			return nil, err
		}
		current = made
	}
	name := current.Name
	if err := use.await(ctx); err != nil {
		return made, err
	}
	defer use.pass()
	switch {
	case use.newest != nil:
		current = use.newest
	case use.decided && !reserved.Allocated: // what is known of it was never in the API
		current = nil
	}
	err = retry.RetryOnConflict(retry.DefaultRetry, func() (err error) {
		if current == nil {
			if current, err = claims.Get(ctx, name, metav1.GetOptions{}); err != nil {
				return fmt.Errorf("read claim %s: %w", name, err)
			}
		}
		claim := current.DeepCopy()
		current = nil
		if err := use.fill(claim, reserved, b.Pod); err != nil {
			return err
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
		updated, err := claims.UpdateStatus(ctx, claim, metav1.UpdateOptions{})
		if err == nil || !answered(err) {
			use.written.Store(true)
		}
		if err != nil {
			return fmt.Errorf("add allocation and reservation to claim %s: %w", name, err)
		}
		made, use.newest = updated, updated
		return nil
	})
	return made, err
}

// createClaim makes the claim for a pod's extended resources, and has it take the place of what stood in for it.
func (s *Scheduler) createClaim(ctx context.Context, reserved *plugins.ReservedClaim, shared *sharedClaim) (*resourcev1.ResourceClaim, error) {
	standIn := reserved.Claim
	claim := standIn.DeepCopy()
	claim.Name, claim.UID, claim.Finalizers, claim.Status = "", "", nil, resourcev1.ResourceClaimStatus{}
	made, err := s.client.ResourceV1().ResourceClaims(claim.Namespace).Create(ctx, claim, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create claim for extended resources of pod: %w", err)
	}
	held := made.DeepCopy()
	held.Status = *standIn.Status.DeepCopy()
	reserved.Claim = held
	s.inbox.put(func() {
		s.cluster.ResourceClaims.Delete(standIn.Namespace, standIn.Name)
		if current, ok := s.cluster.ResourceClaims.Get(held.Namespace, held.Name); !ok || current.Status.Allocation == nil {
			shared.name, shared.uid = nameOf(held), held.UID
			s.claims[shared.name] = shared
			s.cluster.ResourceClaims.Set(held)
		}
	})
	return made, nil
}

// nameClaim tells the kubelet in the pod's status which claim has its extended resources.
func (s *Scheduler) nameClaim(ctx context.Context, b *placement, claim *resourcev1.ResourceClaim) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": b.Pod.UID},
		"status": map[string]any{"extendedResourceClaimStatus": v1.PodExtendedResourceClaimStatus{
			RequestMappings: b.devices.Mappings, ResourceClaimName: claim.Name,
		}},
	})
	if err != nil {
		return err
	}
	_, err = s.client.CoreV1().Pods(b.Pod.Namespace).Patch(ctx, b.Pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("update pod %s/%s ExtendedResourceClaimStatus: %w", b.Pod.Namespace, b.Pod.Name, err)
	}
	return nil
}

// giveBackDevices helps a pod that fits nowhere because a claim of its own holds devices that it cannot use: the claim gives them up.
func (s *Scheduler) giveBackDevices(_ context.Context, b *placement, _ *decide.Failure) Rescue {
	if b.profile.devices == nil {
		return Rescue{Message: "no new claims to deallocate"}
	}
	message, change, remove := b.profile.devices.PostFilter(s.cluster, b.Waiting)
	if change != nil {
		s.helpers.do(func(ctx context.Context) {
			ctx, cancel := context.WithTimeout(ctx, requestTimeout)
			defer cancel()
			var err error
			if remove {
				err = s.deleteClaim(ctx, change)
			} else {
				_, err = s.client.ResourceV1().ResourceClaims(change.Namespace).UpdateStatus(ctx, change, metav1.UpdateOptions{})
			}
			if err != nil {
				klog.FromContext(ctx).Error(err, "Claim not given back", "claim", klog.KObj(change), "pod", klog.KObj(b.Pod))
				s.Activate(b.Pod.UID)
			}
		})
	}
	return Rescue{Message: message}
}
