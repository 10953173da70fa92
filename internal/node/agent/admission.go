package agent

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/node/admit"
	"github.com/berth-k8s/berth/internal/node/agent/lifecycle"
	"github.com/berth-k8s/berth/internal/node/agent/server"
)

// admit decides, once, whether the node takes the pod; true if the worker is to continue with it. A
// pod that waits for others to make room is decided again when they have.
func (w *worker) admit(ctx context.Context, pod *v1.Pod, ending *lifecycle.Ending) bool {
	a := w.agent
	given, done := w.allocateDevices(ctx, pod, ending)
	if !done {
		return false
	}
	a.admission.Lock()
	defer a.admission.Unlock()
	if w.settled(pod, ending) {
		return true
	}
	if a.goingDown.now.Load() {
		w.fail(pod, "NodeShutdown", refusedAtEnd)
		a.event(pod, v1.EventTypeWarning, "NodeShutdown", refusedAtEnd)
		return false
	}
	if given.short != nil {
		w.reject(pod, *given.short)
		return false
	}
	fresh := w.nodeRead.Load()
	in := a.admissionOf(pod)
	taken, leaving := a.taken(w)
	unassigned, again := a.fits(pod, given)
	if again {
		w.wake()
		return false
	}
	in.Taken, in.Unassigned = taken, unassigned
	switch answer := admit.Ask(in); {
	case answer.Refused != nil && !fresh && answer.Refused.OfNode():
		w.readNode(ctx)
		return false
	case answer.Refused != nil && answer.Refused == unassigned && a.awaitsCPUs():
		if given.fresh { // those may become free elsewhere
			a.devices.Free(w.uid)
		}
		return false
	case answer.Refused != nil:
		w.reject(pod, *answer.Refused)
		return false
	case len(answer.Victims) > 0:
		if !leaving {
			a.makeRoom(pod, answer.Victims)
		}
		return false
	}
	if refused, err := a.pinning.assign(pod, given.held); refused != nil || err != nil {
		klog.ErrorS(err, "Cannot give a pod CPUs of its own; it is tried again", "pod", klog.KObj(pod), "uid", pod.UID, "refused", refused)
		return false
	}
	w.mu.Lock()
	w.admitted, w.allocation = true, allocated(pod)
	w.pod = w.allocation.applied(w.pod)
	w.mu.Unlock()
	return true
}

// readNode reads the node's object, once, and has the pod decided again then: the scheduler may
// have seen a newer one than the agent, which after its start has seen none.
func (w *worker) readNode(ctx context.Context) {
	a := w.agent
	w.nodeReading.Do(func() {
		a.pods.running.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, requestTimeout)
			defer cancel()
			if node, err := a.client.CoreV1().Nodes().Get(ctx, a.config.NodeName, metav1.GetOptions{}); err == nil {
				a.object.seen(node)
			}
			w.nodeRead.Store(true)
			w.wake()
		})
	})
}

// settled reports whether nothing is left to decide about the pod's admission.
func (w *worker) settled(pod *v1.Pod, ending *lifecycle.Ending) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.admitted = w.admitted || ending != nil
	return w.admitted || w.over || terminal(pod) && !w.static
}

// admissionOf is what a decision about a pod depends on, except for other pods.
func (a *Agent) admissionOf(pod *v1.Pod) admit.Input {
	return admit.Input{Pod: pod, Node: a.nodeForAdmission(), Pressure: a.pressures(), AppArmor: a.machine.appArmor}
}

// nodeForAdmission is the node with its actual resources, in case the API does not have them yet.
func (a *Agent) nodeForAdmission() *v1.Node {
	node := a.Node().DeepCopy()
	if node.Status.Allocatable == nil {
		node.Status.Allocatable = a.allocatable(a.capacity())
	}
	a.devices.Cover(node.Status.Allocatable)
	groups := a.health.told().SupplementalGroupsPolicy
	node.Status.Features = &v1.NodeFeatures{SupplementalGroupsPolicy: &groups}
	node.Status.DeclaredFeatures = server.DeclaredFeatures
	return node
}

// taken returns all other pods that count against the node's room, and whether one of them is being
// evicted for another.
func (a *Agent) taken(without *worker) (out []*v1.Pod, leaving bool) {
	for _, w := range a.pods.all() {
		if w == without {
			continue
		}
		w.mu.Lock()
		counts := w.admitted && !w.over
		leaving = leaving || counts && w.evicted != nil
		w.mu.Unlock()
		if pod := w.known(); counts && !terminal(pod) && len(pod.Spec.Containers) > 0 {
			out = append(out, pod)
		}
	}
	return out, leaving
}

// reject fails a pod that the node refuses: it will never run here.
func (w *worker) reject(pod *v1.Pod, why admit.Refusal) {
	w.fail(pod, why.Reason, why.Message)
	w.agent.event(pod, v1.EventTypeWarning, why.Reason, why.Message)
}

// fail gives a pod that was not admitted its final status.
func (w *worker) fail(pod *v1.Pod, reason, message string) {
	klog.InfoS("Rejected a pod", "pod", klog.KObj(pod), "uid", pod.UID, "reason", reason, "message", message)
	status := pod.Status.DeepCopy()
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	status.Phase, status.Reason, status.Message = v1.PodFailed, reason, "Pod was rejected: "+message
	status.StartTime = &now
	status.ObservedGeneration = pod.Generation
	w.mu.Lock()
	w.reported, w.over = status, true
	w.mu.Unlock()
	w.agent.devices.Free(w.uid)
	w.agent.statuses.set(w, *status)
	w.agent.kubelet.Rejected(reason)
}

const preempted = "Preempted in order to admit critical pod"

// makeRoom evicts pods for a critical one.
func (a *Agent) makeRoom(pod *v1.Pod, victims []*v1.Pod) {
	for _, victim := range victims {
		klog.InfoS("Evicting a pod to make room for a critical one", "pod", klog.KObj(victim), "for", klog.KObj(pod))
		a.event(victim, v1.EventTypeWarning, "Preempting", preempted)
		a.Evict(victim.UID, lifecycle.Ending{
			Phase: v1.PodFailed, Reason: "Preempting", Message: preempted, By: time.Now().Add(lifecycle.GraceOf(victim)),
			Condition: &v1.PodCondition{
				Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonTerminationByKubelet,
				Message: "Pod was preempted by Kubelet to accommodate a critical pod.",
			},
		})
	}
}

// roomMade wakes pods that wait for room, after a pod has ended.
func (a *Agent) roomMade() {
	for _, w := range a.pods.all() {
		w.mu.Lock()
		waits := !w.admitted && !w.over
		w.mu.Unlock()
		if waits {
			w.wake()
		}
	}
	a.retryResizes()
}
