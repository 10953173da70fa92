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

// Scenario is what happens to a cluster over time.
type Scenario struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// For is how much time passes. The flag of the same name takes precedence.
	For *metav1.Duration `json:"for,omitempty"`
	// Steps are carried out at their times; those of the same time in their order here.
	Steps []Step `json:"steps"`
}

// Step is an operation and its time.
type Step struct {
	At metav1.Duration `json:"at"`
	Operation

	place string // in its file, for errors
}

// ReadScenario reads a scenario file. File names in it are relative to it.
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

// ParseScenario parses a scenario. name stands for it in errors. Unknown fields are errors.
func ParseScenario(name string, text []byte) (*Scenario, error) {
	s := &Scenario{}
	err := manifest.Decode(name, text, s)
	if s.APIVersion != APIVersion && s.APIVersion != "" || s.Kind != ScenarioKind && s.Kind != "" { // its fields are foreign, too
		err = nil
	}
	if err != nil {
		return nil, err
	}
	if s.APIVersion != APIVersion || s.Kind != ScenarioKind {
		return nil, fmt.Errorf("%s: apiVersion %q, kind %q: must be %s and %s", name, s.APIVersion, s.Kind, APIVersion, ScenarioKind)
	}
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

// checkOperation returns an error unless the step has one operation.
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

// setOperations lists the operations that are set.
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

// UnmarshalJSON accepts a string or a list.
func (f *Files) UnmarshalJSON(text []byte) error {
	var one string
	if json.Unmarshal(text, &one) == nil {
		*f = Files{one}
		return nil
	}
	return json.Unmarshal(text, (*[]string)(f))
}

// planSteps puts the steps on the agenda.
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
			o.report.stepping = true
			done, err := o.carryOut(&step.Operation)
			o.report.stepping = false
			switch {
			case err != nil && o.report.failed == nil:
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

// Ends is the time of the scenario's last step.
func (s *Scenario) Ends() (last time.Duration) {
	for i := range s.Steps {
		last = max(last, s.Steps[i].At.Duration)
	}
	return last
}
