// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package virtual

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/berth-k8s/berth/internal/response"
)

// Fault is a failure of a request.
type Fault int

// The faults. A fault whose request is carried out leaves open for the process what happened.
const (
	None            Fault = iota
	Lost                  // not carried out, no connection
	Unanswered            // carried out, no response within the timeout
	Belated               // carried out after the timeout, without a response
	Failing               // 500
	Forbidden             // 403
	Gone                  // 404
	GoneDone              // 404, although it was carried out, as after a repetition by a client or a proxy
	Conflicting           // 409
	ConflictingDone       // 409, although it was carried out
	Busy                  // 429
	BusyFor               // 429 with Retry-After
	Ineffective           // success, although it was not carried out: a policy or webhook dropped the change
	Slow                  // carried out, late; in addition to other faults
	faults
	Killed // the process ended, before or after the request was sent
)

// writesOnly are the faults that no API server has for reads.
var writesOnly = [faults]bool{Gone: true, GoneDone: true, Conflicting: true, ConflictingDone: true, Ineffective: true}

// String names the fault.
func (f Fault) String() string {
	return [...]string{"none", "lost", "unanswered", "belated", "500", "403", "404", "404 carried out", "409", "409 carried out", "429",
		"429 with Retry-After", "success without effect", "slow", "", "killed"}[f]
}

// Outcome returns the response to a request with the fault, and whether it is carried out.
func (f Fault) Outcome() (outcome response.Outcome, done bool) {
	switch f {
	case Lost, Belated, Failing:
		return response.Failed, false
	case Unanswered:
		return response.Failed, true
	case Forbidden:
		return response.Refused, false
	case Gone, GoneDone:
		return response.Gone, f == GoneDone
	case Conflicting, ConflictingDone:
		return response.Conflict, f == ConflictingDone
	case Busy, BusyFor:
		return response.Busy, false
	}
	return response.OK, f != Ineffective
}

// Rule injects a fault into requests.
type Rule struct {
	Fault  Fault
	Chance float64 // probability of the fault for each matching request
	// Kind, Namespace and Object, if set, select requests. The first word of a kind selects all
	// kinds that begin with it.
	Kind, Namespace, Object string
	Writes                  bool // only writes
	Count                   int  // maximum number of faults; 0 means no limit
	// From and Until bound the time of the faults. A zero Until means no end.
	From, Until time.Time
	// Delay is the longest delay of a Slow request in each direction or the Retry-After of BusyFor.
	Delay time.Duration
}

// Target is the target of a request.
type Target struct {
	Kind, Namespace, Object string
	Reads                   bool
}

// applies reports whether the rule may inject its fault into a request now.
func (r *Rule) applies(now time.Time, t Target) bool {
	return !(t.Reads && (r.Writes || writesOnly[r.Fault])) &&
		(r.Kind == "" || r.Kind == t.Kind || strings.HasPrefix(t.Kind, r.Kind+" ")) &&
		(r.Namespace == "" || r.Namespace == t.Namespace) && (r.Object == "" || r.Object == t.Object) &&
		!now.Before(r.From) && (r.Until.IsZero() || now.Before(r.Until))
}

// Every returns a rule for each fault with the same probability. Slow requests take up to a second
// longer in each direction.
func Every(chance float64) (rules []Rule) {
	for f := Lost; f < faults; f++ {
		rules = append(rules, Rule{Fault: f, Chance: chance, Delay: time.Second})
	}
	return rules
}

// Injection is a fault of a kind of request.
type Injection struct {
	Kind  string
	Fault Fault
}

// String formats the injection for reports.
func (i Injection) String() string { return fmt.Sprintf("%s: %s", i.Kind, i.Fault) }

// Summary formats the number of injections of each fault, and of the kinds it was injected into.
func Summary(injected map[Injection]int) string {
	counts, kinds := map[Fault]int{}, map[Fault]int{}
	for i, n := range injected {
		counts[i.Fault] += n
		kinds[i.Fault]++
	}
	var text strings.Builder
	for _, f := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(&text, "\n%8d %s, %d kinds of requests", counts[f], f, kinds[f])
	}
	return text.String()
}

