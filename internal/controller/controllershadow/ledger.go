// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controllershadow

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

const (
	// Same is the maximum time between two decisions that count as simultaneous. The lag of
	// watches, the intervals between passes, and times in whole seconds can account for that much.
	Same = 5 * time.Second
	// Patience is the time after which a decision made by only one side counts as a difference. It
	// is long because a zone's rate limit allows one taint every 10 s, and the two sides may taint
	// nodes in different orders.
	Patience = time.Minute
	// most bounds the differences listed in a report, the largest first.
	most = 50
)

// Kind is the kind of a decision.
type Kind string

const (
	Eviction Kind = "eviction" // a pod is evicted for a NoExecute taint
	Taint    Kind = "taint"    // a taint for a node's health is added or removed
)

// Outcome is the result of comparing the two sides.
type Outcome string

const (
	AtOnce    Outcome = "same"       // both controllers acted, within Same
	Later     Outcome = "later"      // both controllers acted, the other controller later
	Earlier   Outcome = "earlier"    // both controllers acted, the other controller earlier
	OnlyBerth Outcome = "only-berth" // the other controller did not decide this within Patience
	OnlyOther Outcome = "only-other" // Berth would not have decided this
)

// Outcomes lists all outcomes.
var Outcomes = []Outcome{AtOnce, Later, Earlier, OnlyBerth, OnlyOther}

// Decision is one decision of at least one side.
type Decision struct {
	Kind    Kind      `json:"kind"`
	Object  string    `json:"object"` // "node-1", "default/web-0"
	What    string    `json:"what"`   // "node.kubernetes.io/unreachable:NoExecute added"
	Outcome Outcome   `json:"outcome"`
	At      time.Time `json:"at"`
	// LagSeconds is the other controller's delay after Berth. For a one-sided decision, it is the
	// time waited for the missing side.
	LagSeconds float64 `json:"lagSeconds"`
	Why        string  `json:"why,omitempty"`
}

// Tally summarises the decisions of a kind.
type Tally struct {
	Decisions int             `json:"decisions"`
	Outcomes  map[Outcome]int `json:"outcomes"`
	// LateSeconds is the other controller's total delay in its later decisions; MaxLateSeconds is
	// the largest.
	LateSeconds    float64 `json:"lateSeconds"`
	MaxLateSeconds float64 `json:"maxLateSeconds"`
}

// Agreement returns the fraction of decisions made by both sides, whatever their times. It returns
// 1 without any decisions, and for a nil Tally.
func (t *Tally) Agreement() float64 {
	if t == nil || t.Decisions == 0 {
		return 1
	}
	return 1 - float64(t.Outcomes[OnlyBerth]+t.Outcomes[OnlyOther])/float64(t.Decisions)
}

// Report is the result of the comparison so far, in the form of its file. Readers of other versions
// depend on the JSON names.
type Report struct {
	APIVersion  string          `json:"apiVersion"`
	Kind        string          `json:"kind"`
	Since       time.Time       `json:"since"`
	Until       time.Time       `json:"until"`
	Nodes       int             `json:"nodes"`
	Pods        int             `json:"pods"`
	Tallies     map[Kind]*Tally `json:"tallies"`
	Differences []Decision      `json:"differences,omitempty"`
}

// Ledger collects the decisions of both comparisons. It is safe for concurrent use: they run on one
// goroutine, and reports are read on several.
type Ledger struct {
	// OnDecision, if set before use, is called with each decision.
	OnDecision func(Decision)

	mu     sync.Mutex
	report Report
}

// NewLedger returns a ledger that begins now.
func NewLedger(now time.Time) *Ledger {
	tallies := map[Kind]*Tally{}
	for _, kind := range []Kind{Eviction, Taint} {
		tallies[kind] = &Tally{Outcomes: map[Outcome]int{}}
	}
	return &Ledger{report: Report{APIVersion: "berth.dev/v1alpha1", Kind: "ControllerShadow", Since: now.UTC(), Tallies: tallies}}
}

// addBoth records a decision of both sides, with the other controller's delay lag.
func (l *Ledger) addBoth(d Decision, lag time.Duration) {
	switch {
	case lag > Same:
		d.Outcome = Later
	case lag < -Same:
		d.Outcome = Earlier
	default:
		d.Outcome = AtOnce
	}
	d.LagSeconds = lag.Seconds()
	l.addDecision(d)
}

// addOneSided records a one-sided decision, and the time waited for the missing side.
func (l *Ledger) addOneSided(d Decision, outcome Outcome, waited time.Duration) {
	d.Outcome, d.LagSeconds = outcome, waited.Seconds()
	l.addDecision(d)
}

// addDecision counts a decision, keeps it if it is a difference, and reports it. OnDecision is
// called with the lock held, so it must not call the ledger.
func (l *Ledger) addDecision(d Decision) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d.At = d.At.UTC().Truncate(time.Millisecond)
	t := l.report.Tallies[d.Kind]
	t.Decisions++
	t.Outcomes[d.Outcome]++
	if d.Outcome == Later {
		t.LateSeconds += d.LagSeconds
		t.MaxLateSeconds = max(t.MaxLateSeconds, d.LagSeconds)
	}
	// Decisions that agree are only counted.
	if d.Outcome != AtOnce {
		l.report.Differences = widestFirst(append(l.report.Differences, d))
	}
	if l.OnDecision != nil {
		l.OnDecision(d)
	}
}

// widestFirst keeps the most important differences: first the one-sided decisions, then the others
// by the time between the two sides. Of equal differences, the older ones are kept. Dropped
// differences remain in the counts.
func widestFirst(list []Decision) []Decision {
	both := func(d *Decision) bool { return d.Outcome != OnlyBerth && d.Outcome != OnlyOther }
	slices.SortStableFunc(list, func(a, b Decision) int {
		return cmp.Or(rules.FalseFirst(both(&a), both(&b)), cmp.Compare(math.Abs(b.LagSeconds), math.Abs(a.LagSeconds)))
	})
	return list[:min(len(list), most)]
}

// Report returns the result so far. It shares nothing with the live ledger.
func (l *Ledger) Report(now time.Time) *Report {
	l.mu.Lock()
	defer l.mu.Unlock()
	report := l.report
	report.Until = now.UTC()
	report.Differences = slices.Clone(report.Differences)
	report.Tallies = map[Kind]*Tally{}
	for kind, t := range l.report.Tallies {
		copied := *t
		copied.Outcomes = map[Outcome]int{}
		maps.Copy(copied.Outcomes, t.Outcomes)
		report.Tallies[kind] = &copied
	}
	return &report
}

// setCount records the number of nodes or pods.
func (l *Ledger) setCount(kind Kind, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if kind == Taint {
		l.report.Nodes = n
	} else {
		l.report.Pods = n
	}
}
