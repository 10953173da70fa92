package lifecycle

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
)

// Input is all that a decision about a pod depends on.
type Input struct {
	Pod *v1.Pod
	// Old is the status last reported, or the API's if none was reported since the start.
	Old  v1.PodStatus
	Seen Seen
	// Verdicts of the probes, by container ID. A container without one has no result yet.
	Verdicts map[string]Verdict
	// PreStop are the hooks that have begun, by container ID.
	PreStop map[string]HookState
	// Ending is why the pod has to end; nil while it should run.
	Ending *Ending
	// Memory is this pod's; Decide changes it.
	Memory *Memory
	// HostIPs of the node, the primary first.
	HostIPs []string
	// Pending is a requested resize that was not granted; nil: there is none.
	Pending *PendingResize
	// ResizeGeneration is the generation of the resize that was granted last; 0: unknown.
	ResizeGeneration int64
	// RecursiveReadOnly: the runtime supports recursive read-only mounts.
	RecursiveReadOnly bool
	// Static: the pod comes from a file. Its mirror in the API shows it, but does not control it.
	Static bool
	Now    time.Time
}

// Seen is what the runtime shows of a pod: newest first.
type Seen struct {
	Sandboxes  []Sandbox
	Containers []Container
}

// Sandbox is one of the pod's sandboxes in the runtime.
type Sandbox struct {
	ID        string
	Attempt   uint32
	Ready     bool
	CreatedAt time.Time
	// IPs are empty on the host's network.
	IPs         []string
	HostNetwork bool
}

// State is a container's state in the runtime.
type State string

const (
	Created State = "created"
	Running State = "running"
	Exited  State = "exited"
	Unknown State = "unknown"
)

// Container is one run of a container in the runtime.
type Container struct {
	ID, SandboxID, Name string
	// Attempt is how often the container was started before.
	Attempt int
	State   State
	// Hash is that of the container's spec when it was created.
	Hash                             string
	Image, ImageRef                  string
	CreatedAt, StartedAt, FinishedAt time.Time
	ExitCode                         int32
	Reason, Message                  string
	// Resources that it runs with; nil: unknown.
	Resources *v1.ResourceRequirements
	// User that it was started as; nil: unknown.
	User *v1.ContainerUser
}

// Verdict is the result of a container's probes.
type Verdict struct {
	// Started: the startup probe has passed, or there is none.
	Started bool
	Ready   bool
	// LivenessFailed and StartupFailed: the container has to be killed.
	LivenessFailed, StartupFailed bool
	// Grace of the probe that failed, if it has its own.
	Grace *int64
}

// HookState is how far a hook has got; the zero value: it has not begun.
type HookState int

const (
	HookRunning HookState = iota + 1
	HookDone
)

// Ending is why a pod has to end.
type Ending struct {
	// Phase, Reason and Message are set once no container runs. An empty Phase follows from how the
	// containers ended.
	Phase           v1.PodPhase
	Reason, Message string
	// KeepsSuccess: a pod whose containers all end well has succeeded, whatever Phase is.
	KeepsSuccess bool
	// Condition to be set at once, if any (DisruptionTarget).
	Condition *v1.PodCondition
	// By is when containers that still run are killed.
	By time.Time
	// Gone: the pod is deleted, so nothing of it is kept. Otherwise logs and exit codes stay for
	// inspection.
	Gone bool
}

// minimumGrace is the minimum time between SIGTERM and SIGKILL for every container.
const minimumGrace = 2 * time.Second

// newest returns the newest container of that name; nil if there is none.
func (s *Seen) newest(name string) *Container {
	if i := slices.IndexFunc(s.Containers, func(c Container) bool { return c.Name == name }); i >= 0 {
		return &s.Containers[i]
	}
	return nil
}

// in returns the newest container of that name in a sandbox; nil if there is none.
func (s *Seen) in(sandbox, name string) *Container {
	i := slices.IndexFunc(s.Containers, func(c Container) bool { return c.Name == name && c.SandboxID == sandbox })
	if i < 0 {
		return nil
	}
	return &s.Containers[i]
}

func (s *Seen) running() []*Container {
	var out []*Container
	for i := range s.Containers {
		if c := &s.Containers[i]; c.State == Running || c.State == Unknown {
			out = append(out, c)
		}
	}
	return out
}

// Empty reports whether nothing of the pod is left in the runtime.
func (s *Seen) Empty() bool { return len(s.Sandboxes) == 0 && len(s.Containers) == 0 }
