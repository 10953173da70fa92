package live

import (
	"context"
	"encoding/json"
	"fmt"

	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cycle"
)

// watchGroups follows PodGroups where they are switched on. The API server must serve them: without
// them no pod of a group could run.
func (s *Scheduler) watchGroups(ctx context.Context) error {
	if !s.groups {
		return nil
	}
	version := schedulingv1beta1.SchemeGroupVersion
	var err error
	s.retryBind(ctx, func(ctx context.Context) bool {
		err = s.checkServed(ctx, version)
		return isAnswered(err)
	})

	switch {
	case ctx.Err() != nil:
		return nil
	case apierrors.IsNotFound(err):
		return fmt.Errorf("--feature-gates=GenericWorkload=true: the API server does not serve %s: start it with "+
			"--feature-gates=GenericWorkload=true --runtime-config=%s=true", version, version)
	case err != nil:
		return fmt.Errorf("ask the API server for %s: %w", version, err)
	}

	followKind(s, cycle.PodGroups, s.client.SchedulingV1beta1().PodGroups(""))
	return nil
}

// writeGroup merges the condition into the PodGroup's, whatever others wrote meanwhile.
func (s *Scheduler) writeGroup(ctx context.Context, a cycle.WriteGroup) error {
	ctx, cancel := context.WithTimeout(ctx, writtenWithin)
	defer cancel()
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": a.Group.UID}, "status": map[string]any{"conditions": []metav1.Condition{a.Condition}},
	})
	if err != nil {
		return err
	}
	_, err = s.client.SchedulingV1beta1().PodGroups(a.Group.Namespace).Patch(
		ctx, a.Group.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}
