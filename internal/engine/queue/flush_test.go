package queue

import (
	"testing"
	"time"
)

func TestNobodyWaitsLongerThanFiveMinutes(t *testing.T) {
	q := newQueue()
	q.Add(pod("p", 0), class, epoch)
	q.Rejected(pop(t, q, epoch, "p"), []string{"Never"}, nil, epoch)
	q.Flush(epoch.Add(MaxWait - time.Second))
	pop(t, q, epoch.Add(MaxWait-time.Second), "nothing")
	q.Flush(epoch.Add(MaxWait))
	if item := pop(t, q, epoch.Add(MaxWait), "p"); !item.Overdue {
		t.Error("nobody can tell that no event has woken it")
	}
}

// TestGateThatRegistersTheWildcardIsAskedAgain: after five minutes, and no other gate is.
func TestGateThatRegistersTheWildcardIsAskedAgain(t *testing.T) {
	for _, c := range []struct {
		interest Interest
		asked    bool
	}{
		{Interest{Resource: AnyResource, Action: All, Hint: func(*Item, *Event) bool { return false }}, true},
		{Interest{Resource: AnyResource, Action: Add}, false},
		{Interest{Resource: Node, Action: All}, false},
	} {
		q, closed := newQueue(), true
		q.Admit = func(*Item) string {
			if closed {
				return "Gate"
			}
			return ""
		}
		q.SetInterests("s", Interests{"Gate": {c.interest}})
		item := q.Add(pod("p", 0), class, epoch)
		q.Flush(epoch.Add(MaxWait))
		if item.Place() != Gated || item.Overdue {
			t.Fatalf("the gate is closed, and the pod %s", item.Place())
		}
		closed = false
		q.Flush(epoch.Add(MaxWait - time.Second))
		if item.Place() != Gated {
			t.Fatalf("it came in too early: it is %s", item.Place())
		}
		q.Flush(epoch.Add(MaxWait))
		if got := item.Place() == Active && item.Overdue; got != c.asked {
			t.Errorf("%s %s: asked is %t, want %t", c.interest.Resource, c.interest.Action, got, c.asked)
		}
	}
}
