// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"encoding/json"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Name, namespace and annotation of the Lease that the core follows as [MoveLeases]. The annotation
// holds a list of [MoveReservation] as JSON; without the annotation, nothing is reserved.
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
	Owner     types.UID `json:"owner"` // the controller that creates the successor
	Node      string    `json:"node"`  // the intended node of the successor
	// Ahead is set if the successor starts before the pod stops.
	Ahead bool `json:"ahead,omitempty"`
	// GraceSeconds is the maximum time for the pod to terminate.
	GraceSeconds int64 `json:"graceSeconds,omitempty"`
	// Begun distinguishes two attempts at the same move.
	Begun string `json:"begun,omitempty"`
}

// Limits of a reservation: maximum waits for the steps of a move.
const (
	leavesWithin  = 2 * time.Minute // wait for the pod's deletion to begin and, beyond its grace period, for its termination
	arrivesWithin = time.Minute     // wait for the successor after the pod's deletion
	longestGrace  = int64(time.Hour / time.Second)
	mostMoves     = 100 // reservations read from the Lease
)

// moveReservations reserves capacity for the successors of pods being moved. The move is announced
// in a Lease that only the component moving pods may write.
//
// A guest with the class of the leaving pod is nominated to the node, which reserves the capacity
// against pods of the same or a lower priority. The successor is the first pod of the same
// controller that is tried while the leaving pod is terminating or after its deletion, or at any
// time if the successor starts first. The successor replaces the guest: it is nominated for that
// attempt, and is placed on the node if it fits there. If the leaving pod is unknown, no guest is
// created, but the successor is nominated as well.
//
// A reservation is held for a limited time, whether or not the Lease is deleted.
type moveReservations struct {
	*common
	nominations *nominations
	kept        []*keptReservation // the reservations shown by the Lease
}

// keptReservation is a reservation shown by the Lease, and the progress of the move.
type keptReservation struct {
	MoveReservation
	guest         *cluster.Pod // nil if no guest is nominated
	until         time.Time
	leaving, gone bool // whether the pod was terminating, or unknown, in the last check
	over          bool // the reservation has ended
}

// seen processes the Lease. Every list shows the same Lease again, so a reservation that has ended
// must stay ended.
func (rs *moveReservations) seen(lease *coordinationv1.Lease) {
	var shown []MoveReservation
	if json.Unmarshal([]byte(lease.Annotations[MoveReservationAnnotation]), &shown) != nil {
		shown = nil
	}
	rs.show(shown[:min(len(shown), mostMoves)])
}

// show replaces the reservations. A reservation that is shown again continues; all others end.
func (rs *moveReservations) show(shown []MoveReservation) {
	rs.kept = slices.DeleteFunc(rs.kept, func(k *keptReservation) bool {
		stays := slices.Contains(shown, k.MoveReservation)
		if !stays {
			rs.endReservation(k)
		}
		return !stays
	})
	for _, r := range shown {
		if r.UID == "" || r.Node == "" || slices.ContainsFunc(rs.kept, func(k *keptReservation) bool { return k.UID == r.UID }) {
			continue
		}
		k := &keptReservation{MoveReservation: r, until: rs.now.Add(leavesWithin)}
		rs.kept = append(rs.kept, k)
		rs.follow(k)
	}
}

// endReservation frees the capacity, which may help other pods. The Lease may still show the
// reservation.
func (rs *moveReservations) endReservation(k *keptReservation) {
	if k.over {
		return
	}
	k.over = true
	if k.guest != nil {
		rs.nominations.clearNomination(k.guest.UID())
	}
}

// save returns the deadlines of the reservations, by leaving pod.
func (rs *moveReservations) save() map[types.UID]time.Time {
	untils := map[types.UID]time.Time{}
	for _, k := range rs.kept {
		if !k.over {
			untils[k.UID] = k.until
		}
	}
	return untils
}

// resume sets the deadlines at which another core would have ended the reservations, and ends any
// reservations that the other core did not have.
func (rs *moveReservations) resume(untils map[types.UID]time.Time) {
	for _, k := range rs.kept {
		until, held := untils[k.UID]
		if k.until = until; !held {
			rs.endReservation(k)
		}
	}
}

// follow tracks the leaving pod: it creates the guest, and moves the deadline of the reservation.
// After a restart, the pod may be shown after the Lease.
func (rs *moveReservations) follow(k *keptReservation) {
	victim := rs.cluster.Pod(k.UID)
	if victim == nil {
		if !k.gone {
			k.gone, k.until = true, rs.now.Add(arrivesWithin)
		}
		return
	}
	k.gone = false
	if k.guest == nil && victim.NodeName != k.Node && victim.Spec().SchedulingGroup == nil { // groups are decided as a whole
		k.guest = cluster.NewPod(victim.Class, victim.Name(), victim.UID()+"/room")
		k.guest.Created = victim.Created
		rs.cluster.Nominate(k.guest, k.Node)
	}
	if victim.Terminating && !k.leaving {
		grace := time.Duration(min(max(k.GraceSeconds, 0), longestGrace)) * time.Second
		k.leaving, k.until = true, rs.now.Add(grace+leavesWithin)
	}
}

// lapse ends the reservations with a passed deadline. The state of the leaving pods is checked with
// every tick.
func (rs *moveReservations) lapse() {
	for _, k := range rs.kept {
		if k.over {
			continue
		}
		rs.follow(k)
		if !rs.now.Before(k.until) {
			rs.endReservation(k)
		}
	}
}

// useReservation nominates a pod about to be tried to the node with the reservation for it.
func (rs *moveReservations) useReservation(item *queue.Item) {
	i := slices.IndexFunc(rs.kept, func(k *keptReservation) bool { return !k.over && k.isFor(item, rs.cluster.Pod(k.UID)) })
	if i < 0 {
		return
	}
	k := rs.kept[i]
	k.over = true
	if k.guest != nil {
		if rs.cluster.Nominated(k.guest.UID()) == nil {
			return // a preemption by a pod of a higher priority has taken the room
		}
		rs.nominations.clearNomination(k.guest.UID())
	}
	if rs.cluster.Nominated(item.Pod.UID) == nil {
		// If the pod fits nowhere, the room is released after the next attempt, because a pod that
		// may not preempt would keep it for as long as the pod waits.
		rs.nominations.nominatePod(item, k.Node)
		rs.nominations.lent[item.Pod.UID] = true
	}
}

// isFor reports whether a pending pod is the successor. victim is the pod being moved, nil after
// its deletion. The controller is read from the pod: the class holds the controller of one of its
// pods, which may belong to a workload that was recreated since.
func (k *keptReservation) isFor(item *queue.Item, victim *cluster.Pod) bool {
	leaving := rules.Predecessor{Namespace: k.Namespace, Name: k.Name, UID: k.UID, Owner: k.Owner}
	return leaving.MayBeSucceededBy(item.Pod) && (k.Ahead || victim == nil || victim.Terminating)
}
