// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package movecontroller

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/engine/cycle"
)

// writeReservations makes Berth's scheduler reserve room: it writes the reservations to the Lease,
// replacing any others, and creates the Lease if needed. Apart from a message it fails silently,
// because departures do not depend on it: with another scheduler, the Lease has no reader.
func (r *requests) writeReservations(ctx context.Context, room string) {
	if room == "" {
		return
	}
	annotations := map[string]string{cycle.MoveReservationAnnotation: room}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	if err != nil {
		return
	}

	ctx, cancel := context.WithTimeout(ctx, reserveWithin)
	defer cancel()
	leases := r.client.CoordinationV1().Leases(cycle.MoveLeaseNamespace)
	_, err = leases.Patch(ctx, cycle.MoveLeaseName, types.MergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: cycle.MoveLeaseNamespace,
			Name: cycle.MoveLeaseName, Annotations: annotations}}
		_, err = leases.Create(ctx, lease, metav1.CreateOptions{})
	}

	if err != nil {
		r.reportRoomless(ctx, err)
	}
}

// releaseReservations releases reservations, if there are any. If the Lease shows others, they
// stay, because another process has written them. If a process is killed before it releases its
// reservations, they expire.
//
// The JSON patch tests the value and removes it in one request; the API server rejects it as
// invalid if the value differs.
func (r *requests) releaseReservations(ctx context.Context, room string) {
	if room == "" {
		return
	}
	path := "/metadata/annotations/" + strings.ReplaceAll(cycle.MoveReservationAnnotation, "/", "~1")
	patch, err := json.Marshal([]map[string]any{{"op": "test", "path": path, "value": room}, {"op": "remove", "path": path}})
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, reserveWithin)
	defer cancel()
	_, err = r.client.CoordinationV1().Leases(cycle.MoveLeaseNamespace).Patch(ctx, cycle.MoveLeaseName, types.JSONPatchType,
		patch, metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsInvalid(err) { // invalid: the Lease has another reservation, or none
		r.reportRoomless(ctx, err)
	}
}

// reportRoomless reports to the log and the core that room could not be reserved. The move
// continues: its arrival is checked.
func (r *requests) reportRoomless(ctx context.Context, err error) {
	klog.FromContext(ctx).Info("Cannot have the room of a successor kept; another pod may take it", "err", err)
	if r.noReservation != nil {
		r.noReservation(fmt.Sprintf("no room is kept for successors: the Lease %s/%s cannot be written: "+
			"%v; each arrival is checked", cycle.MoveLeaseNamespace, cycle.MoveLeaseName, err))
	}
}
