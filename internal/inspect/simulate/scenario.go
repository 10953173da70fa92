// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/world/agenda"
)

// ScenarioKind is the kind of scenario files.
const ScenarioKind = "Scenario"

// Scenario is a list of timed operations: actions of users and failures in a cluster. It is usually
// read from a file, for example:
//
//	apiVersion: berth.dev/v1alpha1
//	kind: Scenario
//	for: 30m
//	steps:
//	- {at: 1m, fail: {zone: eu-1a}}
//	- {at: 10m, recover: {zone: eu-1a}}
type Scenario struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// For is the simulated time. The flag of the same name takes precedence.
	For *metav1.Duration `json:"for,omitempty"`
	// Steps are carried out at their times. Steps with the same time are carried out in the order
	// listed.
	Steps []Step `json:"steps"`
}

// Step is an operation and its time since the start. Exactly one field of Operation is set, as
// checked by the reader.
type Step struct {
	At metav1.Duration `json:"at"`
	Operation

	// place is the step's position in its file for errors, such as "drill.yaml:7: steps[1]". It is
	// empty if the scenario was not parsed from text.
	place string
}

// ReadScenario reads a scenario file. Manifest names in it are relative to the scenario's folder,
// so a folder with both can be moved.
func ReadScenario(path string) (*Scenario, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	s, err := ParseScenario(path, text)
	if err != nil {
		return nil, err
	}
	for i := range s.Steps {
		for j, file := range s.Steps[i].Deploy {
			if !filepath.IsAbs(file) {
				s.Steps[i].Deploy[j] = filepath.Join(filepath.Dir(path), file)
			}
		}
	}
	return s, nil
}

