// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/journal/records"
	"github.com/berth-k8s/berth/internal/kube/fakeapi"
)

// ofDatabase makes the StatefulSet db the controller of the pod.
func ofDatabase(pod *v1.Pod) *v1.Pod {
	controller := true
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: "db", Controller: &controller}}
	return pod
}

// keepRoom publishes a reservation on the node for the successor of pod db-0.
func (w *world) keepRoom(uid types.UID, node string) {
	w.Helper()
	text, err := json.Marshal([]cycle.MoveReservation{{Namespace: "default", Name: "db-0", UID: uid, Owner: "db", Node: node, GraceSeconds: 30}})
	if err != nil {
		w.Fatal(err)
	}
	w.api.Put(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Namespace: cycle.MoveLeaseNamespace, Name: cycle.MoveLeaseName, Annotations: map[string]string{cycle.MoveReservationAnnotation: string(text)},
	}})
}

// TestRoomIsKeptAcrossARestart verifies that a reservation for the successor of an evicted pod
// survives a restart of the scheduler between the eviction and the creation of the successor.
func TestRoomIsKeptAcrossARestart(t *testing.T) {
	inWorld(t, func(w *world) {
		w.api.Put(aNode("a", "2"), aNode("b", "2"))
		w.api.Put(ofDatabase(on(aPod("db-0", "2"), "a")))
		victim := w.api.Pods()[0]
		w.start(Options{})
		w.pass(time.Second)
		w.keepRoom(victim.UID, "b")
		w.pass(time.Second)
		w.api.Put(aPod("early", "2"))
		w.pass(time.Second)
		fakeapi.Change(w.api, victim, func(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} })
		w.pass(10 * time.Second)
		w.end()

		w.start(Options{})
		w.api.Put(aPod("late", "2"))
		w.pass(10 * time.Second)
		for _, thief := range []string{"early", "late"} {
			if node := w.nodeOf(thief); node != "" {
				t.Errorf("%s is on %s, whose room is kept", thief, node)
			}
		}
		w.api.Put(aNode("c", "2"), ofDatabase(aPod("db-1", "2"))) // a pod of the same StatefulSet, but not the successor
		w.until("the others have a node", func() bool { return w.nodeOf("early")+w.nodeOf("late")+w.nodeOf("db-1") == "c" })
		w.api.Delete(victim)
		successor := ofDatabase(aPod("db-0", "2"))
		successor.UID = "uid-successor"
		w.api.Put(successor)
		w.untilBound("db-0")
		if node := w.nodeOf("db-0"); node != "b" {
			t.Errorf("the successor is on %q, want b", node)
		}
	})
}

// TestPodsAreScheduledWithoutThePermissionToKeepRoom verifies that pods are scheduled if the
// permission to read the Lease is missing, for example after an upgrade of the scheduler, and that
// reservations take effect when the permission is granted.
func TestPodsAreScheduledWithoutThePermissionToKeepRoom(t *testing.T) {
	inWorld(t, func(w *world) {
		asked := 0
		w.api.SetFault(func(r *http.Request) fakeapi.Fault {
			if strings.HasSuffix(r.URL.Path, "/leases") {
				asked++
				return fakeapi.Fault{Status: http.StatusForbidden}
			}
			return fakeapi.Fault{}
		})
		w.api.Put(aNode("a", "2"), aPod("p", "1"))
		w.start(Options{})
		w.untilBound("p")
		w.pass(time.Minute)
		if asked != 1 {
			t.Errorf("asked %d times for what may not be read", asked)
		}
		w.api.SetFault(nil) // the Lease may be read from now on
		victim := ofDatabase(on(aPod("db-0", "2"), "b"))
		w.api.Put(aNode("b", "2"), aNode("c", "2"), victim)
		w.keepRoom(victim.UID, "c")
		w.pass(leaseAgain)
		w.api.Put(aPod("thief", "2"))
		w.pass(10 * time.Second)
		if node := w.nodeOf("thief"); node != "" {
			t.Errorf("the thief is on %q, whose room is kept", node)
		}
	})
}

