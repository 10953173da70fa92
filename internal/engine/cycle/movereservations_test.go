// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"encoding/json"
	"fmt"
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

// showRoom reserves room on a random node for the successor of a random pod, or ends the
// reservation. In most cases, it then also deletes the pod and creates the successor.
func (c *chaos) showRoom() {
	victim := c.anyPod()
	if victim == nil || victim.Spec.NodeName == "" || len(victim.OwnerReferences) == 0 || c.rng.IntN(4) == 0 {
		c.putRoom(nil)
		return
	}
	c.putRoom(&MoveReservation{
		Namespace: victim.Namespace, Name: victim.Name, UID: victim.UID, Owner: victim.OwnerReferences[0].UID, Node: fmt.Sprintf("n%d", c.rng.IntN(10)),
		Begun: c.now.Format(time.RFC3339Nano),
	})
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

// putRoom writes the Lease with the reservation, or without one for nil.
func (w *world) putRoom(room *MoveReservation) {
	w.version++
	w.lease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Namespace: MoveLeaseNamespace, Name: MoveLeaseName, UID: "uid-room", ResourceVersion: fmt.Sprint(w.version),
	}}
	if room != nil {
		text, err := json.Marshal(room)
		if err != nil {
			panic(err)
		}
		w.lease.Annotations = map[string]string{MoveReservationAnnotation: string(text)}
	}
	w.watches[MoveLeases] = append(w.watches[MoveLeases], Seen{MoveLeases, w.lease})
}

// guest returns the guest nominated for the reservation, or nil; see moveReservations.
func (w *world) guest() *cluster.Pod {
	for _, n := range w.core.View().Cluster.NominatedNodes() {
		for _, p := range n.Nominated {
			if strings.HasSuffix(string(p.UID), "/room") {
				return p
			}
		}
	}
	return nil
}

// checkRoomKept checks that no waiting pod of the same or a lower priority is decided on a node
// with reserved room, unless it leaves that room free.
func (w *world) checkRoomKept(e Event, actions []Action) {
	guest := w.guest()
	if _, ticked := e.(Tick); !ticked || guest == nil {
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
		n := w.core.View().Cluster.Node(node)
		if node != guest.Nominated || n == nil || w.priorityOf(pod.UID, *pod.Spec.Priority) > guest.Class.Priority {
			continue
		}
		besideRoom.Add(1)
		if left := n.Size.MilliCPU - n.Requested.MilliCPU; left < guest.Class.Requests.MilliCPU {
			w.breaks("pod %s is decided on %s, where %dm are left and %dm are kept for the successor of %s", pod.Name, node, left, guest.Class.Requests.MilliCPU, guest.Name)
		}
	}
}
