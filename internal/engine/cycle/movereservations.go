// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"encoding/json"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// The Lease shown to the core as [MoveLeases]. Its annotation holds a [MoveReservation] as JSON;
// without it, nothing is reserved.
const (
	MoveLeaseNamespace        = metav1.NamespaceSystem
	MoveLeaseName             = "berth-rebalance"
	MoveReservationAnnotation = "berth.dev/room"
)

// MoveReservation is a node's capacity reserved for the successor of a pod being moved there.
type MoveReservation struct {
	// Namespace, Name and UID identify the pod being moved.
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	Owner     types.UID `json:"owner"` // the controller that makes the successor
	Node      string    `json:"node"`  // where the successor is to go
	// Ahead is set if the successor starts first, before the pod stops.
	Ahead bool `json:"ahead,omitempty"`
	// GraceSeconds is the maximum time for the pod to terminate.
	GraceSeconds int64 `json:"graceSeconds,omitempty"`
	// Begun distinguishes two attempts at the same move.
	Begun string `json:"begun,omitempty"`
}

// The duration of a reservation: the wait for each step by the component that moves pods.
const (
	leavesWithin  = 2 * time.Minute // until the pod is being deleted; beyond its grace period, until it has gone
	arrivesWithin = time.Minute     // from then on
	longestGrace  = int64(time.Hour / time.Second)
)

// moveReservations reserves capacity for the successors of pods being moved. The move is shown by a
// Lease writable only by the component that moves pods.
//
// A guest, of the class of the leaving pod, is nominated to the node: pods of the same or a lower
// priority leave it its capacity. The first pod of the same controller tried while that pod is
// terminating, after its deletion, or immediately if the successor starts first, takes the guest's
// place: it is nominated for that attempt, so that it is placed on the node if it fits there. An
// unknown pod gets no guest; its successor is nominated nevertheless.
//
// At most one reservation is held at a time. It is held for a limited time, whether or not the
// Lease is deleted.
type moveReservations struct {
	*common
	nominations *nominations
	kept        *keptReservation // the last one shown; nil if the Lease shows none
}

// keptReservation is the reservation shown by the Lease, and the progress of the move.
type keptReservation struct {
	MoveReservation
	guest         *cluster.Pod // nil: none
	until         time.Time
	leaving, gone bool // the pod is being deleted, or not known, as of the last look at it
	over          bool // nothing is reserved any longer
}

// seen processes the Lease. The same Lease is shown again with every list; an ended reservation
// stays ended.
func (rs *moveReservations) seen(lease *coordinationv1.Lease) {
	var shown MoveReservation
	if text := lease.Annotations[MoveReservationAnnotation]; text == "" || json.Unmarshal([]byte(text), &shown) != nil ||
		shown.UID == "" || shown.Node == "" {
		rs.withdraw()
		return
	}
	if rs.kept != nil && rs.kept.MoveReservation == shown {
		return
	}
	rs.withdraw()
	rs.kept = &keptReservation{MoveReservation: shown, until: rs.now.Add(leavesWithin)}
	rs.follow()
}

// withdraw forgets the room.
func (rs *moveReservations) withdraw() {
	rs.endReservation()
	rs.kept = nil
}

// endReservation frees the capacity, which may help other pods. The Lease may still show it.
func (rs *moveReservations) endReservation() {
	k := rs.kept
	if k == nil || k.over {
		return
	}
	k.over = true
	if k.guest != nil {
		rs.nominations.clearNomination(k.guest.UID)
	}
}

// resume sets the deadline at which another core would have ended the reservation; zero: it had
// none.
func (rs *moveReservations) resume(until time.Time) {
	switch {
	case rs.kept == nil:
	case until.IsZero():
		rs.endReservation()
	default:
		rs.kept.until = until
	}
}

// follow tracks the leaving pod: it creates the guest, and moves the deadline of the reservation.
// After a restart, the pod may be shown after the Lease.
func (rs *moveReservations) follow() {
	k, victim := rs.kept, rs.cluster.Pod(rs.kept.UID)
	if victim == nil {
		if !k.gone {
			k.gone, k.until = true, rs.now.Add(arrivesWithin)
		}
		return
	}
	k.gone = false
	if k.guest == nil && victim.NodeName != k.Node && victim.Spec().SchedulingGroup == nil { // groups are decided as a whole
		k.guest = cluster.NewPod(victim.Class, victim.Name, victim.UID+"/room")
		k.guest.Created = victim.Created
		rs.cluster.Nominate(k.guest, k.Node)
	}
	if victim.Terminating && !k.leaving {
		grace := time.Duration(min(max(k.GraceSeconds, 0), longestGrace)) * time.Second
		k.leaving, k.until = true, rs.now.Add(grace+leavesWithin)
	}
}

// lapse ends the reservation if its time is up. The state of the leaving pod is checked with every
// tick.
func (rs *moveReservations) lapse() {
	if rs.kept == nil || rs.kept.over {
		return
	}
	rs.follow()
	if !rs.now.Before(rs.kept.until) {
		rs.endReservation()
	}
}

// useReservation nominates a pod about to be tried to the node with the reservation for it.
func (rs *moveReservations) useReservation(item *queue.Item) {
	if rs.kept == nil || rs.kept.over || !rs.kept.isFor(item, rs.cluster.Pod(rs.kept.UID)) {
		return
	}
	k := rs.kept
	k.over = true
	if k.guest != nil {
		if rs.cluster.Nominated(k.guest.UID) == nil {
			return // a pod of a higher priority has made room for itself there
		}
		rs.nominations.clearNomination(k.guest.UID)
	}
	if rs.cluster.Nominated(item.Pod.UID) == nil {
		rs.nominations.lendRoom(item, k.Node)
	}
}

// isFor reports whether a pending pod is the successor. victim is the pod being moved, nil after
// its deletion. The controller is read from the pod: the class has that of one of its pods,
// possibly of a workload recreated since.
func (k *keptReservation) isFor(item *queue.Item, victim *cluster.Pod) bool {
	leaving := rules.Predecessor{Namespace: k.Namespace, Name: k.Name, UID: k.UID, Owner: k.Owner}
	return leaving.MayBeSucceededBy(item.Pod) && (k.Ahead || victim == nil || victim.Terminating)
}
