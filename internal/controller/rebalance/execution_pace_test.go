// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/internal/response"
)

// subject returns the object of a request and its ticket. ok is false for actions that write
// nothing.
func subject(action execute.Action) (object string, ticket response.Ticket, ok bool) {
	switch a := action.(type) {
	case execute.Note:
		// Each move is written once before it begins; that does not count as a repetition.
		if a.Journal.Move != nil {
			return "journal of pod " + a.Journal.Move.Name, a.Ticket, true
		}
		return "journal without a move", a.Ticket, true
	case execute.SetTaint:
		return "taint of node " + a.Node, a.Ticket, true
	case execute.Cordon:
		return "cordon of node " + a.Node, a.Ticket, true
	case execute.SetNode:
		return "node " + a.Node, a.Ticket, true
	case execute.Evict:
		return "eviction of pod " + a.Name, a.Ticket, true
	case execute.Mark:
		return "pod " + a.Name, a.Ticket, true
	case execute.Scale:
		return "scale of " + a.Target.String(), a.Ticket, true
	}
	return "", 0, false
}

// responses are the responses an API server may give to every request, indefinitely.
var responses = map[string]func(s *stage, ticket response.Ticket, do func() execute.Event) execute.Event{
	"success without effect": func(_ *stage, ticket response.Ticket, _ func() execute.Event) execute.Event {
		return execute.Answered{Ticket: ticket, Version: "1"}
	},
	"success that the watch does not show": func(s *stage, _ response.Ticket, do func() execute.Event) execute.Event {
		s.faults.blind = true
		return do()
	},
	"success, and no controller acts": func(s *stage, _ response.Ticket, do func() execute.Event) execute.Event {
		s.faults.idle = true
		return do()
	},
	"404": func(_ *stage, ticket response.Ticket, _ func() execute.Event) execute.Event {
		return execute.Answered{Ticket: ticket, Outcome: response.Gone, Message: "not found"}
	},
	"404 while the watch lags": func(s *stage, ticket response.Ticket, do func() execute.Event) execute.Event {
		s.faults.blind = true
		do()
		return execute.Answered{Ticket: ticket, Outcome: response.Gone, Message: "not found"}
	},
	"409": func(_ *stage, ticket response.Ticket, _ func() execute.Event) execute.Event {
		return execute.Answered{Ticket: ticket, Outcome: response.Conflict, Message: "conflict"}
	},
	"403": func(_ *stage, ticket response.Ticket, _ func() execute.Event) execute.Event {
		return execute.Answered{Ticket: ticket, Outcome: response.Refused, Message: "forbidden"}
	},
	"429": func(_ *stage, ticket response.Ticket, _ func() execute.Event) execute.Event {
		return execute.Answered{Ticket: ticket, Outcome: response.Busy, Message: "too many requests"}
	},
	"429 with Retry-After": func(_ *stage, ticket response.Ticket, _ func() execute.Event) execute.Event {
		return execute.Answered{Ticket: ticket, Outcome: response.Busy, Message: "too many requests", RetryAfter: time.Second}
	},
	"500": func(_ *stage, ticket response.Ticket, _ func() execute.Event) execute.Event {
		return execute.Answered{Ticket: ticket, Outcome: response.Failed, Message: "no response"}
	},
	"carried out, and no response": func(_ *stage, ticket response.Ticket, do func() execute.Event) execute.Event {
		do()
		return execute.Answered{Ticket: ticket, Outcome: response.Failed, Message: "no response"}
	},
	"EvictionRequest that stands forever": func(_ *stage, ticket response.Ticket, do func() execute.Event) execute.Event {
		return execute.Answered{Ticket: ticket, Outcome: response.Asked, Message: "a responder is at work"}
	},
}

// mostRequests bounds the requests for one object within a minute, whatever the responses are.
const mostRequests = 20

