package lifecycle

import (
	"time"

	v1 "k8s.io/api/core/v1"
)

const (
	backOffFirst = 10 * time.Second
	backOffMost  = 5 * time.Minute
	// forgetAfter: the back-off of a container that ran this long before it ended starts over.
	forgetAfter = 2 * backOffMost
	// pullTold is how long a failed pull is reported as such, before it is reported as backing off.
	pullTold = 3 * time.Second
)

// Memory is what is kept about a pod between decisions. All of it can be lost.
type Memory struct {
	// restarts of containers, for the back-off, by name.
	restarts map[string]*restart
	// failures to start a container, by name.
	failures map[string]*Failure
	// NotBefore: something that all containers need was not available; nothing is started until
	// then.
	NotBefore time.Time
	// replacing are the containers that were stopped to be restarted with another image or other
	// resources, whatever their restart policy, by ID.
	replacing map[string]bool
	// resizeFailed is the last resize that failed.
	resizeFailed failedResize
	// finishBy is the end of the grace period for what still runs of a finished pod.
	finishBy time.Time
	// renewBy is the same for what still runs of a pod that has lost its sandbox.
	renewBy time.Time
	// deadlineBy is the same for a pod that has been active for too long.
	deadlineBy time.Time
	// stuck are the containers that the runtime cannot remove, by ID.
	stuck map[string]bool
}

// replace records that a container is stopped to be restarted, whatever its restart policy.
func (m *Memory) replace(id string) {
	if m.replacing == nil {
		m.replacing = map[string]bool{}
	}
	m.replacing[id] = true
}

// CannotRemove records that the runtime refuses to remove a container. A new one does not wait for
// it, and takes the next attempt's number.
func (m *Memory) CannotRemove(id string) {
	if m.stuck == nil {
		m.stuck = map[string]bool{}
	}
	m.stuck[id] = true
}

type restart struct {
	delay time.Duration
	at    time.Time
}

// Failure is why a container could not be started, as its status words it.
type Failure struct {
	Reason, Message string
	At              time.Time
	// Pull is the message of the back-off after a failed pull; empty for other failures. Image is
	// the container's: the failure counts only for this image.
	Pull, Image string
	tries       int
	retry       time.Time
}

// Failed records that a container could not be started. If the same failure repeats, the next
// attempt is later.
func (m *Memory) Failed(container string, f Failure) {
	if m.failures == nil {
		m.failures = map[string]*Failure{}
	}
	if before := m.failures[container]; before != nil && before.Image == f.Image {
		f.tries = before.tries
	}
	f.retry = f.At.Add(min(backOffFirst<<min(f.tries, 10), backOffMost))
	if f.Pull == "" {
		// Other failures mostly wait for a missing object to be created. The kubelet retries every
		// ten seconds or so.
		f.retry = f.At.Add(backOffFirst)
	}
	f.tries++
	m.failures[container] = &f
}

// Started records that a container was started. It is restarted at once the first time that it
// ends, and with growing delays after that. A container with another spec starts over.
func (m *Memory) Started(c *v1.Container, previous *Container, now time.Time) {
	container := c.Name
	delete(m.failures, container)
	if previous == nil || previous.State != Exited {
		return
	}
	if m.replacing[previous.ID] || previous.changed(c) {
		delete(m.replacing, previous.ID)
		if m.restarts == nil {
			m.restarts = map[string]*restart{}
		}
		m.restarts[container] = &restart{at: now}
		return
	}
	if m.restarts == nil {
		m.restarts = map[string]*restart{}
	}
	delay := backOffFirst
	if r := m.restarts[container]; r != nil && !r.forgotten(previous) {
		delay = min(max(2*r.delay, backOffFirst), backOffMost)
	} else if r == nil {
		// Memory was lost: the delay follows from the number of restarts.
		delay = max(delay, delayAfter(previous.Attempt+1))
		if previous.FinishedAt.Sub(previous.StartedAt) > forgetAfter {
			delay = backOffFirst
		}
	}
	m.restarts[container] = &restart{delay: delay, at: now}
}

func (r *restart) forgotten(ended *Container) bool { return ended.FinishedAt.Sub(r.at) > forgetAfter }

// delayAfter is the back-off after this many restarts.
func delayAfter(restarts int) time.Duration {
	if restarts <= 0 {
		return 0
	}
	return min(backOffFirst<<min(restarts-1, 10), backOffMost)
}

// backOff is how long after its end a container has to wait for its restart.
func (m *Memory) backOff(c *Container) time.Duration {
	r := m.restarts[c.Name]
	switch {
	case r == nil && c.FinishedAt.Sub(c.StartedAt) > forgetAfter:
		return 0
	case r == nil:
		return delayAfter(c.Attempt)
	case r.forgotten(c):
		return 0
	}
	return r.delay
}

// failing returns what keeps a container from being started now.
func (m *Memory) failing(container, image string, now time.Time) (f Failure, retry time.Time, waits bool) {
	known := m.failures[container]
	if known == nil || known.Image != image {
		return Failure{}, time.Time{}, false
	}
	f = *known
	if f.Pull != "" && !now.Before(f.At.Add(pullTold)) {
		f.Reason, f.Message = "ImagePullBackOff", f.Pull
	}
	return f, f.retry, now.Before(f.retry)
}
