package probe

import (
	"cmp"
	"time"

	v1 "k8s.io/api/core/v1"
)

// Kind is the purpose of a probe.
type Kind int

const (
	Startup Kind = iota
	Readiness
	Liveness
)

func (k Kind) String() string { return [...]string{"Startup", "Readiness", "Liveness"}[k] }

// Result is that of one probe, or of several in a row.
type Result int

const (
	Unknown Result = iota
	Success
	Failure
)

func (r Result) String() string { return [...]string{"unknown", "success", "failure"}[r] }

// Sight is the state of a probe's container.
type Sight struct {
	ID        string // empty: there is none yet
	Running   bool
	StartedAt time.Time
	// Started: its startup probe has succeeded, or it has none.
	Started bool
	// Leaving: the pod is ending.
	Leaving bool
}

// Step is what a gauge asks for.
type Step struct {
	Probe bool      // now
	At    time.Time // else look again then; zero: when there is something new
	End   bool      // else never again
}

// Gauge tracks one probe of one container of a pod, across its restarts. It is passive and has no
// clock.
type Gauge struct {
	kind Kind
	spec v1.Probe

	id      string    // the container that the rest is about
	verdict Result    // what holds now
	last    Result    // of the last probe
	run     int       // how many probes in a row had this result
	final   bool      // the verdict stands until there is another container
	due     time.Time // no probe begins before
}

// NewGauge returns a gauge for a probe. Fields that its spec leaves out have the API's defaults.
func NewGauge(kind Kind, spec *v1.Probe) *Gauge {
	g := &Gauge{kind: kind, spec: *spec}
	g.spec.TimeoutSeconds = cmp.Or(spec.TimeoutSeconds, 1)
	g.spec.PeriodSeconds = cmp.Or(spec.PeriodSeconds, 10)
	g.spec.SuccessThreshold = cmp.Or(spec.SuccessThreshold, 1)
	g.spec.FailureThreshold = cmp.Or(spec.FailureThreshold, 3)
	return g
}

// first is what a container counts as before its first result: not ready, and alive.
func first(kind Kind) Result {
	return map[Kind]Result{Startup: Unknown, Readiness: Failure, Liveness: Success}[kind]
}

// Take switches the gauge to another container. held is what is already known of it, if the agent
// finds it after its own restart: the first probe is then delayed at random, so that not all probes
// of a node start at once. It is Unknown for a new container.
func (g *Gauge) Take(id string, held Result, now time.Time, wait time.Duration) {
	*g = Gauge{kind: g.kind, spec: g.spec, id: id, verdict: first(g.kind)}
	if held != Unknown {
		g.verdict = held
		g.final = g.kind == Startup && held == Success
		g.due = now.Add(wait)
	}
}

// See returns what to do about the container in its current state.
func (g *Gauge) See(sight Sight, now time.Time) Step {
	switch {
	case sight.ID == "" || sight.ID != g.id || g.final:
		return Step{}
	case !sight.Running:
		if g.kind == Readiness {
			g.verdict = Failure
		}
		return Step{}
	case sight.Leaving && g.kind != Readiness:
		// It is terminating, and must not be disturbed; whether it receives requests still matters.
		g.verdict, g.final = Success, true
		return Step{End: true}
	case (g.kind == Startup) == sight.Started: // the startup probe has done its work, or the others wait for it
		return Step{}
	}
	due := sight.StartedAt.Add(time.Duration(g.spec.InitialDelaySeconds) * time.Second)
	if due.Before(g.due) {
		due = g.due
	}
	if now.Before(due) {
		return Step{At: due}
	}
	g.due = now.Add(time.Duration(g.spec.PeriodSeconds) * time.Second)
	return Step{Probe: true}
}

// Answer applies the result of the probe that See asked for, and reports whether the verdict has
// changed. Unknown: the probe could not be made, and does not count.
func (g *Gauge) Answer(result Result) (changed bool) {
	if result == Unknown || g.final {
		return false
	}
	if g.last != result {
		g.last, g.run = result, 0
	}
	g.run++
	enough := g.spec.SuccessThreshold
	if result == Failure {
		enough = g.spec.FailureThreshold
	}
	if g.run < int(enough) {
		return false
	}
	changed = g.verdict != result
	g.verdict = result
	// A container that is being killed is not probed again: an exec in it can do harm. And it
	// starts only once.
	g.final = g.kind == Startup || g.kind == Liveness && result == Failure
	return changed
}

// Verdict returns what the container counts as.
func (g *Gauge) Verdict() Result { return g.verdict }
