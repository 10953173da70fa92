// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simkubelet

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/pacing"
)

// play advances one pod's status to now: it starts, ends and restarts containers and makes them
// ready. Apart from forgotten, its state is in the API, so that a new process can continue where
// the last one stopped.
//
// For example, a container that ended at 10:00:05 and is checked at 10:00:30 is played as
//
//	Running -> Terminated at 10:00:05 -> (restarted immediately) Running since 10:00:30
//
// with the computed time for the end and the present time for the restart.
type play struct {
	pod    *v1.Pod
	script script
	now    time.Time
	// status is changed in place.
	status *v1.PodStatus
	// forgotten is the number of restarts that no longer count for a container's back-off. A new
	// process counts all restarts.
	forgotten map[string]int32
	// wake is the time of the next spontaneous change of the status; zero means never.
	wake time.Time
}

// The exit code of a process ended by a signal is 128 plus the signal's number.
const (
	exitTerminated = 143
	exitKilled     = 137
)

// wakeAt records the time of a spontaneous change of the status; the earliest time is kept.
func (p *play) wakeAt(t time.Time) { p.wake = pacing.Sooner(p.wake, t) }

// playContainers plays the init containers in order, and then the regular containers, which start
// together. Sidecars run until all regular containers have ended and none will be restarted.
func (p *play) playContainers() {
	spec := &p.pod.Spec
	p.status.InitContainerStatuses = p.knownStatuses(spec.InitContainers, p.status.InitContainerStatuses)
	p.status.ContainerStatuses = p.knownStatuses(spec.Containers, p.status.ContainerStatuses)
	// The regular containers wait, keeping their statuses.
	if !p.initContainers() {
		return
	}
	for i := range spec.Containers {
		p.playContainer(&spec.Containers[i], &p.status.ContainerStatuses[i], p.script.endingFor(&spec.Containers[i]))
	}
	p.ephemeralContainers()
	// Sidecars end with the pod, not before it.
	if p.endedForGood() {
		p.stopAll(exitTerminated)
	}
}