// TestRequestsAreSpacedWhateverTheResponses verifies that moves, drains and rolls send at most
// mostRequests requests for an object per minute if every request, or every request of one kind,
// gets the same response for good, and that they end when interrupted.
func TestRequestsAreSpacedWhateverTheResponses(t *testing.T) {
	const world = `node a cpu=4 label=pool:roll
		node b cpu=4 label=pool:roll
		node c cpu=8
		deployment web
		pods web count=2 on=a cpu=1 label=app:web
		pods web2 count=1 on=b cpu=1 label=app:web2
		pods web3 count=3 on=c cpu=1
		budget web of=app:web unavailable=1
		budget web2 of=app:web2 unavailable=1`
	drain := func(surge bool) func(s *stage) core {
		return func(*stage) core {
			return execute.NewDrainer(execute.DrainOptions{Leaving: rebalance.Leaving{Nodes: []string{"a", "b"}, Surge: surge}})
		}
	}
	cores := map[string]struct {
		goals []string
		begin func(s *stage) core
	}{
		"moves":            {[]string{"consolidate=1"}, func(*stage) core { return execute.New(execute.Options{Every: 10 * time.Second}) }},
		"moves with surge": {[]string{"consolidate=1"}, func(*stage) core { return execute.New(execute.Options{Every: 10 * time.Second, Surge: true}) }},
		"drain":            {nil, drain(false)},
		"drain with surge": {nil, drain(true)},
		"roll": {nil, func(*stage) core {
			return execute.NewRoller(execute.RollOptions{
				DrainOptions: execute.DrainOptions{Leaving: rebalance.Leaving{Surge: true}}, Until: execute.UntilDrained,
				Selector: labels.SelectorFromSet(labels.Set{"pool": "roll"}), AtOnce: func(int) int { return 1 },
			})
		}},
	}
	met := map[string]int{}
	for name, c := range cores {
		for response, respond := range responses {
			for _, kind := range []string{"", "execute.Evict", "execute.Scale", "execute.Mark", "execute.SetNode", "execute.SetTaint", "execute.Note"} {
				policy := &rebalance.Policy{}
				if c.goals != nil {
					var err error
					if policy, err = rebalance.ReadGoals(c.goals, "default"); err != nil {
						t.Fatal(err)
					}
				}
				s := newStage(t, 1, world, policy)
				s.draining, s.statuses = true, true
				s.count()
				s.run(time.Second)
				sent := map[string][]time.Time{}
				s.faults.respond = func(action execute.Action, do func() execute.Event) execute.Event {
					object, ticket, ok := subject(action)
					if !ok {
						return do()
					}
					times := append(sent[object], s.now)
					sent[object] = times
					if i := len(times) - 1 - mostRequests; i >= 0 && s.now.Sub(times[i]) < time.Minute {
						t.Fatalf("%s, %s to %q: more than %d requests for the %s within a minute\n%s",
							name, response, kind, mostRequests, object, s.lines.String())
					}
					if kind != "" && fmt.Sprintf("%T", action) != kind {
						return do()
					}
					met[name]++
					return respond(s, ticket, do)
				}
				s.begin(c.begin(s))
				s.run(10 * time.Minute)
				s.step(execute.Stop{})
				s.run(3 * time.Minute)
				if len(s.done)+len(s.drained)+len(s.rolls) == 0 {
					t.Errorf("%s, %s to %q: not over three minutes after it was interrupted\n%s", name, response, kind, s.lines.String())
				}
			}
		}
	}
	for name := range cores {
		if met[name] < 100 {
			t.Errorf("%s: only %d faults were met", name, met[name])
		}
	}
}

// TestATenantsLabelDoesNotHoldADrainUp verifies that a drain ends although a tenant's ReplicaSet
// carries the label of an earlier run's surge and can never be scaled back.
func TestATenantsLabelDoesNotHoldADrainUp(t *testing.T) {
	for _, outcome := range []response.Outcome{response.Refused, response.Failed} {
		s := newStage(t, 1, "node a cpu=4\nnode b cpu=4\npods web count=2 on=a cpu=1", &rebalance.Policy{})
		s.draining, s.statuses = true, true
		s.enter(&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{
			Namespace: "tenant", Name: "trap", UID: "trap", Labels: map[string]string{rebalance.SurgeLabel: "0_x_1"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "c", UID: "c", Controller: ptr.To(true)}},
		}})
		s.count()
		scales := 0
		s.faults.respond = func(action execute.Action, do func() execute.Event) execute.Event {
			if a, ok := action.(execute.Scale); ok && a.Target.Name == "trap" {
				scales++
				return execute.Answered{Ticket: a.Ticket, Outcome: outcome, Message: "ConfigMap has no scale subresource"}
			}
			return do()
		}
		s.begin(execute.NewDrainer(execute.DrainOptions{Leaving: rebalance.Leaving{Nodes: []string{"a"}}, Timeout: 20 * time.Second}))
		s.run(time.Minute)
		if text := s.lines.String(); !strings.Contains(text, "a deleted pod of tenant: not replaced: ConfigMap/c") {
			t.Errorf("%v: told\n%s", outcome, text)
		}
		if len(s.drained) != 1 || s.drained[0].Evicted != 2 || s.drained[0].Stopped != "" || scales == 0 {
			t.Errorf("%v: %d requests to scale the trap, ended with %+v\n%s", outcome, scales, s.drained, s.lines.String())
		}
	}
}

// TestANoteOfAKilledRunIsWaitedForUntilItExpires verifies that a drain with surges waits for a
// workload labelled by another run, and scales it back once that note has expired.
func TestANoteOfAKilledRunIsWaitedForUntilItExpires(t *testing.T) {
	s := newStage(t, 1, "node a cpu=4\nnode b cpu=4\nnode c cpu=8\ndeployment web\npod web-0 on=a cpu=1 owner=ReplicaSet/web\npod web-1 on=b cpu=1 owner=ReplicaSet/web",
		&rebalance.Policy{})
	s.draining, s.statuses = true, true
	s.count()
	s.run(time.Second)
	begin := func(node string) {
		s.begin(execute.NewDrainer(execute.DrainOptions{Leaving: rebalance.Leaving{Nodes: []string{node}, Surge: true}}))
	}
	s.faults.scaled = func(execute.Scale) {
		s.faults.scaled = nil
		s.kill()
	}
	begin("a") // killed right after it has scaled the workload up
	s.run(time.Second)
	begin("b")
	lines := strings.Count(s.lines.String(), "\n")
	s.run(10 * time.Minute)
	if more := strings.Count(s.lines.String(), "\n") - lines; len(s.drained) > 0 || more > 100 {
		t.Errorf("%d lines in ten minutes, ended with %+v\n%s", more, s.drained, s.lines.String())
	}
	s.run(10 * time.Minute)
	if len(s.drained) != 1 || s.drained[0].Stopped != "" {
		t.Errorf("ended with %+v\n%s", s.drained, s.lines.String())
	}
	for key, o := range s.objects {
		if label := o.GetLabels()[rebalance.SurgeLabel]; label != "" {
			t.Errorf("%s still has the label %s", key, label)
		}
	}
	if up := s.up("web"); up != 2 {
		t.Errorf("%d pods are ready, expected 2", up)
	}
}