// ParseScenario parses a scenario from YAML or JSON. name identifies it in errors. Unknown fields
// are errors, because a misspelt operation would otherwise be a step without effect.
func ParseScenario(name string, text []byte) (*Scenario, error) {
	s := &Scenario{}
	err := manifest.Decode(name, text, s)
	// Ignore errors in a file of another kind, because the error returned below names the expected
	// kind. An error about an unknown field would hide the cause.
	if s.APIVersion != APIVersion && s.APIVersion != "" || s.Kind != ScenarioKind && s.Kind != "" {
		err = nil
	}
	if err != nil {
		return nil, err
	}
	if s.APIVersion != APIVersion || s.Kind != ScenarioKind {
		return nil, fmt.Errorf("%s: apiVersion %q, kind %q: must be %s and %s", name, s.APIVersion, s.Kind, APIVersion, ScenarioKind)
	}
	// The decoded steps lack line numbers, so look them up in the text.
	lines := manifest.Lines(text, "steps")
	for i := range s.Steps {
		step := &s.Steps[i]
		step.place = fmt.Sprintf("%s: steps[%d]", name, i)
		if i < len(lines) {
			step.place = fmt.Sprintf("%s:%d: steps[%d]", name, lines[i], i)
		}
		if step.At.Duration < 0 {
			return nil, fmt.Errorf("%s.at: %s: must not be negative", step.place, answer.Duration(step.At.Duration))
		}
		if err := step.checkOperation(); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// checkOperation returns an error unless the step has exactly one operation. The order of two
// operations in one step would be undefined.
func (s *Step) checkOperation() error {
	switch named := s.setOperations(); len(named) {
	case 0:
		return fmt.Errorf("%s: an operation is required besides at", s.place)
	case 1:
		return nil
	default:
		return fmt.Errorf("%s: exactly one operation is required besides at, not %d: %s", s.place, len(named), strings.Join(named, ", "))
	}
}

// setOperations returns the JSON names of the operations that are set. Thanks to reflection, it
// includes operations added to the struct later. Every field must be a pointer or a slice.
func (op *Operation) setOperations() (list []string) {
	value := reflect.ValueOf(op).Elem()
	for i := range value.NumField() {
		if field := value.Field(i); !field.IsNil() {
			name, _, _ := strings.Cut(value.Type().Field(i).Tag.Get("json"), ",")
			list = append(list, name)
		}
	}
	return list
}

// UnmarshalJSON accepts a string or a list, because most steps deploy one file.
func (f *Files) UnmarshalJSON(text []byte) error {
	var one string
	if json.Unmarshal(text, &one) == nil {
		*f = Files{one}
		return nil
	}
	return json.Unmarshal(text, (*[]string)(f))
}

// planSteps puts the steps on the agenda. It omits steps beyond the simulated time, with a note. It
// checks scenarios built in memory; ParseScenario has already checked parsed ones.
func (o *operations) planSteps(s *Scenario) error {
	for i := range s.Steps {
		step := &s.Steps[i]
		step.place = cmp.Or(step.place, fmt.Sprintf("steps[%d]", i))
		if err := step.checkOperation(); err != nil {
			return err
		}
		if step.At.Duration > o.options.For {
			o.report.said.Notes = append(o.report.said.Notes,
				fmt.Sprintf("steps[%d], at %s: not done, because the simulation ends after %s", i,
					answer.Duration(step.At.Duration), answer.Duration(o.options.For)))
			continue
		}
		o.clock.callAt(step.At.Duration, func() {
			// Immediate events of the operation are attributed to the step; later consequences are
			// not.
			o.report.stepping = true
			done, err := o.carryOut(&step.Operation)
			o.report.stepping = false
			switch {
			case err != nil && o.report.failed == nil:
				// The first failure ends the scenario: later steps assume a different state, so
				// clear the agenda. Run returns the error instead of an incomplete result.
				o.report.failed = fmt.Errorf("%s, at %s: %w", step.place, answer.Duration(step.At.Duration), err)
				o.clock.agenda = agenda.Agenda{}
			case err == nil:
				for _, note := range done.Notes {
					o.report.addEvent(Event{Kind: "Note", Message: note})
				}
			}
		})
	}

	return nil
}

// Ends returns the time of the scenario's last step; 0 without steps.
func (s *Scenario) Ends() (last time.Duration) {
	for i := range s.Steps {
		last = max(last, s.Steps[i].At.Duration)
	}
	return last
}

// clock is virtual time with its agenda of calls. Time never goes back, and no call happens before
// its time.
//
// The world measures time as a [time.Duration] since its start, and so do results. Objects and
// cores use absolute times: start plus that duration.
type clock struct {
	start  time.Time     // start of the world, by the manifests' clock
	now    time.Duration // time since the start
	agenda agenda.Agenda
}

// time returns the world's current time.
func (c *clock) time() time.Time { return c.start.Add(c.now) }

// callAt schedules a call at a time since the start, or now if that has passed. Calls of one time
// run in the order of scheduling. The call must cope with changes made until it runs: its pod or
// node may no longer exist.
func (c *clock) callAt(at time.Duration, do func()) { c.agenda.Add(c.start.Add(max(at, c.now)), do) }

// course determines the next event and runs it. Events at one time happen in a fixed order: the
// agenda, node health, evictions, rebalances, and finally attempts to place pods, which see all
// earlier changes. In a cluster these race; here the order is fixed so that two runs of one
// scenario are identical.
//
//	next event = min(agenda, evictions, rebalances, scheduler's back-offs and waits, node health)
type course struct {
	*controllers
	*reactions

	passing func(elapsed time.Duration) // see [World.Watch]; nil without an observer
}

// nextEvent returns the time of the next event. Lease renewals of healthy nodes alone do not count
// as events, because they continue forever and change nothing: a world would never become quiet.
func (t *course) nextEvent() (at time.Duration, ok bool) {
	at, ok = t.nextDue()
	if next, there := t.health.nextCall(); there && (ok && next < at || !ok && t.health.isBusy()) {
		return next, true
	}
	return at, ok
}

// skipIdle skips the renewals of Leases before the next event or the given time, whichever is
// earlier.
func (t *course) skipIdle(until time.Duration) {
	if at, ok := t.nextDue(); ok {
		t.health.skipWaves(min(at, until))
	}
}

// nextDue returns the time of the next event outside of node health. An expired wait of the
// scheduler counts as due now.
func (t *course) nextDue() (at time.Duration, ok bool) {
	at, ok = t.nextChange()
	if due, waits := t.scheduler.core.Due(); waits {
		if tried := max(due.Sub(t.clock.start), t.clock.now); !ok || tried < at {
			return tried, true
		}
	}
	return at, ok
}

// nextChange is nextDue without attempts to place pods.
func (t *course) nextChange() (at time.Duration, ok bool) {
	if next, any := t.clock.agenda.Next(); any {
		at, ok = next.Sub(t.clock.start), true
	}
	for _, nextDue := range []func() (time.Duration, bool){t.evictions.nextDue, t.rebalances.nextDue} {
		if next, due := nextDue(); due && (!ok || next < at) {
			at, ok = next, true
		}
	}
	return at, ok
}

// Advance lets time pass until the given time since the start. Events happen, controllers replace
// departed pods, and all pending pods are tried.
func (w *World) Advance(until time.Duration) {
	w.scheduler.trySettled()
	for !w.allowed.mustStop() {
		w.course.skipIdle(until)
		at, ok := w.course.nextEvent()
		if !ok || at > until {
			break
		}
		w.course.runStep(at)
	}
	w.clock.now = max(w.clock.now, until)
}

// Watch sets the function that is called with the elapsed time before the events of each time
// happen. It replaces any earlier function.
func (w *World) Watch(passing func(elapsed time.Duration)) { w.course.passing = passing }

// runStep carries out the events of one time, and records a sample if any of them changed
// something.
func (t *course) runStep(at time.Duration) {
	t.clock.now = max(t.clock.now, at)
	if t.passing != nil {
		t.passing(t.clock.now)
	}

	// The cluster's log and the number of decisions reveal changes. A sample for each of the
	// thousands of Lease renewals would be useless.
	log := t.scheduler.c.Log.Len()
	t.clock.agenda.RunUntil(t.clock.time(), nil)
	t.health.runDue()
	t.evictions.evictDue(func(p *pod, cause string) {
		t.report.said.Evictions = append(t.report.said.Evictions,
			Eviction{Namespace: p.Namespace(), Name: p.Name(), Node: p.NodeName, After: Seconds(t.clock.now), Taint: cause})
		t.controllers.departPod(p, ByTaint, cause)
	})
	t.rebalances.runDue()

	// Try pods last, after all changes of this time. Until then the core only collects the changes
	// as events.
	decided := t.scheduler.decided
	t.scheduler.trySettled()
	if log != t.scheduler.c.Log.Len() || decided != t.scheduler.decided || t.report.touched {
		t.report.touched = false
		s := t.nodes.sampleNodes()
		s.Running, s.Pending = t.scheduler.c.Pods(), t.scheduler.tried
		t.report.addSample(s)
	}
}

// OnlyTaints reports whether node health still has work, but all other activity has ended, such as
// drains and terminations of pods. Node health taints nodes at a limited rate, so with many failed
// nodes this phase may take hours of virtual time.
func (w *World) OnlyTaints() bool { return w.clock.agenda.Len() == 0 && w.health.isBusy() }

// AdvanceUntilQuiet lets time pass until no events remain, but at most until the given time. It
// ignores endlessly repeating events: repeated evictions of pods that return to a tainted node, or
// of replacements by a kubelet under pressure. It reports whether the world became quiet. In both
// cases, the clock stays at the last event.
func (w *World) AdvanceUntilQuiet(until time.Duration) bool {
	w.scheduler.trySettled()
	for !w.allowed.mustStop() {
		w.course.skipIdle(until)
		at, ok := w.course.nextEvent()
		onlyAgain := w.clock.agenda.Len() == w.kubelets.countRepeats()+w.controllers.repeats && !w.health.isBusy() &&
			!w.rebalances.isBusy() && w.evictions.onlyAgain()
		switch {
		case !ok || onlyAgain:
			return true
		case at > until:
			return false
		}
		w.course.runStep(at)
	}
	return false
}
