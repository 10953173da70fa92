// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/journal"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// writer carries out the writes of the core's actions, except for bindings. Its only state is
// turns. Every write has the UID of its object, so that it never changes another object of the same
// name. A write that must not overwrite a newer state also has the resource version.
type writer struct {
	client   kubernetes.Interface
	observer cycle.Observer
	see      func(cycle.Event)
	strips   func() bool // reports whether the core's objects are stripped for a journal
	turns    claimTurns
	life     *lifetime
}

// writeStatus writes a condition of the pod, its nominated node, or both, conditional on the
// version that was decided. If the pod has changed, the newest version is patched, but only if the
// pod is not bound and not being deleted, because the patch must not undo the effect of a binding.
func (w *writer) writeStatus(ctx context.Context, a cycle.WriteStatus) error {
	pod := a.Pod
	ctx, cancel := context.WithTimeout(ctx, writtenWithin)
	defer cancel()
	pods := w.client.CoreV1().Pods(pod.Namespace)
	status := map[string]any{}
	if a.Condition != nil {
		status["conditions"] = []v1.PodCondition{*a.Condition}
	}
	if a.Nominate != nil {
		status["nominatedNodeName"] = *a.Nominate
	}
	version := pod.ResourceVersion
	// Without the resource version, a patch after another client bound the pod would revert the
	// nomination or the condition.
	for {
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID, "resourceVersion": version}, "status": status})
		if err != nil {
			return err
		}
		_, err = pods.Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		if !apierrors.IsConflict(err) {
			return err
		}
		newest, readErr := pods.Get(ctx, pod.Name, metav1.GetOptions{})
		switch {
		case readErr != nil || newest.UID != pod.UID || newest.Spec.NodeName != "" || newest.DeletionTimestamp != nil:
			return readErr
		case newest.ResourceVersion == version: // the conflict was reported by a webhook
			return err
		}
		version = newest.ResourceVersion
	}
}

// writeGroup merges the condition into the conditions of the PodGroup. The patch has no resource
// version, so it does not conflict with other clients.
func (w *writer) writeGroup(ctx context.Context, a cycle.WriteGroup) error {
	ctx, cancel := context.WithTimeout(ctx, writtenWithin)
	defer cancel()
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": a.Group.UID}, "status": map[string]any{"conditions": []metav1.Condition{a.Condition}},
	})
	if err != nil {
		return err
	}
	_, err = w.client.SchedulingV1beta1().PodGroups(a.Group.Namespace).Patch(
		ctx, a.Group.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// statusWrite is a pending write of a pod's status, with the tickets waiting for the outcome of its
// first attempt.
type statusWrite struct {
	cycle.WriteStatus
	tickets []cycle.Ticket
}

// newStatusWrite keeps only the fields of the pod that are needed for the write, because it may be
// queued for long, and pods are large. A ticket of 0 means that the core does not wait for the
// outcome.
func newStatusWrite(a cycle.WriteStatus) *statusWrite {
	one := &statusWrite{WriteStatus: a}
	one.Pod = &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: a.Pod.Namespace, Name: a.Pod.Name, UID: a.Pod.UID,
		ResourceVersion: a.Pod.ResourceVersion}}
	if a.Ticket != 0 {
		one.tickets = append(one.tickets, a.Ticket)
	}
	return one
}

// mergeAfter merges two writes into one with the same effect. The newer condition and nomination,
// if set, take precedence over the older ones. All tickets get the outcome of the merged write.
func (a *statusWrite) mergeAfter(older *statusWrite) *statusWrite {
	both := &statusWrite{a.WriteStatus, append(older.tickets, a.tickets...)}
	both.Condition = cmp.Or(both.Condition, older.Condition)
	both.Nominate = cmp.Or(both.Nominate, older.Nominate)
	return both
}

// writeFirst writes the status, and reports the outcome for the tickets. A retry has no tickets,
// because the core waits only for the first attempt.
func (s *Scheduler) writeFirst(ctx context.Context, a *statusWrite) error {
	err := s.writer.writeStatus(ctx, a.WriteStatus)
	s.answerTickets(a, outcomeOf(err))
	return err
}

// answerTickets reports the outcome of the write to the core for each of its tickets.
func (s *Scheduler) answerTickets(a *statusWrite, o cycle.Outcome) {
	for _, ticket := range a.tickets {
		s.loop.See(cycle.Answered{Ticket: ticket, Outcome: o})
	}
	a.tickets = nil
}

