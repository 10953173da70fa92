package lifecycle

import (
	"fmt"
	"math"
	"time"

	v1 "k8s.io/api/core/v1"
)

// decision is one decision about a pod.
type decision struct {
	Input
	out Output
	// sandbox is the one that containers are started in; nil if none is usable.
	sandbox *Sandbox
	// waiting is why a container is not running although it should, by name.
	waiting map[string]v1.ContainerStateWaiting
	// finished: no container runs, or will run again.
	finished bool
	// resizes of containers that go on running.
	resizes []ContainerResize
}

// Decide returns what to do next for a pod, and its status. It changes only in.Memory.
func Decide(in Input) Output {
	if in.Memory == nil {
		in.Memory = &Memory{}
	}
	d := &decision{Input: in, waiting: map[string]v1.ContainerStateWaiting{}}
	if d.ended() && d.Seen.Empty() {
		// Nothing can change any more, in particular not the status of a pod that never ran.
		st := d.Old
		if !Terminal(st.Phase) {
			st = d.Pod.Status
		}
		return Output{Status: st, Done: true}
	}
	d.sandbox = d.usable()
	d.deadline()
	switch {
	case d.Ending != nil:
		d.end(d.Ending.By)
	case d.ended():
		d.end(d.finishBy())
	default:
		d.run()
	}
	d.out.Status = d.status()
	return d.out
}

// ended reports whether the API, or this node, has declared the pod over. That is final.
func (d *decision) ended() bool {
	return Terminal(d.Old.Phase) || !d.Static && Terminal(d.Pod.Status.Phase)
}

// Terminal reports whether a phase is final.
func Terminal(phase v1.PodPhase) bool { return phase == v1.PodSucceeded || phase == v1.PodFailed }

// deadline ends a pod that has been active for activeDeadlineSeconds.
func (d *decision) deadline() {
	seconds := d.Pod.Spec.ActiveDeadlineSeconds
	if seconds == nil || d.Old.StartTime == nil || d.Ending != nil || d.ended() {
		return
	}
	at := d.Old.StartTime.Add(time.Duration(*seconds) * time.Second)
	if d.Now.Before(at) {
		d.wakeAt(at)
		return
	}
	d.Ending = &Ending{
		Phase: v1.PodFailed, Reason: "DeadlineExceeded", Message: "Pod was active on the node longer than the specified deadline",
		By: d.graceFrom(&d.Memory.deadlineBy),
	}
}

// GraceOf is a pod's grace period: that of its deletion, or its own.
func GraceOf(pod *v1.Pod) time.Duration {
	seconds := int64(v1.DefaultTerminationGracePeriodSeconds)
	if own := pod.Spec.TerminationGracePeriodSeconds; own != nil {
		seconds = *own
	}
	if deletion := pod.DeletionGracePeriodSeconds; pod.DeletionTimestamp != nil && deletion != nil {
		seconds = *deletion
	}
	return Seconds(seconds)
}

// Seconds is how long this many seconds are: none at least, and at most what fits into 32 bits,
// some decades. The API accepts more, and whoever asks for that means for ever.
func Seconds(n int64) time.Duration {
	return time.Duration(min(max(n, 0), math.MaxInt32)) * time.Second
}

// usable returns the newest sandbox if it is ready, and the only one that is.
func (d *decision) usable() *Sandbox {
	ready := 0
	for i := range d.Seen.Sandboxes {
		if d.Seen.Sandboxes[i].Ready {
			ready++
		}
	}
	if ready != 1 || !d.Seen.Sandboxes[0].Ready {
		return nil
	}
	s := &d.Seen.Sandboxes[0]
	if s.HostNetwork != d.Pod.Spec.HostNetwork || !s.HostNetwork && len(s.IPs) == 0 {
		return nil
	}
	return s
}

// run brings a pod closer to its spec.
func (d *decision) run() {
	if d.sandbox == nil {
		d.renew()
		return
	}
	d.dropOldSandboxes()
	d.ephemeral()
	initialized, failed := d.initContainers()
	switch {
	case failed:
		d.finish()
		return
	case initialized:
		d.mainContainers()
	}
	if !d.finished {
		d.resizeAll()
	}
}

