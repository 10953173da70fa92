// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"context"
	"encoding/json"
	"fmt"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cycle"
)

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
