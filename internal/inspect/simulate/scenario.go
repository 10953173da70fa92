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

// Scenario is what users and failures do to a cluster over time, as a file: a list of
// operations, each with its time. For example:
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
	// For is how much time passes. The flag of the same name takes precedence.
	For *metav1.Duration `json:"for,omitempty"`
	// Steps are carried out at their times; those of the same time in their order here.
	Steps []Step `json:"steps"`
}

// Step is an operation and its time, counted from the beginning. Exactly one field of
// Operation is set; the reader checks it.
type Step struct {
	At metav1.Duration `json:"at"`
	Operation

	// place is where the step stands in its file, such as "drill.yaml:7: steps[1]", for
	// errors. It is empty if the scenario was not parsed from text.
	place string
}

// ReadScenario reads a scenario file. Names of manifests in it are relative to the scenario's
// own folder, so that a folder with both can be moved.
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

// ParseScenario parses a scenario from YAML or JSON. name stands for it in errors. Unknown
// fields are errors: a misspelt operation would otherwise be a step that does nothing.
func ParseScenario(name string, text []byte) (*Scenario, error) {
	s := &Scenario{}
	err := manifest.Decode(name, text, s)
	// A file of another kind fails below with what it should be. All of its fields are
	// unknown, too, and an error about the first of them would hide the reason.
	if s.APIVersion != APIVersion && s.APIVersion != "" || s.Kind != ScenarioKind && s.Kind != "" { // its fields are foreign, too
		err = nil
	}
	if err != nil {
		return nil, err
	}
	if s.APIVersion != APIVersion || s.Kind != ScenarioKind {
		return nil, fmt.Errorf("%s: apiVersion %q, kind %q: must be %s and %s", name, s.APIVersion, s.Kind, APIVersion, ScenarioKind)
	}
	// The YAML was decoded by way of JSON, which has no lines. They are looked up in the
	// text.
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

// checkOperation returns an error unless the step has exactly one operation. Two of them in
// one step would have no order.
func (s *Step) checkOperation() error {
	switch named := s.setOperations(); len(named) {
	case 0:
		return fmt.Errorf("%s: an operation is needed beside at", s.place)
	case 1:
		return nil
	default:
		return fmt.Errorf("%s: one operation is needed beside at, not %d: %s", s.place, len(named), strings.Join(named, ", "))
	}
}

// setOperations lists the operations that are set, by their names in JSON. It uses reflection
// so that an operation that is added to the struct cannot be forgotten here. Every field must
// be a pointer or a slice.
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

// UnmarshalJSON accepts a string or a list: most steps deploy one file.
func (f *Files) UnmarshalJSON(text []byte) error {
	var one string
	if json.Unmarshal(text, &one) == nil {
		*f = Files{one}
		return nil
	}
	return json.Unmarshal(text, (*[]string)(f))
}

// planSteps puts the steps on the agenda. Steps beyond the time that passes are noted and
// left out. Scenarios that were built in memory are checked here, as parsed ones were in
// ParseScenario.
func (o *operations) planSteps(s *Scenario) error {
	for i := range s.Steps {
		step := &s.Steps[i]
		step.place = cmp.Or(step.place, fmt.Sprintf("steps[%d]", i))
		if err := step.checkOperation(); err != nil {
			return err
		}
		if step.At.Duration > o.options.For {
			o.report.said.Notes = append(o.report.said.Notes,
				fmt.Sprintf("steps[%d], at %s: not done, for time ends after %s", i,
					answer.Duration(step.At.Duration), answer.Duration(o.options.For)))
			continue
		}
		o.clock.callAt(step.At.Duration, func() {
			// What the operation reports at once is marked as done by the step. What follows
			// later is not.
			o.report.stepping = true
			done, err := o.carryOut(&step.Operation)
			o.report.stepping = false
			switch {
			case err != nil && o.report.failed == nil:
				// The first failure ends the scenario: the steps after it were written for
				// another state, so the agenda is cleared. Run returns the error instead of
				// an answer that stops half-way.
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

// Ends is the time of the scenario's last step; 0 if it has none.
func (s *Scenario) Ends() (last time.Duration) {
	for i := range s.Steps {
		last = max(last, s.Steps[i].At.Duration)
	}
	return last
}
