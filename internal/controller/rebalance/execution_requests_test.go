// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/internal/response"
	"github.com/berth-k8s/berth/internal/world/virtual"
)

// carryOut executes the core's action after the duration of a request.
func (s *stage) carryOut(action execute.Action) {
	object, ticket := subject(action)
	kind := fmt.Sprintf("%T", action)
	life := s.process.Life()
	r := virtual.Request[execute.Event]{
		Kind: kind[strings.Index(kind, ".")+1:], Object: object,
		Ineffective: func() execute.Event { return execute.Answered{Ticket: ticket, Version: "1"} },
		Fail: func(outcome response.Outcome, after time.Duration) execute.Event {
			return execute.Answered{Ticket: ticket, Outcome: outcome, Message: outcome.String(), RetryAfter: after}
		},
	}
	request := func(do func() execute.Event) {
		r.Do = func() execute.Event {
			if s.faults.request != nil && life == s.process.Life() && !s.faults.request() {
				return nil
			}
			return do() // even if the process that sent the request was killed meanwhile
		}
		s.line.Send(r)
	}
	// compute passes the result of a computation, which cannot fail, to the process.
	compute := func(result execute.Event) {
		s.After(20*time.Millisecond, func() {
			if life == s.process.Life() {
				s.step(result)
			}
		})
	}
	switch a := action.(type) {
	case execute.Recall:
		r.Reads = true
		r.Fail = func(outcome response.Outcome, _ time.Duration) execute.Event {
			return execute.Recalled{Err: errors.New(outcome.String())}
		}
		request(func() execute.Event {
			version := ""
			if s.version > 0 {
				version = strconv.Itoa(s.version)
			}
			return execute.Recalled{Journal: s.journal, Version: version}
		})
	case execute.MakePlan:
		options := a.Options
		options.Profiles, options.Scales = s.profiles, scales
		plan := rebalance.Make(a.State, s.policy, options)
		if s.faults.shy != "" {
			s.hide(s.faults.shy)
		}
		compute(execute.Planned{Plan: plan})
	case execute.Note:
		request(func() execute.Event { return s.note(a) })
	case execute.SetTaint:
		request(func() execute.Event { return s.taint(a) })
	case execute.Evict:
		request(func() execute.Event {
			if s.draining {
				s.keep(a.Reservations)
			}
			return s.evict(a)
		})
	case execute.ReleaseReservations:
		r.Fail = nil
		request(func() execute.Event { s.rooms = nil; return nil })
	case execute.Withdraw:
		r.Fail = nil
		request(func() execute.Event { s.withdraw(a); return nil })
	case execute.PlanDrain:
		plan := rebalance.PlanDrain(a.State, a.Leaving, rebalance.Options{Profiles: s.profiles, Scales: scales})
		compute(execute.DrainPlanned{Plan: plan})
	case execute.PlanRoll:
		answer := execute.RollPlanned{}
		if options := (rebalance.Options{Profiles: s.profiles}); a.Next {
			a.Rolling.Pools = s.karpenter.pools
			answer.Turn = rebalance.PlanTurn(a.State, a.Rolling, options)
		} else {
			answer.Plan = rebalance.PlanRoll(a.State, a.Rolling, options)
		}
		compute(answer)
	case execute.SetNode:
		request(func() execute.Event { return s.setNode(a) })
	case execute.SellUnused:
		request(func() execute.Event {
			for _, claim := range s.karpenter.bought {
				if !a.Keep[claim] {
					s.sell(execute.SellNode{Claim: claim, UID: s.karpenter.claims[claim]})
				}
			}
			return execute.Answered{Ticket: a.Ticket}
		})
	case execute.BuyNode:
		request(func() execute.Event { return s.buy(a) })
	case execute.SellNode:
		request(func() execute.Event { return s.sell(a) })
	case execute.RollProgress:
		s.rollTold(a)
	case execute.RollDone:
		s.rolls = append(s.rolls, a)
		s.say("rolled %d of %d nodes, %d evicted; in turn %v; %s", a.Done, a.Nodes, a.Evicted, a.Turn, a.Stopped)
	case execute.Cordon:
		request(func() execute.Event { return s.cordon(a) })
	case execute.Scale:
		request(func() execute.Event {
			s.keep(a.Reservations)
			answer := s.rescale(a)
			if s.faults.scaled != nil {
				s.faults.scaled(a)
			}
			return answer
		})
	case execute.SetStatus:
		r.Fail = nil
		request(func() execute.Event { s.status(a); return nil })
	case execute.Mark:
		request(func() execute.Event { return s.mark(a) })
	case execute.DrainProgress:
		s.drainTold(a)
	case execute.DrainDone:
		s.drained = append(s.drained, a)
		ending := ""
		if a.Ending > 0 {
			ending = fmt.Sprintf(", %d not ended", a.Ending)
		}
		s.say("done: %d evicted, %d left%s; %s", a.Evicted, a.Left, ending, a.Stopped)
	case execute.MoveProgress:
		s.told(a)
	case execute.Done:
		s.done = append(s.done, a)
		s.say("done: %d moves, %d misses; %s", a.Moves, a.Misses, a.Stopped)
	}
}

