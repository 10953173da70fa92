package lifecycle

import (
	v1 "k8s.io/api/core/v1"
)

// setPhase sets the phase. A terminal phase is final; a pod with an Ending gets the phase of that
// when nothing of it runs.
func (d *decision) setPhase(st *v1.PodStatus) {
	if d.ended() {
		st.Phase = d.Old.Phase
		if !Terminal(st.Phase) {
			st.Phase, st.Reason, st.Message = d.Pod.Status.Phase, d.Pod.Status.Reason, d.Pod.Status.Message
		}
		return
	}
	phase := d.phase(st)
	switch e := d.Ending; {
	case e != nil && e.Phase != "" && d.out.Done:
		st.Phase, st.Reason, st.Message = e.Phase, e.Reason, e.Message
		if e.KeepsSuccess && phase == v1.PodSucceeded {
			st.Phase = phase
		}
		return
	case e != nil && d.out.Done && !Terminal(phase):
		// Deleted before anything of it ran, or while some of its containers never did. A static
		// pod keeps its phase: nobody would see the end.
		if !d.Static {
			phase = v1.PodFailed
		}
	case e == nil && d.out.Done && !Terminal(phase):
		phase = v1.PodFailed // a pod that never restarts has lost its sandbox before all of its containers ran
	case Terminal(phase) && !d.out.Done: // sidecars, or the sandbox, are on their way out
		if phase = v1.PodRunning; !d.initialized() {
			phase = v1.PodPending
		}
	}
	if phase != st.Phase {
		st.Reason, st.Message = "", ""
	}
	st.Phase = phase
}

// tally counts containers by state.
type tally struct {
	pendingInit, failedInit                     int
	pendingSidecars                             int
	running, waiting, stopped, succeeded, final int
}

// phase follows from the containers, as the kubelet derives it.
func (d *decision) phase(st *v1.PodStatus) v1.PodPhase {
	var t tally
	for i := range d.Pod.Spec.InitContainers {
		t.init(d.Pod, &d.Pod.Spec.InitContainers[i], &st.InitContainerStatuses[i])
	}
	for i := range d.Pod.Spec.Containers {
		t.main(d.Pod, &d.Pod.Spec.Containers[i], &st.ContainerStatuses[i])
	}
	begun := d.initialized()
	switch {
	case t.failedInit > 0:
		return v1.PodFailed
	case t.pendingInit > 0, t.pendingSidecars > 0 && !begun, t.waiting > 0:
		return v1.PodPending
	case t.running > 0:
		return v1.PodRunning
	case t.stopped == 0:
		return v1.PodPending
	case d.Ending == nil && t.stopped != t.final:
		return v1.PodRunning // some are about to be restarted
	case d.Static && d.Ending != nil:
		return v1.PodRunning
	case t.stopped == t.succeeded:
		return v1.PodSucceeded
	}
	return v1.PodFailed
}

// lastEnd is how a container last ended; nil if it has not ended, or runs.
func lastEnd(cs *v1.ContainerStatus) *v1.ContainerStateTerminated {
	if cs.State.Terminated != nil {
		return cs.State.Terminated
	}
	if cs.State.Waiting != nil {
		return cs.LastTerminationState.Terminated
	}
	return nil
}

func (t *tally) init(pod *v1.Pod, c *v1.Container, cs *v1.ContainerStatus) {
	end := lastEnd(cs)
	if Sidecar(c) {
		switch {
		case cs.State.Running != nil:
			t.running++
			if cs.Started == nil || !*cs.Started {
				t.pendingSidecars++
			}
		case end == nil:
			t.pendingSidecars++
			t.waiting++
		}
		return
	}
	switch {
	case end == nil:
		t.pendingInit++
	case end.ExitCode != 0 && !Restarts(pod, c, end.ExitCode):
		t.failedInit++
	case end.ExitCode != 0 && cs.State.Waiting == nil:
		t.pendingInit++
	}
}

func (t *tally) main(pod *v1.Pod, c *v1.Container, cs *v1.ContainerStatus) {
	end := lastEnd(cs)
	switch {
	case cs.State.Running != nil:
		t.running++
	case end == nil:
		t.waiting++
	default:
		t.stopped++
		if end.ExitCode == 0 {
			t.succeeded++
		}
		if !Restarts(pod, c, end.ExitCode) {
			t.final++
		}
	}
}
