package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"

	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/node/admit"
	"github.com/berth-k8s/berth/internal/node/agent/lifecycle"
)

// allocation is what the node has granted to a pod's containers, by name. It is decided when the
// pod is admitted and with each resize that is granted. It is not stored on the machine: the next
// agent reads it from the pod's status in the API.
type allocation map[string]v1.ResourceRequirements

// resizable returns a pod's sidecars and regular containers.
func resizable(pod *v1.Pod) (out []*v1.Container) {
	for i := range pod.Spec.InitContainers {
		if lifecycle.Sidecar(&pod.Spec.InitContainers[i]) {
			out = append(out, &pod.Spec.InitContainers[i])
		}
	}
	for i := range pod.Spec.Containers {
		out = append(out, &pod.Spec.Containers[i])
	}
	return out
}

// allocated is the allocation of a pod that is admitted as it is.
func allocated(pod *v1.Pod) allocation {
	out := allocation{}
	for _, c := range resizable(pod) {
		out[c.Name] = c.Resources
	}
	return out
}

// allocatedBefore is what a previous agent granted, according to the pod's status.
func allocatedBefore(pod *v1.Pod) allocation {
	out := allocated(pod)
	for _, cs := range allContainers(pod.Status) {
		have, known := out[cs.Name]
		if !known || cs.AllocatedResources == nil && cs.Resources == nil {
			continue
		}
		have = *have.DeepCopy()
		for _, name := range lifecycle.Resizable {
			takeOver(have.Requests, cs.AllocatedResources, name)
			if cs.Resources != nil {
				takeOver(have.Limits, cs.Resources.Limits, name)
			}
		}
		out[cs.Name] = have
	}
	return out
}

// takeOver replaces an amount by the one that a container had, which may be none.
func takeOver(list, had v1.ResourceList, name v1.ResourceName) {
	amount, has := had[name]
	if _, asked := list[name]; asked && has {
		list[name] = amount
	} else {
		delete(list, name)
	}
}

// applied is the pod with its allocation in place of what it requests.
func (a allocation) applied(pod *v1.Pod) *v1.Pod {
	if a == nil || a.grants(pod) {
		return pod
	}
	pod = pod.DeepCopy()
	for _, c := range resizable(pod) {
		if granted, known := a[c.Name]; known {
			c.Resources = granted
		}
	}
	return pod
}

// grants reports whether the pod requests exactly its allocation.
func (a allocation) grants(pod *v1.Pod) bool {
	return !slices.ContainsFunc(resizable(pod), func(c *v1.Container) bool {
		granted, known := a[c.Name]
		return known && !lifecycle.SameSize(granted, c.Resources)
	})
}

// asksForResize reports whether the pod requests other resources than it was granted, and it has
// not been reported yet why it does not get them.
func (w *worker) asksForResize() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.maySize() && !w.allocation.grants(w.inAPI) && (w.pending == nil || w.pending.Generation != w.inAPI.Generation)
}

// maySize reports whether the pod's resources can change. The worker is locked.
func (w *worker) maySize() bool {
	return !w.static && w.admitted && !w.over && !w.gone && w.evicted == nil && w.allocation != nil && w.inAPI != nil && w.inAPI.DeletionTimestamp == nil
}

// wishes is a worker whose pod requests other resources than it was granted.
type wishes struct {
	*worker
	wanted, have *v1.Pod
	since        time.Time
}

// retryResizes grants the resizes that there is room for. It is called whenever a pod requests one,
// and when room was freed.
func (a *Agent) retryResizes() {
	if !a.listed.Load() {
		return // not all pods that take room are known
	}
	a.admission.Lock()
	defer a.admission.Unlock()
	var waiting []wishes
	for _, w := range a.pods.all() {
		w.mu.Lock()
		if w.maySize() {
			if w.allocation.grants(w.inAPI) {
				if w.pending != nil {
					w.pending = nil
					w.wake()
				}
			} else {
				waiting = append(waiting, wishes{w, w.inAPI, w.pod, w.pendingSince})
			}
		}
		w.mu.Unlock()
	}
	slices.SortStableFunc(waiting, firstResized)
	for _, w := range waiting {
		a.decideResize(w)
	}
}

// firstResized orders resizes: those that request no more than before, then by priority, then
// Guaranteed pods, then by waiting time.
func firstResized(a, b wishes) int {
	if x, y := asksForMore(a), asksForMore(b); x != y {
		return orderOf(y)
	}
	if x, y := priorityOf(a.wanted), priorityOf(b.wanted); x != y {
		return orderOf(x > y)
	}
	if x, y := guaranteed(a.wanted), guaranteed(b.wanted); x != y {
		return orderOf(x)
	}
	return a.since.Compare(b.since)
}

func orderOf(first bool) int {
	if first {
		return -1
	}
	return 1
}

func guaranteed(pod *v1.Pod) bool { return rules.QOS(pod) == v1.PodQOSGuaranteed }

func priorityOf(pod *v1.Pod) int32 {
	if pod.Spec.Priority == nil {
		return 0
	}
	return *pod.Spec.Priority
}

