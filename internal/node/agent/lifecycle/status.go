package lifecycle

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubectl/pkg/util/qos"
)

// Reasons of a container that waits for its first start, and of one that the runtime has lost.
const (
	containerCreating = "ContainerCreating"
	podInitializing   = "PodInitializing"
	statusUnknown     = "ContainerStatusUnknown"
)

// status is the pod's status to report.
func (d *decision) status() v1.PodStatus {
	st := *d.Old.DeepCopy()
	st.ObservedGeneration = d.Pod.Generation
	st.QOSClass = d.Pod.Status.QOSClass
	if st.QOSClass == "" {
		st.QOSClass = qos.GetPodQOS(d.Pod)
	}
	if st.StartTime == nil {
		now := metav1.NewTime(d.Now)
		st.StartTime = &now
	}
	d.addresses(&st)
	st.InitContainerStatuses = d.containers(d.Pod.Spec.InitContainers, d.Old.InitContainerStatuses, true)
	st.ContainerStatuses = d.containers(d.Pod.Spec.Containers, d.Old.ContainerStatuses, false)
	ephemeral := make([]v1.Container, len(d.Pod.Spec.EphemeralContainers))
	for i := range ephemeral {
		ephemeral[i] = v1.Container(d.Pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
	}
	st.EphemeralContainerStatuses = d.containers(ephemeral, d.Old.EphemeralContainerStatuses, false)
	for i := range st.EphemeralContainerStatuses { // nothing waits for them, and they have no probes
		st.EphemeralContainerStatuses[i].Ready, st.EphemeralContainerStatuses[i].Started = false, nil
	}
	d.setPhase(&st)
	d.podSizes(&st)
	d.conditions(&st)
	return st
}

func (d *decision) addresses(st *v1.PodStatus) {
	if len(d.HostIPs) > 0 {
		st.HostIP = d.HostIPs[0]
		st.HostIPs = nil
		for _, ip := range d.HostIPs {
			st.HostIPs = append(st.HostIPs, v1.HostIP{IP: ip})
		}
	}
	ips := d.HostIPs
	if !d.Pod.Spec.HostNetwork {
		if d.sandbox == nil {
			return // the last addresses are reported until there are new ones
		}
		ips = d.sandbox.IPs
	}
	st.PodIP, st.PodIPs = "", nil
	for _, ip := range ips {
		st.PodIPs = append(st.PodIPs, v1.PodIP{IP: ip})
	}
	if len(ips) > 0 {
		st.PodIP = ips[0]
	}
}

func (d *decision) containers(specs []v1.Container, old []v1.ContainerStatus, init bool) []v1.ContainerStatus {
	if len(specs) == 0 {
		return nil
	}
	out := make([]v1.ContainerStatus, len(specs))
	for i := range specs {
		c := &specs[i]
		cs := d.container(c, statusOf(old, c.Name), init)
		if w, waits := d.waiting[c.Name]; waits && cs.State.Running == nil {
			if cs.State.Terminated != nil {
				cs.LastTerminationState = cs.State
			}
			cs.State = v1.ContainerState{Waiting: &w}
		}
		d.probed(c, &cs, statusOf(old, c.Name), init)
		out[i] = cs
	}
	return out
}

// container is the status of one container as the runtime shows it, or what can be said if it shows
// nothing.
func (d *decision) container(c *v1.Container, old *v1.ContainerStatus, init bool) v1.ContainerStatus {
	cs := v1.ContainerStatus{Name: c.Name, Image: c.Image, VolumeMounts: d.volumeMounts(c)}
	seen := d.Seen.newest(c.Name)
	if seen == nil {
		d.unseen(&cs, old, init)
		return cs
	}
	cs.RestartCount = int32(seen.Attempt)
	if seen.Image != "" {
		cs.Image = seen.Image
	}
	cs.ImageID = seen.ImageRef
	cs.ContainerID = ContainerID(seen.ID)
	cs.AllocatedResources = c.Resources.Requests.DeepCopy()
	cs.Resources = actual(c, seen)
	cs.User = seen.User
	cs.State = told(state(seen, old), old)
	if before := d.before(seen); before != nil && before.State == Exited {
		cs.LastTerminationState = told(state(before, nil), old)
	} else if old != nil {
		cs.LastTerminationState = old.LastTerminationState
		if old.State.Terminated != nil && old.ContainerID != cs.ContainerID {
			cs.LastTerminationState = old.State
		}
	}
	if cs.State.Waiting != nil && cs.State.Waiting.Reason == "" {
		cs.State.Waiting.Reason = d.firstReason()
	}
	return cs
}

// unseen handles a container that was never created, or that the runtime has forgotten.
func (d *decision) unseen(cs *v1.ContainerStatus, old *v1.ContainerStatus, init bool) {
	cs.State.Waiting = &v1.ContainerStateWaiting{Reason: d.firstReason()}
	spec := d.spec(cs.Name)
	switch {
	case old != nil && old.State.Terminated != nil:
		*cs = *old.DeepCopy()
		return
	case init && d.initialized() && spec != nil && !Sidecar(spec):
		cs.State = v1.ContainerState{Terminated: &v1.ContainerStateTerminated{
			Reason:  "Completed",
			Message: "Unable to get init container status from container runtime and pod has been initialized, treat it as exited normally",
		}}
		return
	case old == nil:
		return
	}
	cs.RestartCount, cs.LastTerminationState = old.RestartCount, old.LastTerminationState
	if old.State.Running == nil {
		return
	}
	lost := &v1.ContainerStateTerminated{
		Reason: statusUnknown, ExitCode: exitKilled, ContainerID: old.ContainerID, StartedAt: old.State.Running.StartedAt,
		Message: "The container could not be located when the pod was terminated",
	}
	if d.Ending != nil || d.finished || d.ended() {
		cs.ImageID, cs.ContainerID = old.ImageID, old.ContainerID
		cs.State = v1.ContainerState{Terminated: lost}
		return
	}
	lost.Message = "The container could not be located when the pod was deleted.  The container used to be Running"
	cs.LastTerminationState.Terminated = lost
	cs.RestartCount++
}

func (d *decision) firstReason() string {
	if len(d.Pod.Spec.InitContainers) > 0 {
		return podInitializing
	}
	return containerCreating
}

// initialized reports whether a main container was created, so the init containers are done.
func (d *decision) initialized() bool {
	return slices.ContainsFunc(d.Pod.Spec.Containers, func(c v1.Container) bool { return d.Seen.newest(c.Name) != nil })
}

// before is the previous run of a container.
func (d *decision) before(c *Container) *Container {
	for i := range d.Seen.Containers {
		if other := &d.Seen.Containers[i]; other.Name == c.Name && other.Attempt < c.Attempt {
			return other
		}
	}
	return nil
}

// told keeps an end that was reported before: it must not change, although its termination message
// may have been cleaned up.
func told(s v1.ContainerState, old *v1.ContainerStatus) v1.ContainerState {
	if s.Terminated == nil || old == nil {
		return s
	}
	for _, before := range []v1.ContainerState{old.State, old.LastTerminationState} {
		if t := before.Terminated; t != nil && t.ContainerID == s.Terminated.ContainerID && t.Reason != statusUnknown {
			return before
		}
	}
	return s
}

func state(c *Container, old *v1.ContainerStatus) v1.ContainerState {
	switch c.State {
	case Running:
		return v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: metav1.NewTime(c.StartedAt)}}
	case Exited:
		return v1.ContainerState{Terminated: &v1.ContainerStateTerminated{
			ExitCode: c.ExitCode, Reason: c.Reason, Message: c.Message, ContainerID: ContainerID(c.ID),
			StartedAt: metav1.NewTime(c.StartedAt), FinishedAt: metav1.NewTime(c.FinishedAt),
		}}
	case Unknown:
		if old != nil && old.State.Running != nil {
			return v1.ContainerState{Terminated: &v1.ContainerStateTerminated{
				Reason: statusUnknown, ExitCode: exitKilled, ContainerID: ContainerID(c.ID),
				Message: "The container could not be located when the pod was terminated",
			}}
		}
	}
	return v1.ContainerState{Waiting: &v1.ContainerStateWaiting{}}
}

