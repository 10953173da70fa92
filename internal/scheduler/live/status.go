package live

import (
	"context"
	"encoding/json"
	"sync"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/engine/cycle"
)

// statuses writes what the core says of pods, of each pod one thing at a time and in the order in
// which it was said: an older message must not end up over a newer one.
type statuses struct {
	write func(context.Context, cycle.WriteStatus) error
	see   func(cycle.Event)

	mu    sync.Mutex
	under map[types.UID]*statusWrite // pods that are being written, and what is to be written next; nil: nothing yet
}

// statusWrite is one write, and who waits for it.
type statusWrite struct {
	cycle.WriteStatus
	tickets []cycle.Ticket
}

// add has workers write.
func (w *statuses) add(by *workers, a cycle.WriteStatus) {
	w.mu.Lock()
	defer w.mu.Unlock()
	one := &statusWrite{WriteStatus: a}
	if a.Ticket != 0 {
		one.tickets = append(one.tickets, a.Ticket)
	}
	next, busy := w.under[a.Pod.UID]
	if busy {
		if next != nil {
			one.WriteStatus, one.tickets = merged(next.WriteStatus, a), append(next.tickets, one.tickets...)
		}
		w.under[a.Pod.UID] = one
		return
	}
	w.under[a.Pod.UID] = nil
	by.do(func(ctx context.Context) { w.all(ctx, one) })
}

// merged is one write that leaves what two leave.
func merged(older, newer cycle.WriteStatus) cycle.WriteStatus {
	if newer.Condition == nil {
		newer.Condition = older.Condition
	}
	if newer.Nominate == nil {
		newer.Nominate = older.Nominate
	}
	return newer
}

// all writes until there is nothing more to be written of the pod.
func (w *statuses) all(ctx context.Context, a *statusWrite) {
	for {
		err := w.write(ctx, a.WriteStatus)
		if err != nil {
			klog.FromContext(ctx).V(2).Info("Status not written", "pod", klog.KObj(a.Pod), "err", err)
		}
		for _, ticket := range a.tickets {
			w.see(cycle.Answered{Ticket: ticket, Outcome: outcome(err)})
		}
		w.mu.Lock()
		next := w.under[a.Pod.UID]
		if next == nil {
			delete(w.under, a.Pod.UID)
			w.mu.Unlock()
			return
		}
		w.under[a.Pod.UID] = nil
		w.mu.Unlock()
		a = next
	}
}

// writeStatus patches the state of the pod that was decided: a condition, its nominated node, or
// both. If the pod has changed, the newest state is patched as long as it still waits: the patch
// must never undo what a binding wrote.
func (s *Scheduler) writeStatus(ctx context.Context, a cycle.WriteStatus) error {
	pod := a.Pod
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	pods := s.client.CoreV1().Pods(pod.Namespace)
	status := map[string]any{}
	if a.Condition != nil {
		status["conditions"] = []v1.PodCondition{*a.Condition}
	}
	if a.Nominate != nil {
		status["nominatedNodeName"] = *a.Nominate
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
