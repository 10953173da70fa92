package live

import (
	"context"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/cycle"
)

// statusWrite is what is to be written about a pod, and the tickets that the first answer belongs
// to.
type statusWrite struct {
	cycle.WriteStatus
	tickets []cycle.Ticket
}

// newStatusWrite keeps of the pod what writing takes: it may wait for long, and pods are large. A
// ticket of 0 means that the core does not wait for the answer.
func newStatusWrite(a cycle.WriteStatus) *statusWrite {
	one := &statusWrite{WriteStatus: a}
	one.Pod = &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: a.Pod.Namespace, Name: a.Pod.Name, UID: a.Pod.UID,
		ResourceVersion: a.Pod.ResourceVersion}}
	if a.Ticket != 0 {
		one.tickets = append(one.tickets, a.Ticket)
	}
	return one
}

// mergeAfter merges two writes into one with the same effect: the newer condition and nomination
// count, and where it has none, the older ones. All tickets get the outcome of the one write.
func (a *statusWrite) mergeAfter(older *statusWrite) *statusWrite {
	both := &statusWrite{a.WriteStatus, append(older.tickets, a.tickets...)}
	if both.Condition == nil {
		both.Condition = older.Condition
	}
	if both.Nominate == nil {
		both.Nominate = older.Nominate
	}
	return both
}

// writeFirst writes, and answers the tickets with the outcome. If it is tried again, there are none
// left: the core waits for the first try, not until the API server is well again.
func (s *Scheduler) writeFirst(ctx context.Context, a *statusWrite) error {
	err := s.writer.writeStatus(ctx, a.WriteStatus)
	s.answerTickets(a, outcomeOf(err))
	return err
}

// answerTickets tells the core the outcome for each status that was merged into the write.
func (s *Scheduler) answerTickets(a *statusWrite, o cycle.Outcome) {
	for _, ticket := range a.tickets {
		s.loop.See(cycle.Answered{Ticket: ticket, Outcome: o})
	}
	a.tickets = nil
}