// removeVictim writes the DisruptionTarget condition to the status of a victim, and then deletes
// the victim. Without the condition, a Job's podFailurePolicy could not distinguish a preemption
// from a failure. Reason and message are the same as in upstream. A victim that was deleted, or
// replaced by another pod of the same name, counts as removed; the UID in the requests protects the
// other pod.
func (w *writer) removeVictim(ctx context.Context, a cycle.Remove) error {
	victim := a.Victim
	ctx, cancel := context.WithTimeout(ctx, 2*writtenWithin)
	defer cancel()
	pods := w.client.CoreV1().Pods(victim.Namespace)
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": victim.UID},
		"status": map[string]any{"conditions": []v1.PodCondition{{
			Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonPreemptionByScheduler,
			Message: fmt.Sprintf("%s: preempting to accommodate a higher priority pod", a.Preemptor), LastTransitionTime: metav1.Now(),
			ObservedGeneration: a.Generation,
		}}},
	})

	if err != nil {
		return err
	}
	_, err = pods.Patch(ctx, victim.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err == nil {
		err = pods.Delete(ctx, victim.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &victim.UID}})
	}
	if apierrors.IsConflict(err) { // a conflict means that another pod has the name, so the victim is deleted
		if pod, lookErr := pods.Get(ctx, victim.Name, metav1.GetOptions{}); lookErr == nil && pod.UID != victim.UID {
			return nil
		}
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// writeVolumes writes the decisions about a pod's volumes: the claimRef of each volume, and the
// selected node of each claim to be provisioned. Like upstream, it writes the volumes first, and
// stops at the first failure. Completed writes are not reverted; the next decision about the pod
// takes them into account. Each write has the resource version of the decision.
func (w *writer) writeVolumes(ctx context.Context, of *plugins.PodVolumes) error {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(len(of.Volumes)+len(of.Claims))*writtenWithin)
	defer cancel()
	volumes := w.client.CoreV1().PersistentVolumes()
	for _, volume := range of.Volumes {
		volume, err := fetchWhole(ctx, w, volumes.List, volume)
		if err == nil {
			_, err = volumes.Update(ctx, volume, metav1.UpdateOptions{})
		}
		if err != nil {
			return fmt.Errorf("bind volume %s: %w", volume.Name, err)
		}
	}

	for _, claim := range of.Claims {
		claims := w.client.CoreV1().PersistentVolumeClaims(claim.Namespace)
		claim, err := fetchWhole(ctx, w, claims.List, claim)
		if err == nil {
			_, err = claims.Update(ctx, claim, metav1.UpdateOptions{})
		}
		if err != nil {
			return fmt.Errorf("provision a volume for claim %s: %w", claim.Name, err)
		}
	}

	return nil
}

// fetchWhole returns the object to write. If objects are stripped for a journal, it reads the whole
// object and applies the decision to it. The result has the resource version of the decision, so
// the API server reports a conflict if the object has changed since. The object is read by a list,
// because the scheduler lacks the permission to get volumes, and a journal must not require further
// permissions.
func fetchWhole[O metav1.Object, L runtime.Object](ctx context.Context, w *writer,
	list func(context.Context, metav1.ListOptions) (L, error), decided O) (O, error) {
	if !w.strips() {
		return decided, nil
	}
	name := decided.GetName()
	found, err := list(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()})
	if err != nil {
		return decided, fmt.Errorf("read %s: %w", name, err)
	}

	all, err := meta.ExtractList(found)
	if err != nil {
		return decided, err
	}

	for _, o := range all {
		if current, is := o.(O); is && current.GetName() == name && current.GetUID() == decided.GetUID() {
			putDecided(current, decided)
			return current, nil
		}
	}
	return decided, fmt.Errorf("%s is gone", name)
}

// putDecided applies a decision about a volume or a claim to the current object.
func putDecided(current, decided metav1.Object) {
	current.SetResourceVersion(decided.GetResourceVersion())
	current.SetAnnotations(journal.Restored(decided.GetAnnotations(), current.GetAnnotations()))
	if volume, is := current.(*v1.PersistentVolume); is {
		volume.Spec.ClaimRef = decided.(*v1.PersistentVolume).Spec.ClaimRef
	}
}
