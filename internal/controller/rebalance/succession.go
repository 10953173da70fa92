// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance

import (
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
	objects "github.com/berth-k8s/berth/internal/world"
	"github.com/berth-k8s/berth/internal/world/claimcontrollers"
	"github.com/berth-k8s/berth/internal/world/workload"
)

// history is the place of a pod in a plan. Successive moves of the same workload pod are linked by
// victim and next.
type history struct {
	// victim is the pod of the state replaced by this successor; the pod itself if it was not
	// moved.
	victim *pod
	been   []string // nodes left by its predecessors
	// late marks a successor, or a pod that was pending when the plan began. Such a pod is not
	// moved.
	late   bool
	after  int             // for a formerly pending pod: number of moves before its placement
	next   *pod            // its successor, built on first use
	claims []metav1.Object // claims made by controllers for a successor
}

// withoutPod takes a pod off its node for a proof. It calls terminating with the successor while
// the pod still terminates on the node, and then calls gone with the successor after the removal of
// the pod.
//
// The world's gauges are not updated: they count the pod on its node. terminating is not called if
// the controller makes the successor only after the pod's removal. Both callbacks get the pod's
// node, and must undo their changes.
func (w *world) withoutPod(p *pod, terminating, gone func(next *pod, from *cluster.Node)) {
	next, from := w.successorFor(p), p.Node
	defer w.Undo(w.Mark())
	w.Remove(p.Pod)

	if w.successionOf(p) != workload.WhenGone {
		w.createClaims(next.claims)
		// The decision requires a terminating pod on the node: it holds room, but topology spread
		// ignores it. A guest is a copy, so the pod itself does not change.
		guest := *p.Pod
		guest.Terminating = true
		visitor := w.c.Visit(&guest, from)
		terminating(next, from)
		w.c.Leave(visitor)
	}

	w.releaseOf(p)
	w.createClaims(next.claims)
	gone(next, from)
}

// successorFor returns the pod created by the controller to replace the given one, from the
// controller's current template. The template differs from the pod's only during a rollout, when
// only drains remove pods. The successor is built once per pod and cached, so that a proof, the
// following move and its messages refer to the same pod. The successor is pending until placed.
func (w *world) successorFor(p *pod) *pod {
	if p.next != nil {
		return p.next
	}
	object, before := successorOf(w.Workloads().Next(p.object), w.now), p
	// Claims of ephemeral volumes are named after their pod. A StatefulSet's successor has its
	// victim's name, so the victim's claims must be removed first.
	if object.Name != p.Name() {
		before = nil
	}
	claims := w.makeFor(object, before)
	next := &pod{Pod: w.c.Pending(object), object: object, history: history{victim: p.victim, late: true, claims: claims}}
	p.next = next
	return next
}

// successorOf returns a pod's successor without claims. Its UID identifies the predecessor.
//
//	victim uid "abc"    -> successor uid "abc'"    -> its own successor "abc''"
//
// The name is one the API server could generate, with the UID replacing the random suffix: the same
// plan names the same pods each time.
func successorOf(victim *v1.Pod, now time.Time) *v1.Pod {
	return workload.Successor(victim, objects.UIDOf(victim)+"'", func(p *v1.Pod, controller *metav1.OwnerReference) string {
		return claimcontrollers.Name(p.Namespace, claimcontrollers.BaseOf(p, controller), p.UID, func(string) bool { return false })
	}, metav1.NewTime(now))
}

// successionOf returns when a pod's successor is created. A terminal pod has been replaced already,
// or never will be. The controller need not be in the state: its kind is enough, except for Jobs.
func (w *world) successionOf(p *pod) workload.Succession {
	if p.orphan || rules.IsTerminal(p.object) {
		return workload.None
	}
	return workload.SuccessionOf(metav1.GetControllerOfNoCopy(p.object), w.Workloads().JobOf(p.object))
}

// countSiblings counts the pods of a pod's workload, including the pod itself; a pod without a
// controller is the only one. It is the number at the beginning of the plan: successors replace
// victims one for one.
func (w *world) countSiblings(p *pod) int {
	owner := rules.OwnerOf(p.object)
	if owner == (rules.Owner{}) {
		return 1
	}
	return w.siblings[owner]
}

// workloadOf returns the key of a pod's workload in Options.Resting: NAMESPACE/Kind/NAME.
func workloadOf(object *v1.Pod) string {
	return (&Move{Namespace: object.Namespace, Name: object.Name, Owner: rules.ControllerRef(object)}).Workload()
}
