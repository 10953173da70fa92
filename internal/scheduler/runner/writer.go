// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"context"
	"encoding/json"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-k8s/berth/internal/engine/cycle"
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
