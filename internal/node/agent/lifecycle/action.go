package lifecycle

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
)

// Output is what to do, in order, and what to report.
type Output struct {
	Status  v1.PodStatus
	Actions []Action
	// Wake is when to decide again if nothing happens until then; zero: never.
	Wake time.Time
	// Ends: what runs of the pod is to end.
	Ends bool
	// Done: the pod has ended, and nothing of it runs.
	Done bool
}

// Kind of an action.
type Kind string

const (
	CreateSandbox   Kind = "create-sandbox"
	StopSandbox     Kind = "stop-sandbox"
	RemoveSandbox   Kind = "remove-sandbox"
	StartContainer  Kind = "start"
	PreStop         Kind = "pre-stop"
	StopContainer   Kind = "stop"
	RemoveContainer Kind = "remove"
	// Resize running containers in place, and the pod around them.
	Resize Kind = "resize"
)

// Action is one step in the runtime. Which fields are set depends on Kind.
type Action struct {
	Kind Kind
	// ID of the sandbox or container; for StartContainer the sandbox it is started in.
	ID string
	// Name of the container.
	Name string
	// Container is its spec, for StartContainer, PreStop and StopContainer (nil there if the pod
	// has no container of this name).
	Container *v1.Container
	// Attempt of the sandbox or container to be made.
	Attempt int
	// By is when a container that is being stopped is killed.
	By time.Time
	// Hook: the preStop hook of the container runs before it is stopped, if it has one that has not
	// begun.
	Hook bool
	// Message is that of the event about it.
	Message string
	// Resizes of containers, for Resize; ID is the sandbox there.
	Resizes []ContainerResize
}

// String is the form in text cases.
func (a Action) String() string {
	switch a.Kind {
	case CreateSandbox:
		return fmt.Sprintf("%s attempt=%d", a.Kind, a.Attempt)
	case StartContainer:
		return fmt.Sprintf("%s %s attempt=%d in=%s", a.Kind, a.Name, a.Attempt, a.ID)
	case StopContainer, PreStop:
		return fmt.Sprintf("%s %s (%s) by=%s", a.Kind, a.Name, a.ID, a.By.UTC().Format("15:04:05"))
	case Resize:
		text := string(a.Kind)
		for _, r := range a.Resizes {
			text += fmt.Sprintf(" %s (%s)", r.Container.Name, r.ID)
		}
		return text
	case RemoveContainer:
		return fmt.Sprintf("%s %s (%s)", a.Kind, a.Name, a.ID)
	}
	return fmt.Sprintf("%s %s", a.Kind, a.ID)
}