// subject returns the object of a request, and its ticket.
func subject(action execute.Action) (object string, ticket response.Ticket) {
	switch a := action.(type) {
	case execute.Note:
		// Each move is written once before it begins; that does not count as a repetition.
		if a.Journal.Move != nil {
			return "pod " + a.Journal.Move.Name, a.Ticket
		}
		return "no move", a.Ticket
	case execute.SetTaint:
		return a.Node, a.Ticket
	case execute.Cordon:
		return a.Node, a.Ticket
	case execute.SetNode:
		return a.Node, a.Ticket
	case execute.SellUnused:
		return "", a.Ticket
	case execute.BuyNode:
		return a.Claim, a.Ticket
	case execute.SellNode:
		return a.Claim, a.Ticket
	case execute.Evict:
		return a.Name, a.Ticket
	case execute.Mark:
		return a.Name, a.Ticket
	case execute.SetStatus:
		return a.Name, 0
	case execute.Scale:
		return a.Target.String(), a.Ticket
	case execute.ReleaseReservations:
		return a.Reservations[0].Name, 0
	}
	return "", 0
}

// scales are the kinds with a scale subresource, in addition to those of apps.
var scales = map[schema.GroupKind]bool{{Group: "argoproj.io", Kind: "Rollout"}: true}

func (s *stage) note(a execute.Note) execute.Event {
	if s.faults.unwritable {
		return execute.Answered{Ticket: a.Ticket, Outcome: response.Refused, Message: "forbidden"}
	}
	if a.Version != "" && s.version == 0 {
		return execute.Answered{Ticket: a.Ticket, Outcome: response.Gone}
	}
	if a.Version != strconv.Itoa(s.version) && (a.Version != "" || s.version > 0) {
		return execute.Answered{Ticket: a.Ticket, Outcome: response.Conflict}
	}
	s.journal = a.Journal
	s.version++
	return execute.Answered{Ticket: a.Ticket, Version: strconv.Itoa(s.version)}
}

func (s *stage) taint(a execute.SetTaint) execute.Event {
	if a.Node == s.faults.open && a.Value != "" {
		return execute.Answered{Ticket: a.Ticket, Outcome: response.Refused, Message: "forbidden"}
	}
	for _, o := range s.objects {
		n, ok := o.(*v1.Node)
		if !ok || n.Name != a.Node {
			continue
		}
		n = n.DeepCopy()
		n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t v1.Taint) bool { return t.Key == rebalance.EmptyingTaint })
		if a.Value != "" {
			n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: rebalance.EmptyingTaint, Value: a.Value, Effect: v1.TaintEffectNoSchedule})
		}
		s.write(n)
		s.say("taint %s %q", a.Node, a.Value)
		return execute.Answered{Ticket: a.Ticket}
	}
	return execute.Answered{Ticket: a.Ticket, Outcome: response.Gone}
}

func (s *stage) evict(a execute.Evict) execute.Event {
	if s.faults.stands {
		return execute.Answered{Ticket: a.Ticket, Outcome: response.Asked, Message: "a responder is at work"}
	}
	if stalls := s.faults.stalls; stalls > 0 {
		s.faults.stalls = 0
		s.After(stalls, func() { s.eviction(a) })
		return execute.Answered{Ticket: a.Ticket, Outcome: response.Failed, Message: "no answer"}
	}
	if s.Now.Before(s.faults.overloaded) {
		s.say("%s: eviction refused", a.Name)
		return execute.Answered{Ticket: a.Ticket, Outcome: response.Busy, Message: "too many requests"}
	}
	if p := s.pod(a.UID); p != nil && p.DeletionTimestamp == nil && s.responds > 0 && !a.Direct && !a.Delete && a.Grace == nil {
		return s.ask(a)
	}
	return s.eviction(a)
}