// renew creates the sandbox that a pod needs: its first, or the next after one that was lost with
// everything in it.
func (d *decision) renew() {
	next := 0
	for _, s := range d.Seen.Sandboxes {
		next = max(next, int(s.Attempt)+1)
	}
	if !d.wanted() {
		d.finish()
		return
	}
	if len(d.Seen.running()) > 0 {
		d.stopAll(d.graceFrom(&d.Memory.renewBy))
		return
	}
	d.Memory.renewBy = time.Time{}
	stopping := false
	for _, s := range d.Seen.Sandboxes {
		if s.Ready {
			d.do(Action{Kind: StopSandbox, ID: s.ID})
			stopping = true
		}
	}
	if !stopping && d.notYet() {
		return
	}
	d.do(Action{Kind: CreateSandbox, Attempt: next})
}

// wanted reports whether something is left to run in a new sandbox: a container that is restarted,
// or that has not run yet, unless initialization has failed or the pod never restarts.
func (d *decision) wanted() bool {
	if !d.ran() {
		return true
	}
	for i := range d.Pod.Spec.InitContainers {
		c := &d.Pod.Spec.InitContainers[i]
		if seen := d.Seen.newest(c.Name); !Sidecar(c) && seen != nil && seen.State == Exited && seen.ExitCode != 0 {
			return Restarts(d.Pod, c, seen.ExitCode)
		}
	}
	for i := range d.Pod.Spec.Containers {
		c := &d.Pod.Spec.Containers[i]
		code, known := d.exitCode(c.Name, d.Seen.newest(c.Name))
		if known && Restarts(d.Pod, c, code) || !known && d.Pod.Spec.RestartPolicy != v1.RestartPolicyNever {
			return true
		}
	}
	return false
}

// ran reports whether a container ran according to the API, even if the runtime has forgotten it.
func (d *decision) ran() bool {
	for _, cs := range d.Old.ContainerStatuses {
		if cs.State.Running != nil || cs.State.Terminated != nil || cs.LastTerminationState.Terminated != nil {
			return true
		}
	}
	return len(d.Seen.Containers) > 0
}

// exitCode is that of a container that is not running. One that ran in a sandbox that was lost
// counts as killed.
func (d *decision) exitCode(name string, seen *Container) (int32, bool) {
	switch {
	case seen == nil:
		if old := statusOf(d.Old.ContainerStatuses, name); old != nil && (old.State.Running != nil || old.State.Terminated != nil) {
			if old.State.Terminated != nil {
				return old.State.Terminated.ExitCode, true
			}
			return exitKilled, true
		}
		return 0, false
	case seen.State == Exited:
		return seen.ExitCode, true
	case seen.State == Created:
		return 0, false
	}
	return exitKilled, true
}

const exitKilled = 137

// dropOldSandboxes removes lost sandboxes. Their containers stay, for their logs and exit codes,
// until newer ones replace them.
func (d *decision) dropOldSandboxes() {
	for _, s := range d.Seen.Sandboxes[1:] {
		if d.inUse(s.ID) {
			continue
		}
		d.do(Action{Kind: RemoveSandbox, ID: s.ID})
	}
	d.dropOldContainers()
}

func (d *decision) inUse(sandbox string) bool {
	for _, c := range d.Seen.Containers {
		if c.SandboxID == sandbox {
			return true
		}
	}
	return false
}

// kept is how many containers of a name stay in the runtime: the current one, and the previous one
// for its log.
const kept = 2

func (d *decision) dropOldContainers() {
	count := map[string]int{}
	for i := range d.Seen.Containers {
		c := &d.Seen.Containers[i]
		if count[c.Name]++; count[c.Name] > kept && c.State == Exited {
			d.do(Action{Kind: RemoveContainer, ID: c.ID, Name: c.Name})
		}
	}
}

// notYet reports whether something that every container needs is missing at the moment.
func (d *decision) notYet() bool {
	if d.Now.Before(d.Memory.NotBefore) {
		d.wakeAt(d.Memory.NotBefore)
		return true
	}
	return false
}

func (d *decision) do(a Action) { d.out.Actions = append(d.out.Actions, a) }

func (d *decision) wakeAt(t time.Time) {
	if d.out.Wake.IsZero() || t.Before(d.out.Wake) {
		d.out.Wake = t
	}
}

func (d *decision) podName() string {
	return fmt.Sprintf("%s_%s(%s)", d.Pod.Name, d.Pod.Namespace, d.Pod.UID)
}
