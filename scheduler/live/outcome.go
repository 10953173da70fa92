package live

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/cluster"
	"github.com/berth-k8s/berth/decide"
	"github.com/berth-k8s/berth/queue"
)

// requestTimeout bounds one request to the API server.
const requestTimeout = 30 * time.Second

func reference(pod *v1.Pod) v1.ObjectReference {
	return v1.ObjectReference{
		Kind: "Pod", APIVersion: "v1", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
	}
}

// bind gives the pod its node. The API server refuses when it has one, or is another pod of that name.
func (s *Scheduler) bind(ctx context.Context, pod *v1.Pod, node string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	binding := &v1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Target:     v1.ObjectReference{Kind: "Node", Name: node},
	}
	if err := s.client.CoreV1().Pods(pod.Namespace).Bind(ctx, binding, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("binding rejected: %w", err)
	}
	return nil
}

// failed puts a pod back whose attempt went wrong, and says so.
func (s *Scheduler) failed(item *queue.Item, err error) {
	klog.Background().V(2).Info("Attempt failed", "pod", klog.KObj(item.Pod), "err", err)
	s.queue.Failed(item, time.Now())
	s.report(item.Pod, v1.PodReasonSchedulerError, err.Error(), nil)
}

// rejected makes room for a pod that fits nowhere, if that is possible, and puts it where it waits.
func (s *Scheduler) rejected(_ context.Context, profile *profile, item *queue.Item, p *cluster.Pod) {
	failure := profile.Diagnose(p)
	after := ""
	var nominate *string
	if failure.Nodes > 0 && profile.Preemption {
		found := profile.Preempt(p)
		switch {
		case found.Node != nil:
			s.makeRoom(p, found)
			nominate = &found.Node.Name
		default:
			after = "preemption: " + found.Message
		}
	}
	if profile.HasDevices() && nominate == nil && failure.Nodes > 0 {
		after = joinNonEmpty("no new claims to deallocate", after)
	}
	rejectors := slices.Clone(failure.Plugins)
	if failure.Rejector != "" {
		rejectors = append(rejectors, failure.Rejector)
	}
	s.queue.Rejected(item, rejectors, time.Now())
	s.report(item.Pod, v1.PodReasonUnschedulable, failure.Message(after), nominate)
}

func joinNonEmpty(a, b string) string {
	if b == "" {
		return a
	}
	return a + ", " + b
}

// makeRoom nominates the pod to the node and has the victims removed.
func (s *Scheduler) makeRoom(p *cluster.Pod, found decide.Preemption) {
	s.cluster.Nominate(p, found.Node.Name)
	node, preemptor := found.Node.Name, klog.KRef(p.Namespace(), p.Name)
	for _, victim := range found.Victims {
		if victim.Terminating {
			continue
		}
		ref := v1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: victim.Namespace(), Name: victim.Name, UID: victim.UID}
		s.helpers.do(func(ctx context.Context) {
			if err := s.remove(ctx, ref, p.Class.Spec.SchedulerName); err != nil {
				klog.FromContext(ctx).Error(err, "Victim not removed", "victim", klog.KRef(ref.Namespace, ref.Name), "for", preemptor)
				s.inbox.put(func() { s.queue.Happened(queue.PodRemoved, time.Now()) }) // so that the pod is tried again
				return
			}
			s.events.Add(ref, v1.EventTypeNormal, "Preempted", fmt.Sprintf("Preempted by pod %s on node %s", p.UID, node))
		})
	}
}

// remove deletes a victim after it was told why.
func (s *Scheduler) remove(ctx context.Context, victim v1.ObjectReference, by string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	pods := s.client.CoreV1().Pods(victim.Namespace)
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": victim.UID},
		"status": map[string]any{"conditions": []v1.PodCondition{{
			Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonPreemptionByScheduler,
			Message: fmt.Sprintf("%s: preempting to accommodate a higher priority pod", by), LastTransitionTime: metav1.Now(),
		}}},
	})
	if err != nil {
		return err
	}
	if _, err := pods.Patch(ctx, victim.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("mark as disruption target: %w", err)
	}
	err = pods.Delete(ctx, victim.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &victim.UID}})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // it has gone; a conflict means that another pod has its name
	}
	return err
}

// report writes why the pod is not placed: as an event and, if it is news, as its condition.
func (s *Scheduler) report(pod *v1.Pod, reason, message string, nominate *string) {
	s.events.Add(reference(pod), v1.EventTypeWarning, "FailedScheduling", message)
	condition := v1.PodCondition{
		Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: reason, Message: message, ObservedGeneration: pod.Generation,
	}
	if !news(pod, &condition) && (nominate == nil || *nominate == pod.Status.NominatedNodeName) {
		return
	}
	s.helpers.do(func(ctx context.Context) {
		if err := s.writeStatus(ctx, pod, condition, nominate); err != nil {
			klog.FromContext(ctx).V(2).Info("Status not written", "pod", klog.KObj(pod), "err", err)
		}
	})
}

func news(pod *v1.Pod, c *v1.PodCondition) bool {
	c.LastTransitionTime = metav1.Now()
	for i := range pod.Status.Conditions {
		if old := &pod.Status.Conditions[i]; old.Type == c.Type {
			if old.Status == c.Status {
				c.LastTransitionTime = old.LastTransitionTime
			}
			return old.Status != c.Status || old.Reason != c.Reason || old.Message != c.Message
		}
	}
	return true
}

// writeStatus patches the state of the pod that was decided. If the pod has changed, the newest state is patched as long as it
// still waits: the patch must never undo what a binding wrote.
func (s *Scheduler) writeStatus(ctx context.Context, pod *v1.Pod, c v1.PodCondition, nominate *string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	pods := s.client.CoreV1().Pods(pod.Namespace)
	status := map[string]any{"conditions": []v1.PodCondition{c}}
	if nominate != nil {
		status["nominatedNodeName"] = *nominate
	}
	version := pod.ResourceVersion
	for {
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID, "resourceVersion": version}, "status": status})
		if err != nil {
			return err
		}
		_, err = pods.Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		if !apierrors.IsConflict(err) {
			return err
		}
		newest, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil || newest.UID != pod.UID || newest.Spec.NodeName != "" || newest.DeletionTimestamp != nil {
			return err
		}
		version = newest.ResourceVersion
	}
}
