// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/pacing"
	"github.com/berth-k8s/berth/internal/response"
)

// statusPeriod is the minimum time between two writes of a rule's status, except for a new rule or
// a changed spec (as upstream).
const statusPeriod = 10 * time.Second

// ruleStatuses writes the effect of DeviceTaintRules into their statuses: the condition
// EvictionInProgress states the number of pods that the rule evicts.
//
// rule.pods contains a pod exactly while pod.asked names the rule. One write of a rule's status is
// in flight at a time: rule.statusInFlight is set exactly for the rules in written.
type ruleStatuses struct {
	clock   clock
	out     *outbox
	mirror  *mirror
	devices *deviceMirror

	silent  bool                      // Options.Watches: no status is written
	written map[response.Ticket]*rule // status writes in flight
}

// recordAsked records the rules that evict the pod; rules is nil if there are none.
func (s *ruleStatuses) recordAsked(now time.Time, p *pod, rules []string) {
	if slices.Equal(p.asked, rules) {
		return
	}
	for _, name := range p.asked {
		if r := s.devices.seen.rules[name]; r != nil && !slices.Contains(rules, name) {
			delete(r.pods, p)
			r.scheduleStatus(now)
		}
	}
	for _, name := range rules {
		// The rule exists: judgePod has just named it.
		if r := s.devices.seen.rules[name]; !r.pods[p] {
			r.pods[p] = true
			r.scheduleStatus(now)
		}
	}
	p.asked = rules
}

// scheduleStatus schedules a check of the status, unless an earlier one is scheduled: many changes
// during the wait result in a single write.
func (r *rule) scheduleStatus(now time.Time) {
	if r.StatusDue.IsZero() {
		r.StatusDue = now.Add(statusPeriod)
	}
}

// countEvicted counts a pod deleted because of these rules.
func (s *ruleStatuses) countEvicted(now time.Time, rules []string) {
	for _, name := range rules {
		if r := s.devices.seen.rules[name]; r != nil {
			r.Evicted++
			r.scheduleStatus(now)
		}
	}
}

// next returns the time of the next status check. Before everything has been listed, the statuses
// would be wrong, so ok is false.
func (s *ruleStatuses) next() (at time.Time, ok bool) {
	if s.silent || !s.devices.listed() || s.mirror.podList.Listing {
		return time.Time{}, false
	}
	for _, r := range s.devices.seen.sorted {
		if !r.StatusDue.IsZero() && !r.statusInFlight && (!ok || r.StatusDue.Before(at)) {
			at, ok = r.StatusDue, true
		}
	}
	return at, ok
}

// write sends the statuses that are due and have changed. If another client, such as upstream's
// controller, wrote a status within the last statusPeriod, it is left unchanged for the rest of
// that time.
func (s *ruleStatuses) write(now time.Time) {
	if at, ok := s.next(); !ok || now.Before(at) {
		return
	}
	for _, r := range s.devices.seen.sorted {
		if r.StatusDue.IsZero() || r.statusInFlight || now.Before(r.StatusDue) {
			continue
		}
		// The time of the condition is its last write by any client. A time in the future results
		// from a clock that is ahead, and is ignored.
		since := s.clock.wall.At(now).Sub(r.Condition.LastTransitionTime.Time)
		if r.Condition.Type != "" && r.Condition.ObservedGeneration == r.Generation && since >= 0 && since < statusPeriod {
			r.StatusDue = now.Add(statusPeriod - since)
			continue
		}

		r.StatusDue = time.Time{}
		is := s.conditionOf(r)
		is.LastTransitionTime = r.Condition.LastTransitionTime
		// If only the time would change, the status is not written.
		if is == r.Condition {
			r.Tries = 0
			continue
		}
		is.LastTransitionTime = metav1.Time{Time: s.clock.wall.At(now)}
		r.statusInFlight = true
		ticket := s.out.issueTicket()
		s.written[ticket] = r
		s.out.add(WriteStatus{Ticket: ticket, Rule: r.Name, UID: r.UID, Condition: is})
	}
}

