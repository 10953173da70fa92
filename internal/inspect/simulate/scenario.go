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
