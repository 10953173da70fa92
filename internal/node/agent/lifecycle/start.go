package lifecycle

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"

	v1 "k8s.io/api/core/v1"
)

// Sidecar reports whether an init container is a sidecar, which runs as long as the pod does.
func Sidecar(c *v1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways
}

// Hash covers the fields whose change replaces a container.
func Hash(c *v1.Container) string {
	h := fnv.New32a()
	h.Write([]byte(c.Name + "\x00" + c.Image))
	return strconv.FormatUint(uint64(h.Sum32()), 16)
}

// changed reports whether the container was created from another spec.
func (c *Container) changed(spec *v1.Container) bool { return c.Hash != "" && c.Hash != Hash(spec) }

// Restarts reports whether a container that ended with this code is restarted: by its own rules and
// policy, or by the pod's. It is called for an init container only with the code of a failure,
// which is never 0.
func Restarts(pod *v1.Pod, c *v1.Container, code int32) bool {
	policy := v1.ContainerRestartPolicy(pod.Spec.RestartPolicy)
	if c.RestartPolicy != nil {
		for _, rule := range c.RestartPolicyRules {
			if rule.Action == v1.ContainerRestartRuleActionRestart && matches(rule.ExitCodes, code) {
				return true
			}
		}
		policy = *c.RestartPolicy
	}
	switch policy {
	case v1.ContainerRestartPolicyNever:
		return false
	case v1.ContainerRestartPolicyOnFailure:
		return code != 0
	}
	return true
}

func matches(codes *v1.ContainerRestartRuleOnExitCodes, code int32) bool {
	if codes == nil {
		return false
	}
	within := slices.Contains(codes.Values, code)
	return within == (codes.Operator == v1.ContainerRestartRuleOnExitCodesOpIn)
}

// initContainers continues the sequence: each starts when the previous one has succeeded or, if
// that is a sidecar, has started. Those before the furthest that has begun are done, whether or not
// the runtime still remembers them.
func (d *decision) initContainers() (initialized, failed bool) {
	inits := d.Pod.Spec.InitContainers
	furthest := d.furthest()
	for i := range inits {
		c := &inits[i]
		switch {
		case Sidecar(c) && i <= furthest:
			if up := d.keepSidecar(c); i == furthest && !up {
				return false, false
			}
		case i == furthest:
			done, failed := d.initContainer(c)
			if !done || failed {
				return false, failed
			}
		case i == furthest+1:
			d.start(c)
			return false, false
		}
	}
	return true, false
}

// furthest is the index of the last init container that has begun in this sandbox: -1 if none has,
// and the length of the sequence once a main container has.
func (d *decision) furthest() int {
	for i := range d.Pod.Spec.Containers {
		if d.Seen.in(d.sandbox.ID, d.Pod.Spec.Containers[i].Name) != nil {
			return len(d.Pod.Spec.InitContainers)
		}
	}
	for i := len(d.Pod.Spec.InitContainers) - 1; i >= 0; i-- {
		if d.Seen.in(d.sandbox.ID, d.Pod.Spec.InitContainers[i].Name) != nil {
			return i
		}
	}
	return -1
}

func (d *decision) initContainer(c *v1.Container) (done, failed bool) {
	seen := d.Seen.in(d.sandbox.ID, c.Name)
	switch seen.State {
	case Running:
		return false, false
	case Exited:
		if seen.ExitCode == 0 {
			return true, false
		}
		if !Restarts(d.Pod, c, seen.ExitCode) {
			return false, true
		}
	case Unknown:
		d.stop(seen, d.Now.Add(minimumGrace), false, "")
		return false, false
	}
	d.start(c)
	return false, false
}

// keepSidecar keeps a sidecar running. It returns true once it has started, so that the sequence
// may continue.
func (d *decision) keepSidecar(c *v1.Container) bool {
	seen := d.Seen.in(d.sandbox.ID, c.Name)
	if seen == nil || seen.State != Running {
		if seen != nil && seen.State == Unknown {
			d.stop(seen, d.Now.Add(minimumGrace), false, "")
			return false
		}
		d.start(c)
		return false
	}
	if d.replaced(c, seen, "Init container") {
		return false
	}
	return c.StartupProbe == nil || d.Verdicts[seen.ID].Started
}

