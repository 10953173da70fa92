// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/internal/response"
)

// tapped lets a test answer some of the actions of a core.
type tapped struct {
	core
	takes func(execute.Action) bool
}

func (c tapped) Step(now time.Time, e execute.Event) (rest []execute.Action) {
	for _, a := range c.core.Step(now, e) {
		if !c.takes(a) {
			rest = append(rest, a)
		}
	}
	return rest
}

// runTapped runs an exchange until it is over, or until the limit.
func (s *stage) runTapped(o execute.RollOptions, limit time.Duration, takes func(execute.Action) bool) {
	s.rolls = nil
	s.begin(tapped{execute.NewRoller(o), takes})
	for at := s.Now; s.process.Running() && len(s.rolls) == 0 && s.Now.Before(at.Add(limit)); {
		s.Run(200 * time.Millisecond)
	}
}

// answerSoon answers an action after a round trip.
func (s *stage) answerSoon(e execute.Answered) {
	s.After(10*time.Millisecond, func() { s.step(e) })
}

// TestAPurchaseInFlightIsNotLeft covers a NodeClaim that is still being created, behind a slow
// webhook, when another one is refused.
func TestAPurchaseInFlightIsNotLeft(t *testing.T) {
	s := exchangeStage(t)
	o := exchange("new", "a", "b", "c")
	o.Buy["slow"] = []byte("node slow cpu=6")
	s.runTapped(o, time.Hour, func(a execute.Action) bool {
		b, ok := a.(execute.BuyNode)
		switch {
		case ok && b.Claim == "new":
			s.answerSoon(execute.Answered{Ticket: b.Ticket, Outcome: response.Refused, Message: "quota"})
		case ok:
			s.After(2*time.Second, func() { s.step(s.buy(b)) })
		}
		return ok
	})
	s.Run(10 * time.Minute)
	if len(s.rolls) != 1 || s.karpenter.claims["slow"] != "" {
		t.Errorf("left: %v, %+v\n%s", s.karpenter.claims, s.rolls, s.lines.String())
	}
}

// TestARefusedReleaseIsNotRepeatedWithoutPause covers a policy that refuses the release of a bought
// node.
func TestARefusedReleaseIsNotRepeatedWithoutPause(t *testing.T) {
	s, requests := exchangeStage(t), 0
	s.runTapped(exchange("new", "a", "b", "c"), time.Hour, func(a execute.Action) bool {
		n, ok := a.(execute.SetNode)
		if ok = ok && n.Release; ok {
			requests++
			s.answerSoon(execute.Answered{Ticket: n.Ticket, Outcome: response.Refused, Message: "policy"})
		}
		return ok
	})
	if requests > 50 || len(s.rolls) == 0 {
		t.Errorf("%d requests; %+v", requests, s.rolls)
	}
}

// TestAnExchangeEndsWithoutACordon covers a node that cannot be cordoned, because every write
// fails.
func TestAnExchangeEndsWithoutACordon(t *testing.T) {
	s := exchangeStage(t)
	s.runTapped(exchange("new", "a", "b", "c"), 6*time.Hour, func(a execute.Action) bool {
		n, ok := a.(execute.SetNode)
		if ok = ok && n.Node == "b" && n.Cordoned; ok {
			s.answerSoon(execute.Answered{Ticket: n.Ticket, Outcome: response.Failed, Message: "failed calling webhook"})
		}
		return ok
	})
	if len(s.rolls) == 0 {
		t.Errorf("after 6 h, the exchange has not ended; a is cordoned: %v", s.node("a").Spec.Unschedulable)
	}
}

// TestANoteOfAForeignYear covers a kubelet that writes a note on its own node, with a time that
// could not be read again.
func TestANoteOfAForeignYear(t *testing.T) {
	s := exchangeStage(t)
	for _, o := range object(t, "node evil cpu=0") {
		m := o.(metav1.ObjectMetaAccessor).GetObjectMeta().(*metav1.ObjectMeta)
		metav1.SetMetaDataAnnotation(m, execute.RollAnnotation, `{"begun":"9999-12-31T23:59:59-23:59","state":"turn","remove":true}`)
		s.enter(o)
	}
	pass := func(execute.Action) bool { return false }
	s.runTapped(exchange("new", "a", "b", "c"), 3*time.Minute, pass)
	if len(s.rolls) != 1 {
		t.Error("the exchange does not end")
	}
	s.runTapped(exchange(""), 3*time.Minute, pass) // the next run
	for _, name := range s.nodeNames() {
		if n := s.node(name); name != "evil" && n.Annotations[execute.RollAnnotation] != "" {
			t.Errorf("node %s: cordoned %v, %v", name, n.Spec.Unschedulable, n.Annotations)
		}
	}
}
