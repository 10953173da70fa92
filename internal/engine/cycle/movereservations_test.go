// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	. "github.com/berth-k8s/berth/internal/engine/cycle"
)

// besideRoom counts decisions on nodes with reserved room that the decided pods must not use.
var besideRoom atomic.Int64

// ownedBy makes the ReplicaSet of a pod's app the controller of the pod.
func ownedBy(p *v1.Pod) {
	controller, app := true, p.Labels["app"]
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: app, UID: types.UID("uid-" + app), Controller: &controller}}
}

// showRoom reserves room on a random node for the successor of a random pod, in addition to some of
// the existing reservations, or ends them. In most cases, it then also deletes the pod and creates
// the successor.
func (c *chaos) showRoom() {
	victim := c.anyPod()
	if victim == nil || victim.Spec.NodeName == "" || len(victim.OwnerReferences) == 0 || c.rng.IntN(4) == 0 {
		c.putRooms()
		return
	}
	rooms := slices.DeleteFunc(slices.Clone(c.rooms), func(MoveReservation) bool { return c.rng.IntN(3) == 0 })
	c.putRooms(append(rooms, MoveReservation{
		Namespace: victim.Namespace, Name: victim.Name, UID: victim.UID, Owner: victim.OwnerReferences[0].UID, Node: fmt.Sprintf("n%d", c.rng.IntN(10)),
		Begun: c.now.Format(time.RFC3339Nano),
	})...)
	if c.rng.IntN(3) == 0 {
		return // the component that moves pods has failed, or the eviction is refused
	}
	if victim.DeletionTimestamp == nil {
		c.change(victim, func(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: c.now} })
	}
	next := victim.DeepCopy()
	next.Name, next.DeletionTimestamp = fmt.Sprintf("p%d", c.made), nil
	c.made++
	next.UID = types.UID(fmt.Sprintf("%s-%d", next.Name, c.made))
	next.Spec.NodeName, next.Status = "", v1.PodStatus{}
	c.put(next)
}

// putRooms writes the Lease with these reservations.
func (w *world) putRooms(rooms ...MoveReservation) {
	w.version++
	w.rooms = rooms
	w.lease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Namespace: MoveLeaseNamespace, Name: MoveLeaseName, UID: "uid-room", ResourceVersion: fmt.Sprint(w.version),
	}}
	if len(rooms) > 0 {
		text, err := json.Marshal(rooms)
		if err != nil {
			panic(err)
		}
		w.lease.Annotations = map[string]string{MoveReservationAnnotation: string(text)}
	}
	w.watches[MoveLeases] = append(w.watches[MoveLeases], Seen{MoveLeases, w.lease})
}

// guests returns the guests nominated for the reservations; see moveReservations.
func (w *world) guests() (guests []*cluster.Pod) {
	for _, n := range w.core.View().Cluster.NominatedNodes() {
		for _, p := range n.Nominated {
			if strings.HasSuffix(string(p.UID()), "/room") {
				guests = append(guests, p)
			}
		}
	}
	return guests
}

// checkRoomKept checks that no waiting pod of the same or a lower priority is decided on a node
// with reserved room, unless it leaves that room free.
func (w *world) checkRoomKept(e Event, actions []Action) {
	guests := w.guests()
	if _, ticked := e.(Tick); !ticked || len(guests) == 0 {
		return
	}
	for _, action := range actions {
		var pod *v1.Pod
		var node string
		switch a := action.(type) {
		case Bind:
			pod, node = a.Attempt.Pod, a.Attempt.Node
		case Preflight:
			pod, node = a.Attempt.Pod, a.Attempt.Node
		case Hold:
			pod, node = a.Pod, a.Node
		default:
			continue
		}
		n, kept := w.core.View().Cluster.Node(node), int64(0)
		for _, guest := range guests {
			if node == guest.Nominated && w.priorityOf(pod.UID, *pod.Spec.Priority) <= guest.Class.Priority {
				kept += guest.Class.Requests.MilliCPU
			}
		}
		if n == nil || kept == 0 {
			continue
		}
		besideRoom.Add(1)
		if left := n.Size.MilliCPU - n.Requested.MilliCPU; left < kept {
			w.breaks("pod %s is decided on %s, where %dm are left and %dm are kept for successors", pod.Name, node, left, kept)
		}
	}
}