func asksForMore(w wishes) bool {
	wanted, have := resource.PodRequests(w.wanted, resource.PodResourcesOptions{}), resource.PodRequests(w.have, resource.PodResourcesOptions{})
	for _, name := range lifecycle.Resizable {
		if amount := wanted[name]; amount.Cmp(have[name]) > 0 {
			return true
		}
	}
	return false
}

// decideResize decides one pod's resize; admission is locked.
func (a *Agent) decideResize(w wishes) {
	taken, _ := a.taken(w.worker)
	others := make([]admit.Demand, len(taken))
	for i, pod := range taken {
		others[i] = admit.DemandOf(pod, true)
	}
	refused, never := admit.Resize(w.wanted, a.nodeForAdmission(), others)
	if why := a.pinning.forbidsResize(w.wanted, w.have); why != "" {
		refused, never = &admit.Refusal{Message: why}, true
	}
	if refused == nil {
		w.grant(w.wanted)
		a.event(w.wanted, v1.EventTypeNormal, "ResizeStarted", resizeSummary("Pod resize started", w.wanted, ""))
		return
	}
	pending := &lifecycle.PendingResize{Reason: v1.PodReasonDeferred, Message: refused.Message, Generation: w.wanted.Generation}
	if never {
		pending.Reason = v1.PodReasonInfeasible
	}
	summary := resizeSummary("Pod resize "+pending.Reason, w.wanted, refused.Message)
	switch news := w.pend(pending); {
	case news && never:
		a.event(w.wanted, v1.EventTypeWarning, "ResizeInfeasible", summary)
	case news:
		a.event(w.wanted, v1.EventTypeWarning, "ResizeDeferred", summary)
	}
}

// grant gives the pod what it requests; the worker then resizes its containers.
func (w *worker) grant(wanted *v1.Pod) {
	w.mu.Lock()
	w.allocation, w.pending, w.resizeGeneration = allocated(wanted), nil, wanted.Generation
	w.pod = w.allocation.applied(fromAPI(w.inAPI, w.pod.Annotations[annotationConfigSeen]))
	own := w.pod
	w.mu.Unlock()
	w.agent.volumes.Update(own)
	w.wake()
}

// pend records why the resize is not granted; true if that is new.
func (w *worker) pend(why *lifecycle.PendingResize) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.pending
	w.pending = why
	if before != nil && *before == *why {
		return false
	}
	if before == nil || before.Reason != why.Reason {
		w.pendingSince = time.Now()
	}
	w.wake()
	return before == nil || before.Reason != why.Reason || before.Generation != why.Generation
}

// resizeRetry is how often resizes are retried if nothing happens that could help them, as by the
// kubelet.
const resizeRetry = 3 * time.Minute

func (a *Agent) retryResizesAround(ctx context.Context) {
	ticker := time.NewTicker(resizeRetry)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			a.retryResizes()
		}
	}
}

// tellResize reports a resize that is done, or that failed.
func (a *Agent) tellResize(pod *v1.Pod, before *v1.PodStatus, now v1.PodStatus) (done bool) {
	if before == nil {
		return false
	}
	was, is := inProgress(before), inProgress(&now)
	switch {
	case was != nil && is == nil && !terminal(&v1.Pod{Status: now}):
		a.event(pod, v1.EventTypeNormal, "ResizeCompleted", resizeSummary("Pod resize completed", pod, ""))
		return true
	case is != nil && is.Reason == v1.PodReasonError && (was == nil || was.Message != is.Message):
		a.event(pod, v1.EventTypeWarning, "ResizeError", resizeSummary("Pod resize error", pod, is.Message))
	}
	return false
}

func inProgress(st *v1.PodStatus) *v1.PodCondition {
	for i := range st.Conditions {
		if st.Conditions[i].Type == v1.PodResizeInProgress {
			return &st.Conditions[i]
		}
	}
	return nil
}

// resizeSummary is the message of an event, in the kubelet's format.
func resizeSummary(what string, pod *v1.Pod, failure string) string {
	type container struct {
		Name      string                  `json:"name"`
		Resources v1.ResourceRequirements `json:"resources,omitempty"`
	}
	var summary struct {
		InitContainers []container `json:"initContainers,omitempty"`
		Containers     []container `json:"containers,omitempty"`
		Generation     int64       `json:"generation"`
		Error          string      `json:"error,omitempty"`
	}
	for i := range pod.Spec.InitContainers {
		summary.InitContainers = append(summary.InitContainers, container{pod.Spec.InitContainers[i].Name, pod.Spec.InitContainers[i].Resources})
	}
	for i := range pod.Spec.Containers {
		summary.Containers = append(summary.Containers, container{pod.Spec.Containers[i].Name, pod.Spec.Containers[i].Resources})
	}
	summary.Generation, summary.Error = pod.Generation, failure
	text, err := json.Marshal(summary)
	if err != nil {
		return what
	}
	return fmt.Sprintf("%s: %s", what, text)
}