// Faults are the faults of a connection.
type Faults struct {
	// Rules are tried in order, until one of them injects a fault other than Slow.
	Rules []Rule
	// KillAt kills the process at its nth request from now, before the request is sent or, with
	// KillAfter, after it; 0 means never.
	KillAt    int
	KillAfter bool
	// Injected counts the injected faults.
	Injected map[Injection]int
	// Faulty, if set, is called for each request with a fault other than Slow.
	Faulty func(kind string)
}

// Fate is the drawn fault of a request, with the delays of a slow request.
type Fate struct {
	Fault                     Fault
	RetryAfter, Before, After time.Duration
}

// Draw draws the fault of a request, and counts it. If ineffective is false, the request cannot
// succeed without effect.
func (f *Faults) Draw(t *Time, target Target, ineffective bool) (d Fate) {
	for i := range f.Rules {
		rule := &f.Rules[i]
		if !rule.applies(t.Now, target) || rule.Fault == Ineffective && !ineffective {
			continue
		}

		if rule.Fault == Slow {
			for _, way := range []*time.Duration{&d.Before, &d.After} {
				if t.Chance(rule.Chance) {
					*way += t.Between(0, rule.Delay)
					f.inject(target.Kind, Slow)
				}
			}
		} else if d.Fault == None && t.Chance(rule.Chance) {
			if d.Fault = rule.Fault; d.Fault == BusyFor {
				d.RetryAfter = rule.Delay
			}
			f.inject(target.Kind, d.Fault)
			if rule.Count--; rule.Count == 0 {
				rule.Chance = 0
			}
		}
	}
	return d
}

// inject counts a fault.
func (f *Faults) inject(kind string, fault Fault) {
	if f.Injected == nil {
		f.Injected = map[Injection]int{}
	}
	f.Injected[Injection{kind, fault}]++
}

// Requests limits the requests for each object, whatever the responses are: their number, one
// request of a kind at a time, and at most three in a row before the Retry-After of the last
// response. A request may revert the previous one, and a move writes its journal up to four times.
type Requests struct {
	Limit  int            // requests of a kind for an object per minute; 0 means no limit
	Sent   map[string]int // number of requests, by kind
	Excess []string
	times  map[string][]time.Time
	flying map[sending]bool
	after  map[sending]time.Time // end of the last Retry-After
	early  map[sending]int       // consecutive requests before it
}

// sending identifies the requests of a process for an object.
type sending struct {
	process any
	subject string
}

// send records that a process sends a request, and returns a function for the response.
func (r *Requests) send(now time.Time, s sending) (respond func(retryAfter time.Time)) {
	if r.flying == nil {
		r.flying, r.after, r.early = map[sending]bool{}, map[sending]time.Time{}, map[sending]int{}
	}
	if r.early[s]++; !now.Before(r.after[s]) {
		r.early[s] = 0
	}
	switch {
	case r.Limit == 0:
	case r.flying[s]:
		r.Excess = append(r.Excess, "two requests at the same time: "+s.subject)
	case r.early[s] > 3:
		r.Excess = append(r.Excess, "requests before the Retry-After: "+s.subject)
	}
	r.flying[s] = true
	return func(retryAfter time.Time) {
		r.after[s] = retryAfter
		delete(r.flying, s)
	}
}

// Count records a request, and reports the object in Excess if it had too many.
func (r *Requests) Count(now time.Time, kind, object string) {
	if r.Sent == nil {
		r.Sent, r.times = map[string]int{}, map[string][]time.Time{}
	}
	r.Sent[kind]++
	if r.Limit == 0 {
		return
	}
	subject := kind + " " + object
	times := append(r.times[subject], now)
	if len(times) > r.Limit {
		if now.Sub(times[0]) < time.Minute {
			r.Excess = append(r.Excess, fmt.Sprintf("more than %d requests within a minute: %s", r.Limit, subject))
		}
		times = times[1:]
	}
	r.times[subject] = times
}