// ephemeralContainers plays the containers added for debugging. They run until the pod ends, unless
// their command line implies another ending, and are never restarted. They are played like regular
// containers, and do not count for phase and readiness.
func (p *play) ephemeralContainers() {
	containers := make([]v1.Container, len(p.pod.Spec.EphemeralContainers))
	for i := range containers {
		containers[i] = v1.Container(p.pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		containers[i].RestartPolicy = new(v1.ContainerRestartPolicyNever)
	}
	p.status.EphemeralContainerStatuses = p.knownStatuses(containers, p.status.EphemeralContainerStatuses)
	for i := range containers {
		// Only the command line is used, because annotations apply to the pod's own containers.
		e, known := endingOf(&containers[i])
		if !known {
			e = ending{runFor: forEver}
		}
		p.playContainer(&containers[i], &p.status.EphemeralContainerStatuses[i], e)
	}
}

// initContainers plays the init containers. It returns true once the regular containers may start.
// A sidecar only needs to have started; the next container does not wait for its readiness.
func (p *play) initContainers() bool {
	for i := range p.pod.Spec.InitContainers {
		c, cs := &p.pod.Spec.InitContainers[i], &p.status.InitContainerStatuses[i]
		if rules.IsSidecar(c) {
			p.playContainer(c, cs, ending{runFor: forEver})
			if cs.Started == nil || !*cs.Started {
				return false
			}
			continue
		}
		// The init container is done and is not run again.
		if t := cs.State.Terminated; t != nil && t.ExitCode == 0 {
			continue
		}
		p.playContainer(c, cs, p.script.initEnding(c))
		switch t := cs.State.Terminated; {
		case t == nil:
			return false
		case t.ExitCode != 0: // failed permanently: before a restart, its state would be Waiting
			p.stopSidecars()
			return false
		}
	}
	return true
}

// stopSidecars ends the running sidecars when an init container has failed and will not be
// restarted. Sidecars not yet started remain in the state Waiting.
func (p *play) stopSidecars() {
	for i := range p.status.InitContainerStatuses {
		if cs := &p.status.InitContainerStatuses[i]; cs.State.Running != nil {
			p.endContainer(cs, p.now, exitTerminated)
		}
	}
}

// knownStatuses returns a status for every container of the spec, in the spec's order. A container
// that had no status gets one in the state Waiting. Statuses of containers missing from the spec
// are dropped.
func (p *play) knownStatuses(containers []v1.Container, have []v1.ContainerStatus) []v1.ContainerStatus {
	if len(containers) == 0 {
		return nil
	}
	out := make([]v1.ContainerStatus, len(containers))
	for i := range containers {
		c := &containers[i]
		if j := slices.IndexFunc(have, func(cs v1.ContainerStatus) bool { return cs.Name == c.Name }); j >= 0 {
			out[i] = have[j]
			continue
		}
		out[i] = v1.ContainerStatus{Name: c.Name, Image: c.Image, Started: new(false)}
		out[i].State.Waiting = &v1.ContainerStateWaiting{Reason: "PodInitializing"}
	}
	return out
}

// playContainer plays one container until it must wait for something. Each turn of the loop is one
// change of its state.
func (p *play) playContainer(c *v1.Container, cs *v1.ContainerStatus, e ending) {
	for {
		switch state := &cs.State; {
		case state.Running != nil && cs.Image != c.Image:
			// The image of a running container was changed: the container is replaced.
			p.endContainer(cs, p.now, exitTerminated)
			if !p.pullImage(c, cs) {
				return
			}
			p.startContainer(c, cs, cs.RestartCount+1)
		case state.Running != nil:
			if e.runFor == forEver {
				p.runProbes(c, cs)
				return
			}
			end := endOf(state.Running.StartedAt, e.runFor)
			if p.now.Before(end) {
				p.wakeAt(end)
				p.runProbes(c, cs)
				return
			}
			// The end may lie before now; the loop continues with a restart.
			p.endContainer(cs, end, e.exitCode)
		// The container has ended or is in back-off. In back-off, State is Waiting, and
		// LastTerminationState describes the last run.
		case state.Terminated != nil || cs.LastTerminationState.Terminated != nil:
			if !p.restartContainer(c, cs) {
				return
			}
		default:
			if !p.pullImage(c, cs) {
				return
			}
			p.startContainer(c, cs, 0)
		}
	}
}

// longRun is the running time after which a container's restarts are forgotten, as in a kubelet:
// twice the longest back-off.
const longRun = 10 * time.Minute

// restartContainer restarts a container, or puts it into back-off. It returns false if nothing can
// be done now.
func (p *play) restartContainer(c *v1.Container, cs *v1.ContainerStatus) bool {
	last := cmp.Or(cs.State.Terminated, cs.LastTerminationState.Terminated)

	if !p.mayRestart(c, last.ExitCode) || !p.pullImage(c, cs) {
		return false
	}
	if last.FinishedAt.Sub(last.StartedAt.Time) > longRun {
		if p.forgotten == nil {
			p.forgotten = map[string]int32{}
		}
		p.forgotten[c.Name] = cs.RestartCount
	}
	delay := backOff(cs.RestartCount - p.forgotten[c.Name])
	if at := endOf(last.FinishedAt, delay); p.now.Before(at) {
		p.wakeAt(at)
		cs.LastTerminationState.Terminated = last
		cs.State = v1.ContainerState{Waiting: &v1.ContainerStateWaiting{
			Reason: "CrashLoopBackOff",
			Message: fmt.Sprintf("back-off %s restarting failed container=%s pod=%s_%s(%s)",
				delay, c.Name, p.pod.Name, p.pod.Namespace, p.pod.UID),
		}}
		return false
	}

	cs.LastTerminationState.Terminated = last
	p.startContainer(c, cs, cs.RestartCount+1)
	return true
}

// mayRestart reports whether a container that ended with this code is restarted. A policy of the
// container itself overrides the pod's.
func (p *play) mayRestart(c *v1.Container, exitCode int32) bool {
	policy := p.pod.Spec.RestartPolicy
	if isInit := slices.ContainsFunc(p.pod.Spec.InitContainers,
		func(i v1.Container) bool { return i.Name == c.Name }); isInit && policy == v1.RestartPolicyAlways && !rules.IsSidecar(c) {
		// An init container must succeed once, not run forever.
		policy = v1.RestartPolicyOnFailure
	}
	policy = v1.RestartPolicy(ptr.Deref(c.RestartPolicy, v1.ContainerRestartPolicy(policy)))
	return policy == v1.RestartPolicyAlways || policy == v1.RestartPolicyOnFailure && exitCode != 0
}

// backOff returns the delay of the next restart, as in a kubelet: none for the first restart, then
// 10 s, doubled up to 5 min.
//
//	restarts          0   1    2    3    4    5     6 and more
//	back-off          0   10s  20s  40s  80s  160s  5m
func backOff(restarts int32) time.Duration {
	if restarts == 0 {
		return 0
	}
	return min(10*time.Second<<min(restarts-1, 10), 5*time.Minute)
}

// startContainer starts a container. The IDs are hashes, so that a repeated simulation yields the
// same IDs.
func (p *play) startContainer(c *v1.Container, cs *v1.ContainerStatus, restarts int32) {
	cs.State = v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: toSeconds(p.now)}}
	cs.RestartCount = restarts
	cs.Image = c.Image
	cs.ImageID = c.Image + "@sha256:" + hashParts(c.Image)
	cs.ContainerID = "berth://" + hashParts(string(p.pod.UID), c.Name, strconv.Itoa(int(restarts)))
	p.reportSize(c, cs)
}

