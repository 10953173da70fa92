// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package evictionrequest_test

import (
	"time"

	v1 "k8s.io/api/core/v1"
	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// AddPod creates a running pod with these responders in its spec.
func (w *World) AddPod(name string, grouped bool, responders ...v1.EvictionResponder) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: v1.PodSpec{NodeName: "node", EvictionResponders: responders}, Status: v1.PodStatus{Phase: v1.PodRunning}}
	if grouped {
		p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: ptr.To("group")}
	}
	w.write(p)
	return p
}

// Terminate begins a pod's termination, which takes its grace period. An already terminating pod is
// unchanged.
func (w *World) Terminate(p *v1.Pod) {
	if p.DeletionTimestamp != nil {
		return
	}
	p = p.DeepCopy()
	p.DeletionTimestamp = &metav1.Time{Time: w.Now}
	w.write(p)
	w.Tracef("pod %s terminates", p.Name)
	w.After(w.Grace, func() { w.RemovePod(p.Name, p.UID) })
}

// RemovePod removes a pod immediately, unless its name belongs to another pod by now.
func (w *World) RemovePod(name string, uid types.UID) {
	if p := w.Pod(name); p != nil && p.UID == uid {
		w.remove(p)
		w.Tracef("pod %s is gone", name)
	}
}

// EndPod puts a pod into the phase Succeeded.
func (w *World) EndPod(name string) {
	p := w.Pod(name).DeepCopy()
	p.Status.Phase = v1.PodSucceeded
	w.write(p)
}

// AddRequest creates a request for a pod's eviction. The UID may be wrong: the API server does not
// check it.
func (w *World) AddRequest(name, requester, pod string, uid types.UID) {
	r := &lifecyclev1alpha1.EvictionRequest{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Generation: 1},
		Spec: lifecyclev1alpha1.EvictionRequestSpec{Requester: requester, Intent: lifecyclev1alpha1.EvictionRequestIntentEviction,
			Target: lifecyclev1alpha1.EvictionRequestTarget{Pod: &lifecyclev1alpha1.EvictionRequestPodReference{Name: pod, UID: uid}}},
	}
	w.write(r)
}

// SetIntent withdraws or renews a request.
func (w *World) SetIntent(name string, intent lifecyclev1alpha1.EvictionRequestIntent) {
	r := w.Request(name).DeepCopy()
	if r.Spec.Intent != intent {
		r.Spec.Intent = intent
		r.Generation++
		// checkEviction accepts evictions that were in progress at this time.
		w.withdrawn[r.Spec.Target.Pod.UID] = w.Now
		w.write(r)
	}
}

// DeleteRequest deletes a requester's request.
func (w *World) DeleteRequest(name string) {
	r := w.Request(name)
	w.withdrawn[r.Spec.Target.Pod.UID] = w.Now
	w.remove(r)
}

// Respond writes the progress or the completion of a responder other than Berth's. It returns false
// if it is not the turn of the responder, or if Validate refuses the write.
func (w *World) Respond(pod, responder, message string, completes bool) (done bool) {
	for _, e := range All[*lifecyclev1alpha1.Eviction](w) {
		if e.Spec.Target.Pod.Name != pod {
			continue
		}

		next := e.DeepCopy()
		for i, r := range next.Status.TargetResponders {
			if r.Name != responder || r.State != lifecyclev1alpha1.ResponderStateActive {
				continue
			}

			status := &next.Status.Responders[i]
			status.HeartbeatTime, status.Message = &metav1.Time{Time: w.Now.Truncate(time.Second)}, &message
			if completes {
				status.CompletionTime = status.HeartbeatTime
			}

			if w.Validate != nil {
				if err := w.Validate(next, e); err != nil {
					return false
				}
			}
			w.write(next)
			return true
		}
	}
	return false
}

// Clear deletes all pods and requests. Evictions remain, because the core must delete them.
func (w *World) Clear() {
	for _, p := range All[*v1.Pod](w) {
		w.remove(p)
	}
	for _, r := range All[*lifecyclev1alpha1.EvictionRequest](w) {
		w.DeleteRequest(r.Name)
	}
}