// takeAnswer handles a response if it belongs to a write of a status. A failed write is repeated,
// and so is a write that the watch does not show: a policy may have dropped it.
func (s *ruleStatuses) takeAnswer(now time.Time, answer Answered) bool {
	r, ok := s.written[answer.Ticket]
	if !ok {
		return false
	}
	delete(s.written, answer.Ticket)
	r.statusInFlight = false
	r.Tries++
	backoff := pacing.Backoff{First: time.Second, Last: time.Minute}
	if answer.Outcome == response.OK || answer.Outcome == response.Gone {
		backoff.First = statusPeriod
	}
	r.StatusDue = now.Add(max(min(answer.RetryAfter, lastRetry), backoff.After(r.Tries, r.Name)))
	return true
}

// sayTheSame reports whether two conditions are equal except for their messages and times.
func sayTheSame(a, b metav1.Condition) bool {
	return a.Status == b.Status && a.Reason == b.Reason && a.ObservedGeneration == b.ObservedGeneration
}

// conditionOf returns the condition EvictionInProgress of a rule, in upstream's words. With two
// pods in one namespace still to be evicted, and three already evicted, it is:
//
//	True  PodsPendingEviction  "2 pods need to be evicted in 1 namespace. 3 pods evicted since starting the controller."
func (s *ruleStatuses) conditionOf(r *rule) metav1.Condition {
	is := metav1.Condition{
		Type: resourcev1.DeviceTaintConditionEvictionInProgress, Status: metav1.ConditionFalse, ObservedGeneration: r.Generation,
	}
	var sentences []string
	say := func(format string, args ...any) { sentences = append(sentences, fmt.Sprintf(format, args...)) }

	switch r.Taint.Effect {
	case v1.TaintEffectNoExecute:
		switch pods := len(r.pods); {
		case pods > 0:
			is.Status, is.Reason = metav1.ConditionTrue, "PodsPendingEviction"
			say("%s to be evicted in %s.", countNoun(pods, "pod needs", "pods need"), namespacesOf(r.pods))
		case r.Evicted > 0:
			is.Reason = "Completed"
		default:
			is.Reason = "NotStarted"
		}
	case v1.TaintEffect(resourcev1.DeviceTaintEffectNone):
		is.Reason = "NoEffect"
		published, allocated, pods := s.wouldEvict(r)
		say("%s selected.", countNoun(published, "published device", "published devices"))
		say("%s selected.", countNoun(allocated, "allocated device", "allocated devices"))
		say("%s would be evicted in %s if the effect was NoExecute.", countNoun(len(pods), "pod", "pods"), namespacesOf(pods))
		say("This information will not be updated again. Recreate the DeviceTaintRule to trigger an update.")
	default:
		is.Reason = "OtherEffect"
		say("Eviction only happens for the NoExecute effect.")
	}

	if r.Evicted > 0 {
		say("%s evicted since starting the controller.", countNoun(r.Evicted, "pod", "pods"))
	}
	is.Message = strings.Join(sentences, " ")
	return is
}

// wouldEvict returns the devices selected by a rule without effect, and the pods it would evict.
func (s *ruleStatuses) wouldEvict(r *rule) (published, allocated int, pods map[*pod]bool) {
	// A copy of the rule with the effect NoExecute is evaluated in isolation, because the taints of
	// other rules and slices must not count.
	would := *r
	would.Taint.Effect = v1.TaintEffectNoExecute
	alone := devices{claims: s.devices.seen.claims, sorted: []*rule{&would}}
	pods = map[*pod]bool{}
	for id, pool := range s.devices.seen.pools {
		if !r.selectsPool(id) {
			continue
		}
		for name := range pool.slicesByDevice() {
			if r.selectsDevice(Device{id.Driver, id.Name, name}) {
				published++
			}
		}
		for name := range pool.claims {
			for _, use := range s.devices.seen.claims[name].Uses {
				if use.Device.poolOf() == id && r.selectsDevice(use.Device) {
					allocated++
				}
			}
			for p := range s.devices.users[name] {
				if due, _ := alone.deadlineOf(&p.Pod); !due.Stays() && !p.Terminating {
					pods[p] = true
				}
			}
		}
	}

	return published, allocated, pods
}

// countNoun formats a number with its noun, like upstream's messages.
func countNoun(n int, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, more)
}

// namespacesOf counts the namespaces of the pods.
func namespacesOf(pods map[*pod]bool) string {
	names := map[string]bool{}
	for p := range pods {
		names[p.Name.Namespace] = true
	}
	return countNoun(len(names), "namespace", "different namespaces")
}
