// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"context"
	"fmt"

	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/groups"
)

// watchGroups watches pod groups if their feature gates are enabled. It returns an error if the API
// server does not serve them, because otherwise the pods of groups would be pending forever.
func (w *watches) watchGroups(ctx context.Context) error {
	if !w.groups {
		return nil
	}
	if err := w.awaitGroups(ctx, groups.GenericWorkload, schedulingv1beta1.SchemeGroupVersion); err != nil || ctx.Err() != nil {
		return err
	}
	if w.composites {
		err := w.awaitGroups(ctx, groups.CompositePodGroups, schedulingv1alpha3.SchemeGroupVersion)
		if err != nil || ctx.Err() != nil {
			return err
		}
		followKind[schedulingv1alpha3.CompositePodGroupList](w, cycle.CompositePodGroups, w.client.SchedulingV1alpha3())
	}
	followKind[schedulingv1beta1.PodGroupList](w, cycle.PodGroups, w.client.SchedulingV1beta1())
	return nil
}

// awaitGroups returns an error if the API server does not serve the API version required by a
// feature gate. It retries until the API server responds.
func (w *watches) awaitGroups(ctx context.Context, gate string, version schema.GroupVersion) error {
	var err error
	w.life.retryUntilStopped(ctx, func(ctx context.Context) bool {
		err = w.checkServed(ctx, version)
		return isAnswered(err)
	})

	switch {
	case ctx.Err() != nil:
		return nil
	case apierrors.IsNotFound(err):
		return fmt.Errorf("--feature-gates=%s=true: the API server does not serve %s: start it with "+
			"--feature-gates=%s=true --runtime-config=%s=true", gate, version, gate, version)
	case err != nil:
		return fmt.Errorf("ask the API server for %s: %w", version, err)
	}
	return nil
}
