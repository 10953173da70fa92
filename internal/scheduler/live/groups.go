package live

import (
	"context"
	"fmt"

	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/berth-k8s/berth/internal/engine/cycle"
)

// watchGroups follows PodGroups where they are switched on. The API server must serve them: without
// them no pod of a group could run.
func (w *watches) watchGroups(ctx context.Context) error {
	if !w.groups {
		return nil
	}
	version := schedulingv1beta1.SchemeGroupVersion
	var err error
	w.life.retryUntilStopped(ctx, func(ctx context.Context) bool {
		err = w.checkServed(ctx, version)
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

	followKind(w, cycle.PodGroups, w.client.SchedulingV1beta1().PodGroups(""))
	return nil
}
