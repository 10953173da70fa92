package lifecycle

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/resource"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Resizable are the resources that can change while a container runs.
var Resizable = []v1.ResourceName{v1.ResourceMemory, v1.ResourceCPU}

// ContainerResize is a running container whose resources are to change in place. The container's
// spec has the new ones.
type ContainerResize struct {
	ID        string
	Container *v1.Container
	From      v1.ResourceRequirements
}

// PendingResize is a resize that the node has not granted: the pod keeps what it was allocated.
type PendingResize struct {
	// Reason is Deferred or Infeasible.
	Reason, Message string
	Generation      int64
}

// changedResources returns the resources whose requests or limits differ.
func changedResources(from, to v1.ResourceRequirements) (out []v1.ResourceName) {
	for _, name := range Resizable {
		if request, limit := from.Requests[name], from.Limits[name]; !request.Equal(to.Requests[name]) || !limit.Equal(to.Limits[name]) {
			out = append(out, name)
		}
	}
	return out
}

// SameSize reports whether two sets of resources agree in everything that can be resized.
func SameSize(a, b v1.ResourceRequirements) bool { return len(changedResources(a, b)) == 0 }

// outgrown returns the resources in which the running container differs from its spec.
func (d *decision) outgrown(c *v1.Container, seen *Container) []v1.ResourceName {
	if seen.State != Running || seen.Resources == nil {
		return nil
	}
	return changedResources(*seen.Resources, c.Resources)
}

// resizeRestarts reports whether the container has to be restarted for a change of its resources to
// take effect.
func (d *decision) resizeRestarts(c *v1.Container, seen *Container) bool {
	for _, name := range d.outgrown(c, seen) {
		for _, policy := range c.ResizePolicy {
			if policy.ResourceName == name && policy.RestartPolicy == v1.RestartContainer {
				return true
			}
		}
	}
	return false
}

// resize plans to resize the container in place, together with the others of the pod.
func (d *decision) resize(c *v1.Container, seen *Container) {
	if len(d.outgrown(c, seen)) > 0 {
		d.resizes = append(d.resizes, ContainerResize{ID: seen.ID, Container: c, From: *seen.Resources})
	}
}

// resizeAll requests the resize once every container has been looked at. A failed resize is retried
// later.
func (d *decision) resizeAll() {
	if len(d.resizes) == 0 {
		d.Memory.resizeFailed = failedResize{}
		return
	}
	if d.Now.Before(d.Memory.resizeFailed.retry) {
		d.wakeAt(d.Memory.resizeFailed.retry)
		return
	}
	d.do(Action{Kind: Resize, Resizes: d.resizes, ID: d.sandbox.ID})
}

// resizeRetry is the pause after the runtime or the kernel has refused a resize.
const resizeRetry = backOffFirst

// failedResize is why the last attempt to resize the pod failed, and when the next one is due.
type failedResize struct {
	message string
	retry   time.Time
}

// ResizeFailed records that the pod could not be resized.
func (m *Memory) ResizeFailed(message string, now time.Time) {
	m.resizeFailed = failedResize{message, now.Add(resizeRetry)}
}

// resizeConditions reports a resize that was not granted, and one that is not complete.
func (d *decision) resizeConditions(st *v1.PodStatus, old []v1.PodCondition) {
	if Terminal(st.Phase) {
		return
	}
	if p := d.Pending; p != nil {
		d.putResize(st, old, v1.PodCondition{Type: v1.PodResizePending, Reason: p.Reason, Message: p.Message, ObservedGeneration: p.Generation})
	}
	if !d.resizing() {
		return
	}
	c := v1.PodCondition{Type: v1.PodResizeInProgress, ObservedGeneration: d.ResizeGeneration}
	if failed := d.Memory.resizeFailed.message; failed != "" {
		c.Reason, c.Message = v1.PodReasonError, failed
	}
	if before := conditionOf(old, c.Type); before != nil && c.ObservedGeneration == 0 {
		c.ObservedGeneration = before.ObservedGeneration
	}
	d.putResize(st, old, c)
}

// resizing reports whether a running container does not have its resources yet.
func (d *decision) resizing() bool {
	for _, list := range [][]v1.Container{d.Pod.Spec.Containers, d.Pod.Spec.InitContainers} {
		for i := range list {
			if seen := d.Seen.newest(list[i].Name); seen != nil && len(d.outgrown(&list[i], seen)) > 0 {
				return true
			}
		}
	}
	return false
}

func (d *decision) putResize(st *v1.PodStatus, old []v1.PodCondition, c v1.PodCondition) {
	c.Status, c.LastTransitionTime = v1.ConditionTrue, metav1.NewTime(d.Now)
	if before := conditionOf(old, c.Type); before != nil {
		c.LastProbeTime = before.LastProbeTime
		if before.Reason == c.Reason {
			c.LastTransitionTime = before.LastTransitionTime
		}
	}
	st.Conditions = append(st.Conditions, c)
}

// actual is a container's resources: those of its spec and, for CPU and memory, what it really has
// while it runs.
func actual(c *v1.Container, seen *Container) *v1.ResourceRequirements {
	out := c.Resources.DeepCopy()
	if seen.State != Running || seen.Resources == nil {
		return out
	}
	for _, name := range Resizable {
		keep(out.Requests, seen.Resources.Requests, name)
		keep(out.Limits, seen.Resources.Limits, name)
	}
	return out
}

// podSizes reports what the pod as a whole was allocated and what it has: while it runs, what all
// its containers have together.
func (d *decision) podSizes(st *v1.PodStatus) {
	st.AllocatedResources = rules.Requests(d.Pod)
	st.Resources = &v1.ResourceRequirements{}
	if whole := d.Pod.Spec.Resources; whole != nil {
		st.Resources = whole.DeepCopy()
	}
	if st.Phase != v1.PodRunning {
		st.Resources.Requests, st.Resources.Limits = rules.Requests(d.Pod), resource.PodLimits(d.Pod, resource.PodResourcesOptions{})
		return
	}
	now := d.actualPod()
	requests, limits := rules.Requests(now), rules.GroupLimits(now)
	for _, name := range Resizable {
		put(&st.Resources.Requests, requests, name)
		put(&st.Resources.Limits, limits, name)
	}
}

// actualPod is the pod with what its containers have in place of what they were allocated.
func (d *decision) actualPod() *v1.Pod {
	if !d.resizing() {
		return d.Pod
	}
	pod := d.Pod.DeepCopy()
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if seen := d.Seen.newest(list[i].Name); seen != nil {
				list[i].Resources = *actual(&list[i], seen)
			}
		}
	}
	return pod
}

func put(to *v1.ResourceList, from v1.ResourceList, name v1.ResourceName) {
	amount, has := from[name]
	if !has {
		return
	}
	if *to == nil {
		*to = v1.ResourceList{}
	}
	(*to)[name] = amount
}

// keep has a list say of a resource what another does, which may be nothing.
func keep(to, from v1.ResourceList, name v1.ResourceName) {
	amount, has := from[name]
	switch {
	case !has:
		delete(to, name)
	case to != nil:
		to[name] = amount.DeepCopy()
	}
}

func resizeMessage(c *v1.Container) string {
	return fmt.Sprintf("Container %s resize requires restart", c.Name)
}