// probed sets Started and Ready: by the probes' verdict, or, as long as there is none, as last
// reported for the same container.
func (d *decision) probed(c *v1.Container, cs, old *v1.ContainerStatus, init bool) {
	started := false
	defer func() { cs.Started = &started }()
	cs.Ready = init && !Sidecar(c) && cs.State.Terminated != nil && cs.State.Terminated.ExitCode == 0
	if cs.State.Running == nil {
		return
	}
	verdict, known := d.Verdicts[runtimeID(cs.ContainerID)]
	same := old != nil && old.ContainerID == cs.ContainerID
	switch {
	case known:
		started, cs.Ready = verdict.Started, verdict.Started && verdict.Ready
	case same:
		started, cs.Ready = old.Started != nil && *old.Started, old.Ready
	default:
		started = c.StartupProbe == nil
		cs.Ready = started && c.ReadinessProbe == nil
	}
	if init && !Sidecar(c) {
		cs.Ready = false
	}
}

func (d *decision) volumeMounts(c *v1.Container) []v1.VolumeMountStatus {
	var out []v1.VolumeMountStatus
	for _, m := range c.VolumeMounts {
		s := v1.VolumeMountStatus{Name: m.Name, MountPath: m.MountPath, ReadOnly: m.ReadOnly}
		if m.ReadOnly {
			mode := v1.RecursiveReadOnlyDisabled
			if asked := m.RecursiveReadOnly; d.RecursiveReadOnly && asked != nil && *asked != v1.RecursiveReadOnlyDisabled {
				mode = v1.RecursiveReadOnlyEnabled
			}
			s.RecursiveReadOnly = &mode
		}
		out = append(out, s)
	}
	return out
}

func (d *decision) oldStatus(name string) *v1.ContainerStatus {
	for _, list := range [][]v1.ContainerStatus{d.Old.ContainerStatuses, d.Old.InitContainerStatuses, d.Old.EphemeralContainerStatuses} {
		if cs := statusOf(list, name); cs != nil {
			return cs
		}
	}
	return nil
}

func statusOf(list []v1.ContainerStatus, name string) *v1.ContainerStatus {
	if i := slices.IndexFunc(list, func(cs v1.ContainerStatus) bool { return cs.Name == name }); i >= 0 {
		return &list[i]
	}
	return nil
}

func statusTerminated(list []v1.ContainerStatus, name string) *v1.ContainerStateTerminated {
	if cs := statusOf(list, name); cs != nil {
		return cs.State.Terminated
	}
	return nil
}

// scheme is the prefix of container IDs in the API: the runtime's name. Berth is tested with
// containerd only.
const scheme = "containerd://"

// ContainerID returns a container's ID as statuses show it.
func ContainerID(id string) string { return scheme + id }

func runtimeID(id string) string { return id[min(len(id), len(scheme)):] }