// reportSize reports the resources of the container's spec. They are copies: the spec belongs to
// the watch.
func (p *play) reportSize(c *v1.Container, cs *v1.ContainerStatus) {
	cs.AllocatedResources = c.Resources.Requests.DeepCopy()
	cs.Resources = &v1.ResourceRequirements{
		Requests: c.Resources.Requests.DeepCopy(),
		Limits:   c.Resources.Limits.DeepCopy(),
	}
}

// endContainer ends a container. Its end may lie in the past.
func (p *play) endContainer(cs *v1.ContainerStatus, at time.Time, exitCode int32) {
	reason := "Completed"
	if exitCode != 0 {
		reason = "Error"
	}
	ended := &v1.ContainerStateTerminated{
		ExitCode:    exitCode,
		Reason:      reason,
		FinishedAt:  toSeconds(at),
		ContainerID: cs.ContainerID,
	}
	if cs.State.Running != nil {
		ended.StartedAt = cs.State.Running.StartedAt
	}
	cs.State = v1.ContainerState{Terminated: ended}
	cs.Started = new(false)
	// An init container that succeeded counts as ready, as with the kubelet.
	cs.Ready = exitCode == 0 && slices.ContainsFunc(p.pod.Spec.InitContainers, func(c v1.Container) bool {
		return c.Name == cs.Name && !rules.IsSidecar(&c)
	})
}

// endedForGood reports whether no regular container runs or will run again. It is false for a
// container in back-off, which will run again.
func (p *play) endedForGood() bool {
	for i := range p.status.ContainerStatuses {
		ended := p.status.ContainerStatuses[i].State.Terminated
		if ended == nil || p.mayRestart(&p.pod.Spec.Containers[i], ended.ExitCode) {
			return false
		}
	}
	return true
}

// stopAll ends all containers that have not ended, including containers in back-off and containers
// that never ran.
func (p *play) stopAll(exitCode int32) {
	for _, list := range [][]v1.ContainerStatus{p.status.InitContainerStatuses, p.status.ContainerStatuses,
		p.status.EphemeralContainerStatuses} {
		for i := range list {
			if list[i].State.Terminated == nil {
				p.endContainer(&list[i], p.now, exitCode)
			}
		}
	}
}

// endOf returns the end of a duration that began at a stored time. The API truncates times to whole
// seconds: a second is added so that the end is never too early.
//
//	stored 12:00:00 (really 12:00:00.9), 5 s: the end is 12:00:06, not before 12:00:05.9
func endOf(t metav1.Time, d time.Duration) time.Time {
	if d == 0 {
		return t.Time
	}
	return t.Add(d + time.Second)
}

// hashParts returns a hash that looks like a real ID. The zero byte keeps parts apart.
func hashParts(parts ...string) string {
	h := sha256.New()
	for _, part := range parts {
		h.Write(append([]byte(part), 0))
	}
	return hex.EncodeToString(h.Sum(nil))
}
