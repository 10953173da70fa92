package plugins

import "github.com/berth-k8s/berth/internal/engine/queue"

// DefaultPreemption is the plugin that a pod waits for until its victims have been deleted. The
// scheduler does its work (package decide finds the victims), and wakes the pod: no event helps.
type DefaultPreemption struct{}

// Name returns the plugin's name.
func (DefaultPreemption) Name() string { return "DefaultPreemption" }

// Preempter is a plugin that makes the scheduler look for victims at PostFilter, and that keeps the
// pod out at PreEnqueue until their removals were answered.
type Preempter interface {
	Name() string
	Preempts()
}

// Preempts implements [Preempter].
func (DefaultPreemption) Preempts() {}

// Interests implements Requeuer.
func (DefaultPreemption) Interests(Setting) []queue.Interest { return nil }
