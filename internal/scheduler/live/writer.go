package live

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

// writer makes the writes of the core's actions, bindings excepted. It keeps nothing of what it
// writes but turns. Every write names the UID of its object, so that no other object that has the
// name by now is changed; what must not overwrite a newer state names the version as well.
type writer struct {
	client   kubernetes.Interface
	observer cycle.Observer
	see      func(cycle.Event)
	strips   func() bool // objects that the core has decided about lack what a journal leaves out
	turns    claimTurns
	life     *lifetime
}

// writeStatus patches the state of the pod that was decided: a condition, its nominated node, or
// both. If the pod has changed, the newest state is patched as long as it still waits: the patch
// must never undo what a binding wrote.
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
	// The version is in the patch: a status written for a pod that has been bound meanwhile would
	// take its nomination or condition back.
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
		case newest.ResourceVersion == version: // a webhook says conflict
			return err
		}
		version = newest.ResourceVersion
	}
}

// writeGroup merges the condition into the PodGroup's, whatever others wrote meanwhile.
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