// ask creates an EvictionRequest for a pod. Its responder tries to evict the pod after the
// configured time, and repeats this until budgets allow it.
func (s *stage) ask(a execute.Evict) execute.Event {
	answer := execute.Answered{Ticket: a.Ticket, Outcome: response.Asked, Message: "a responder is at work"}
	if s.asked[a.UID] {
		return answer
	}
	s.asked[a.UID] = true
	s.say("%s: eviction requested", a.Name)
	var respond func()
	respond = func() {
		if p := s.pod(a.UID); p == nil || p.DeletionTimestamp != nil || !s.asked[a.UID] {
			return
		}
		if e := s.eviction(a).(execute.Answered); e.Outcome != response.OK {
			s.After(5*time.Second, respond)
		}
	}
	s.After(s.responds, respond)
	return answer
}

func (s *stage) withdraw(a execute.Withdraw) {
	for _, uid := range slices.Sorted(maps.Keys(a.Pods)) {
		if s.asked[uid] {
			s.say("%s: its request is withdrawn", s.pod(uid).Name)
			delete(s.asked, uid)
		}
	}
}

func (s *stage) eviction(a execute.Evict) execute.Event {
	p := s.pod(a.UID)
	if p != nil && s.faults.before != nil {
		s.faults.before(p)
		p = s.pod(a.UID)
	}
	switch {
	case p == nil:
		return execute.Answered{Ticket: a.Ticket, Outcome: response.Gone, Message: "not found"}
	case p.DeletionTimestamp != nil:
		return execute.Answered{Ticket: a.Ticket}
	}
	if s.faults.refuse != nil {
		if outcome := s.faults.refuse(p); outcome != response.OK {
			s.say("%s: eviction refused", p.Name)
			return execute.Answered{Ticket: a.Ticket, Outcome: outcome, Message: "a webhook says no"}
		}
	}
	if budget := s.blocked(p); budget != "" && !a.Delete && p.Status.Phase == v1.PodRunning {
		s.say("%s: eviction refused by the budget %s", p.Name, budget)
		return execute.Answered{Ticket: a.Ticket, Outcome: response.Busy, Message: "the disruption budget " + budget + " says no"}
	}
	s.oneAtATime(p)
	s.evicted[p.UID], s.last = s.Now, p
	s.terminate(p)
	if s.faults.after != nil {
		s.faults.after(p)
	}
	if s.faults.lose != nil && s.faults.lose() {
		return execute.Answered{Ticket: a.Ticket, Outcome: response.Failed, Message: errors.ErrUnsupported.Error()}
	}
	return execute.Answered{Ticket: a.Ticket}
}

// oneAtATime verifies that the last victim's workload has regained its number of ready pods before
// the next victim leaves, unless the time limit has passed.
func (s *stage) oneAtATime(victim *v1.Pod) {
	if s.draining {
		return
	}
	if s.last != nil && s.Now.Sub(s.evicted[s.last.UID]) < time.Minute {
		owner := metav1.GetControllerOfNoCopy(s.last).UID
		if up := s.up(owner); up < s.lastUp && !s.stolen[owner] {
			s.fail("%s is evicted while %d pods of %s are ready, and %d were before", victim.Name, up, owner, s.lastUp)
		}
	}
	s.lastUp = s.up(metav1.GetControllerOfNoCopy(victim).UID)
}

// up counts the ready pods of a workload.
func (s *stage) up(owner types.UID) (count int) {
	for _, p := range s.pods() {
		if o := metav1.GetControllerOfNoCopy(p); o != nil && o.UID == owner && p.DeletionTimestamp == nil && isReady(p) {
			count++
		}
	}
	return count
}

func (s *stage) told(a execute.MoveProgress) {
	text := a.Message
	if text != "" {
		text = ": " + text
	}
	if a.Move == nil {
		s.say("%s%s", a.Result, text)
		return
	}
	where := a.Move.From
	if a.Node != "" {
		where += " -> " + a.Node
	}
	s.results[string(a.Result)]++
	s.say("%s %s %s%s", a.Move.Name, a.Result, where, text)
}
