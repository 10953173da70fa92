package lifecycle

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
)

// finish ends the sidecars of a pod whose containers have ended by themselves.
func (d *decision) finish() {
	d.finished = true
	d.out.Actions = nil
	d.end(d.finishBy())
}

// finishBy is the end of the grace period that began when the pod was first seen to be done.
func (d *decision) finishBy() time.Time { return d.graceFrom(&d.Memory.finishBy) }

// graceFrom is the end of a grace period that begins now, if it has not begun before.
func (d *decision) graceFrom(by *time.Time) time.Time {
	if by.IsZero() {
		*by = d.Now.Add(GraceOf(d.Pod))
	}
	return *by
}

// end stops everything, and then the sandbox.
func (d *decision) end(by time.Time) {
	d.out.Wake, d.out.Ends = time.Time{}, true
	if d.stopAll(by) {
		return
	}
	for _, s := range d.Seen.Sandboxes {
		if s.Ready {
			d.do(Action{Kind: StopSandbox, ID: s.ID})
		}
	}
	if len(d.out.Actions) > 0 {
		return
	}
	d.out.Done = true
	if d.Ending != nil && d.Ending.Gone {
		d.removeAll()
	}
}

// stopAll stops everything that runs, and reports whether anything does: preStop hooks run at once,
// main containers get SIGTERM when their hook is done, sidecars when these and the sidecars after
// them have ended. What still runs at the end of the grace period is killed.
func (d *decision) stopAll(by time.Time) bool {
	running := d.Seen.running()
	for _, c := range running {
		if hook := d.PreStop[c.ID]; d.hasPreStop(c) && hook != HookDone && d.Now.Before(by) {
			d.wakeAt(by)
			if hook == 0 {
				d.do(Action{Kind: PreStop, ID: c.ID, Name: c.Name, Container: d.spec(c.Name), By: by})
			}
			continue
		}
		if d.Now.Before(by) && d.hasToWait(c, running) {
			d.wakeAt(by)
			continue
		}
		d.stop(c, by, false, "")
	}
	return len(running) > 0
}

// removeAll removes a deleted pod from the runtime.
func (d *decision) removeAll() {
	for _, c := range d.Seen.Containers {
		d.do(Action{Kind: RemoveContainer, ID: c.ID, Name: c.Name})
	}
	for _, s := range d.Seen.Sandboxes {
		d.do(Action{Kind: RemoveSandbox, ID: s.ID})
	}
}

// hasToWait reports whether a sidecar has to outlive a main container or a sidecar that was started
// after it. Init containers and ephemeral ones end at the same time as it does.
func (d *decision) hasToWait(c *Container, running []*Container) bool {
	at := d.place(c.Name)
	return at >= 0 && slices.ContainsFunc(running, func(other *Container) bool {
		return d.place(other.Name) > at || d.main(other.Name)
	})
}

func (d *decision) main(name string) bool {
	return slices.ContainsFunc(d.Pod.Spec.Containers, func(c v1.Container) bool { return c.Name == name })
}

// place is a sidecar's index in the sequence; -1 for all other containers.
func (d *decision) place(name string) int {
	return slices.IndexFunc(d.Pod.Spec.InitContainers, func(c v1.Container) bool { return c.Name == name && Sidecar(&c) })
}

func (d *decision) hasPreStop(c *Container) bool {
	spec := d.spec(c.Name)
	return c.State == Running && spec != nil && spec.Lifecycle != nil && spec.Lifecycle.PreStop != nil
}

// stop stops a container, after its preStop hook if that is to run.
func (d *decision) stop(c *Container, by time.Time, hook bool, message string) {
	if latest := d.Now.Add(minimumGrace); by.Before(latest) {
		by = latest
	}
	d.do(Action{Kind: StopContainer, ID: c.ID, Name: c.Name, Container: d.spec(c.Name), By: by, Hook: hook, Message: message})
}

// spec is a container's spec; nil if the pod does not have it.
func (d *decision) spec(name string) *v1.Container {
	for _, list := range [][]v1.Container{d.Pod.Spec.Containers, d.Pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	for i := range d.Pod.Spec.EphemeralContainers {
		if c := &d.Pod.Spec.EphemeralContainers[i]; c.Name == name {
			return (*v1.Container)(&c.EphemeralContainerCommon)
		}
	}
	return nil
}
