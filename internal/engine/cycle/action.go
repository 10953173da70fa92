// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/groups"
)

// Action is a request by the core: one of the types below. Given the same events, two cores return
// actions with the same printed form. Actions of one Step may be carried out in any order, except
// that writes to one pod (WriteStatus) must reach the API in the returned order.
type Action interface {
	fmt.Stringer
	isAction()
}

// Ready is returned once, when all kinds are listed, this scheduler leads, and scheduling begins.
type Ready struct{}

// Cancel requests that an action end as soon as possible. The action still has an outcome:
// Withdrawn if it had not begun. An action that has begun may succeed or fail, as its outcome
// shows.
type Cancel struct {
	Ticket Ticket
	Reason string
}

// WriteStatus writes a condition, the nominated node, or both to a pod; a nil field is left
// unchanged. It has an outcome only if it has a ticket. A nominated node of "" clears the field.
type WriteStatus struct {
	Ticket    Ticket
	Pod       *v1.Pod
	Condition *v1.PodCondition
	Nominate  *string
	// Reworded: the write changes only the message of the existing condition, and may be delayed
	// until after all other writes.
	Reworded bool
}

// WriteGroup writes the condition PodGroupInitiallyScheduled of a PodGroup.
type WriteGroup struct {
	Group     *groups.PodGroup
	Condition metav1.Condition
}

// RecordEvent records a Kubernetes Event about an object. It has no outcome, and may be dropped.
type RecordEvent struct {
	Profile               string // the reporting component: a scheduler name
	Regarding             v1.ObjectReference
	Type, Reason, Message string
}

// ReadPod fetches a pod of which the core has kept only the name. The reply is Read; a deleted pod
// gets no reply.
type ReadPod struct{ Name cluster.Name }

// Compared reports another scheduler's placement of a pod served by a profile, with every plugin's
// verdict on every node before the placement; see reconstruction. Only a shadow core returns it.
type Compared struct {
	Pod        *v1.Pod
	Node       string
	Evaluation *decide.Evaluation
	// Unclear is set if the other scheduler may have decided the pod in a state of the cluster that
	// the shadow did not evaluate.
	Unclear bool
}

// Panicked reports a panic while deciding a pod. The attempt has ended, and all state derived from
// pods and nodes has been recomputed.
type Panicked struct {
	Pod   v1.ObjectReference
	Value string
	Stack []byte
	// Mended counts the nodes whose totals differed from the totals of their pods in the API, and
	// were corrected.
	Mended int
}

func (Ready) isAction()       {}
func (Cancel) isAction()      {}
func (WriteStatus) isAction() {}
func (WriteGroup) isAction()  {}
func (RecordEvent) isAction() {}
func (ReadPod) isAction()     {}
func (Compared) isAction()    {}
func (Panicked) isAction()    {}
