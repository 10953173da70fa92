// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"cmp"
	"context"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/cycle"
)

// statusWrite is a pending write of a pod's status, with the tickets waiting for the outcome of its
// first attempt.
type statusWrite struct {
	cycle.WriteStatus
	tickets []cycle.Ticket
}

// newStatusWrite keeps only the fields of the pod that are needed for the write, because it may be
// queued for long, and pods are large. A ticket of 0 means that the core does not wait for the
// outcome.
func newStatusWrite(a cycle.WriteStatus) *statusWrite {
	one := &statusWrite{WriteStatus: a}
	one.Pod = &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: a.Pod.Namespace, Name: a.Pod.Name, UID: a.Pod.UID,
		ResourceVersion: a.Pod.ResourceVersion}}
	if a.Ticket != 0 {
		one.tickets = append(one.tickets, a.Ticket)
	}
	return one
}

// mergeAfter merges two writes into one with the same effect. The newer condition and nomination,
// if set, take precedence over the older ones. All tickets get the outcome of the merged write.
func (a *statusWrite) mergeAfter(older *statusWrite) *statusWrite {
	both := &statusWrite{a.WriteStatus, append(older.tickets, a.tickets...)}
	both.Condition = cmp.Or(both.Condition, older.Condition)
	both.Nominate = cmp.Or(both.Nominate, older.Nominate)
	return both
}

// writeFirst writes the status, and reports the outcome for the tickets. A retry has no tickets,
// because the core waits only for the first attempt.
func (s *Scheduler) writeFirst(ctx context.Context, a *statusWrite) error {
	err := s.writer.writeStatus(ctx, a.WriteStatus)
	s.answerTickets(a, outcomeOf(err))
	return err
}

// answerTickets reports the outcome of the write to the core for each of its tickets.
func (s *Scheduler) answerTickets(a *statusWrite, o cycle.Outcome) {
	for _, ticket := range a.tickets {
		s.loop.See(cycle.Answered{Ticket: ticket, Outcome: o})
	}
	a.tickets = nil
}