// replaced stops a running container whose spec has changed, or whose probe has failed.
func (d *decision) replaced(c *v1.Container, seen *Container, what string) bool {
	verdict := d.Verdicts[seen.ID]
	var message string
	grace := GraceOf(d.Pod)
	restarts := c.RestartPolicy == nil && d.Pod.Spec.RestartPolicy != v1.RestartPolicyNever || c.RestartPolicy != nil && *c.RestartPolicy != v1.ContainerRestartPolicyNever
	switch {
	case seen.changed(c):
		d.Memory.replace(seen.ID)
		message, restarts = fmt.Sprintf("%s %s definition changed", what, c.Name), true
	case verdict.LivenessFailed:
		message = fmt.Sprintf("%s %s failed liveness probe", what, c.Name)
	case verdict.StartupFailed:
		message = fmt.Sprintf("%s %s failed startup probe", what, c.Name)
	case d.resizeRestarts(c, seen):
		d.Memory.replace(seen.ID)
		message, restarts = resizeMessage(c), false
	default:
		d.resize(c, seen)
		return false
	}
	if (verdict.LivenessFailed || verdict.StartupFailed) && verdict.Grace != nil {
		grace = Seconds(*verdict.Grace)
	}
	if restarts && !Sidecar(c) {
		message += ", will be restarted"
	}
	d.stop(seen, d.Now.Add(grace), grace > 0, message)
	return true
}

// mainContainers keeps them running by their restart policies, and ends the pod when none runs or
// will run again.
func (d *decision) mainContainers() {
	alive := false
	for i := range d.Pod.Spec.Containers {
		c := &d.Pod.Spec.Containers[i]
		seen := d.Seen.newest(c.Name)
		switch {
		case seen == nil:
			old := statusOf(d.Old.ContainerStatuses, c.Name)
			if old != nil && old.State.Terminated != nil && !Restarts(d.Pod, c, old.State.Terminated.ExitCode) {
				continue
			}
			d.start(c)
		case seen.State == Running:
			d.replaced(c, seen, "Container")
		case seen.State == Unknown:
			d.stop(seen, d.Now.Add(minimumGrace), false, "")
		case seen.State == Exited:
			if !d.Memory.replacing[seen.ID] && !Restarts(d.Pod, c, seen.ExitCode) {
				continue
			}
			d.start(c)
		default:
			d.start(c)
		}
		alive = true
	}
	if !alive {
		d.finish()
	}
}

// ephemeral starts ephemeral containers, for debugging: once, whatever the state of the pod, and
// never again.
func (d *decision) ephemeral() {
	for i := range d.Pod.Spec.EphemeralContainers {
		c := (*v1.Container)(&d.Pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		if d.Seen.newest(c.Name) == nil && statusTerminated(d.Old.EphemeralContainerStatuses, c.Name) == nil {
			d.start(c)
		}
	}
}

// start starts a container now, or lets it wait for the end of a back-off.
func (d *decision) start(c *v1.Container) {
	last := d.Seen.newest(c.Name)
	if f, retry, waits := d.Memory.failing(c.Name, c.Image, d.Now); f.Reason != "" {
		d.waiting[c.Name] = v1.ContainerStateWaiting{Reason: f.Reason, Message: f.Message}
		if waits {
			d.wakeAt(retry)
			if told := f.At.Add(pullTold); f.Pull != "" && d.Now.Before(told) {
				d.wakeAt(told)
			}
			return
		}
	}
	if last != nil && last.State == Exited && last.SandboxID == d.sandbox.ID && !last.changed(c) && !d.Memory.replacing[last.ID] {
		delay := d.Memory.backOff(last)
		if at := last.FinishedAt.Add(delay); d.Now.Before(at) {
			d.waiting[c.Name] = v1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: fmt.Sprintf(
				"back-off %s restarting failed container=%s pod=%s", delay, c.Name, d.podName())}
			d.wakeAt(at)
			return
		}
	}
	if d.notYet() {
		return
	}
	attempt := 0
	if last != nil {
		attempt = last.Attempt
		if last.State == Created && !d.Memory.stuck[last.ID] {
			// Created but never started, by an agent that was killed in between: it is created
			// again under the same number.
			d.do(Action{Kind: RemoveContainer, ID: last.ID, Name: c.Name})
		} else {
			attempt++
		}
	} else if old := d.oldStatus(c.Name); old != nil {
		// The runtime has forgotten it. Once that was reported, the lost run is already counted.
		attempt = int(old.RestartCount)
		if old.State.Waiting == nil {
			attempt++
		}
	}
	d.do(Action{Kind: StartContainer, ID: d.sandbox.ID, Name: c.Name, Container: c, Attempt: attempt})
}