// turn makes the journal continue in another file.
func (w *world) turn() {
	w.Helper()
	first := w.s.core
	for i := 0; first == w.s.core; i++ {
		if i == 100 {
			w.Fatal("the journal stays in its file")
		}
		n := aNode("full", "0")
		n.Labels = map[string]string{"heartbeat": fmt.Sprint(i, strings.Repeat(".", 10_000))}
		w.api.Put(n)
		w.pass(100 * time.Millisecond)
	}
}

// TestRoomIsKeptWhenTheJournalGoesOnInAnotherFile verifies that a reservation keeps its original
// deadline when the journal continues in another file.
func TestRoomIsKeptWhenTheJournalGoesOnInAnotherFile(t *testing.T) {
	inWorld(t, func(w *world) {
		w.limits = records.Limits{Size: 400_000}
		w.api.Put(aNode("a", "2"), aNode("b", "2"), ofDatabase(on(aPod("db-0", "2"), "a")))
		w.start(Options{})
		w.pass(time.Second)
		w.keepRoom(w.api.Pods()[0].UID, "b")
		w.pass(time.Minute)
		w.turn()
		w.api.Put(aPod("thief", "2"))
		w.pass(30 * time.Second)
		if node := w.nodeOf("thief"); node != "" {
			t.Errorf("the thief is on %q, whose room is kept", node)
		}
		w.pass(time.Minute)
		if node := w.nodeOf("thief"); node != "b" {
			t.Error("the room is kept for longer because of the journal")
		}
	})
}

// TestRoomThatWasTakenIsNotKeptAgain verifies that a reservation that has been used does not
// reappear when the journal continues in another file, although the evicted pod still exists.
func TestRoomThatWasTakenIsNotKeptAgain(t *testing.T) {
	inWorld(t, func(w *world) {
		w.limits = records.Limits{Size: 400_000}
		ofReplicaSet := func(pod *v1.Pod) *v1.Pod {
			pod = ofDatabase(pod)
			pod.OwnerReferences[0].Kind = "ReplicaSet"
			return pod
		}
		w.api.Put(aNode("a", "1"), aNode("b", "2"), ofReplicaSet(on(aPod("db-0", "1"), "a")))
		victim := w.api.Pods()[0]
		w.start(Options{})
		w.pass(time.Second)
		w.keepRoom(victim.UID, "b")
		w.pass(time.Second)
		fakeapi.Change(w.api, victim, func(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} })
		w.api.Put(ofReplicaSet(aPod("successor", "1")))
		w.untilBound("successor")
		w.turn()
		w.api.Put(aPod("next", "1"))
		w.pass(10 * time.Second)
		if node := w.nodeOf("next"); node != "b" {
			t.Error("the room is kept though the successor is there")
		}
	})
}

// TestRoomIsNotForAnotherNamespace verifies that a reservation does not admit a pod of another
// namespace, because a pod may have any ownerReference.
func TestRoomIsNotForAnotherNamespace(t *testing.T) {
	inWorld(t, func(w *world) {
		ofReplicaSet := func(pod *v1.Pod) *v1.Pod {
			pod = ofDatabase(pod)
			pod.OwnerReferences[0].Kind = "ReplicaSet"
			return pod
		}
		w.api.Put(aNode("a", "1"), aNode("b", "1"), ofReplicaSet(on(aPod("db-0", "1"), "a")))
		victim := w.api.Pods()[0]
		w.start(Options{})
		w.pass(time.Second)
		w.keepRoom(victim.UID, "b")
		w.pass(time.Second)
		fakeapi.Change(w.api, victim, func(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} })
		thief := ofReplicaSet(aPod("thief", "1"))
		thief.Namespace = "tenant"
		w.api.Put(thief)
		w.pass(10 * time.Second)
		if node := w.nodeOf("thief"); node != "" {
			t.Errorf("a pod of another namespace is on %q, whose room is kept", node)
		}
		w.api.Put(ofReplicaSet(aPod("successor", "1")))
		w.untilBound("successor")
		if node := w.nodeOf("successor"); node != "b" {
			t.Errorf("the successor is on %q, want b", node)
		}
	})
}
