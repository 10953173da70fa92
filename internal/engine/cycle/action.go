// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// Action is a request by the core: one of the types below. Given the same events, two cores return
// actions with the same printed form, which tests and replays compare, so it contains all decided
// values. The actions of a stage are in the file of the stage. Actions of one Step may be carried
// out in any order, except that writes to one pod (WriteStatus) must reach the API in the returned
// order.
type Action fmt.Stringer

// Ready is returned once, when all kinds are listed, this scheduler leads, and scheduling begins.
type Ready struct{}

func (Ready) String() string { return "ready" }

// Cancel requests that an action end as soon as possible. The action still has an outcome:
// Withdrawn if it had not begun. An action that has begun may succeed or fail, as its outcome
// shows.
type Cancel struct {
	Ticket Ticket
	Reason string
}

func (a Cancel) String() string { return fmt.Sprintf("cancel #%d: %s", a.Ticket, a.Reason) }

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

func (a WriteStatus) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "write status of %s", podName(a.Pod))
	if a.Ticket != 0 {
		fmt.Fprintf(&b, " #%d", a.Ticket)
	}
	if a.Nominate != nil {
		fmt.Fprintf(&b, ", nominated %q", *a.Nominate)
	}
	if c := a.Condition; c != nil {
		fmt.Fprintf(&b, ", %s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message)
	}
	return b.String()
}

// RecordEvent records a Kubernetes Event about an object. It has no outcome, and may be dropped.
type RecordEvent struct {
	Profile               string // the reporting component: a scheduler name
	Regarding             v1.ObjectReference
	Type, Reason, Message string
}

func (a RecordEvent) String() string {
	return fmt.Sprintf("tell %s %s of %s/%s: %s", a.Type, a.Reason, a.Regarding.Namespace, a.Regarding.Name, a.Message)
}

// ReadPod fetches a pod of which the core has kept only the name, or whose binding is overdue. The
// reply is Read; a deleted pod gets no reply.
type ReadPod struct{ Name cluster.Name }

func (a ReadPod) String() string { return fmt.Sprintf("read %s/%s", a.Name.Namespace, a.Name.Name) }

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

func (a Panicked) String() string {
	text := fmt.Sprintf("panic while %s/%s was decided: %s", a.Pod.Namespace, a.Pod.Name, a.Value)
	if a.Mended > 0 {
		text += fmt.Sprintf(" (%d nodes mended)", a.Mended)
	}
	return text
}
