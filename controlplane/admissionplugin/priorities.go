// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package admissionplugin

import (
	"context"
	"fmt"

	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apiserver "k8s.io/apiserver/pkg/admission"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kubernetes/pkg/apis/scheduling"
	conversion "k8s.io/kubernetes/pkg/apis/scheduling/v1"
	"k8s.io/kubernetes/pkg/features"

	"github.com/berth-k8s/berth/internal/admission"
)

// PriorityName is the name of the plugin for priority classes and pod groups.
const PriorityName = "BerthPriority"

// ReplacedByPriority returns the upstream plugins replaced by PriorityName.
func ReplacedByPriority() []string { return []string{"Priority"} }

// priorities rejects a second PriorityClass with globalDefault. It sets the priority of new pod
// groups if their feature gates are enabled; for pods, the plugin pods does so.
type priorities struct{ informed }

var (
	_ apiserver.MutationInterface   = &priorities{}
	_ apiserver.ValidationInterface = &priorities{}
)

// NewPriority returns the plugin for priority classes and pod groups. Create one per API server.
func NewPriority() apiserver.Interface {
	return &priorities{informed{Handler: apiserver.NewHandler(apiserver.Create, apiserver.Update)}}
}

// Validate implements apiserver.ValidationInterface. A write of a PriorityClass waits for a fresh
// read of the default class from the API server, because the caches may be stale.
func (p *priorities) Validate(ctx context.Context, a apiserver.Attributes, _ apiserver.ObjectInterfaces) error {
	if !isAbout(a, scheduling.Resource("priorityclasses")) {
		return nil
	}
	internal, ok := a.GetObject().(*scheduling.PriorityClass)
	if !ok {
		return apierrors.NewBadRequest(fmt.Sprintf("expected *scheduling.PriorityClass but got %T", a.GetObject()))
	}
	var class schedulingv1.PriorityClass
	if err := conversion.Convert_scheduling_PriorityClass_To_v1_PriorityClass(internal, &class, nil); err != nil {
		return apierrors.NewInternalError(err)
	}
	return admission.PriorityClass(p.caches.Fresh(ctx), &class, a.GetOperation() == apiserver.Create)
}

// Admit implements apiserver.MutationInterface. It sets the priority of a new pod group from its
// priority class. As for pods, a priority written by the client must match.
func (p *priorities) Admit(ctx context.Context, a apiserver.Attributes, _ apiserver.ObjectInterfaces) error {
	name, given, what := prioritized(a)
	// The priority of a group is immutable.
	if a.GetOperation() != apiserver.Create || a.GetSubresource() != "" || name == nil {
		return nil
	}
	if err := p.await(a); err != nil {
		return err
	}

	// Without a class, use the default class's priority, or 0.
	class, priority, err := admission.ResolvePriority(p.caches.For(ctx), *name)
	if err != nil {
		return refused(a, err)
	}
	if *given != nil && **given != priority {
		return apiserver.NewForbidden(a, fmt.Errorf(
			"priority set in the %s (%d) must match the priority computed (%d) based on the priority class set "+
				"in the spec", what, **given, priority))
	}

	*name, *given = class, &priority
	return nil
}

// prioritized returns pointers to the class name and the priority of an object, so that Admit can
// set them, and upstream's term for the object. name is nil for objects without a priority.
func prioritized(a apiserver.Attributes) (name *string, priority **int32, what string) {
	switch group := a.GetObject().(type) {
	case *scheduling.PodGroup:
		if utilfeature.DefaultFeatureGate.Enabled(features.GenericWorkload) {
			return &group.Spec.PriorityClassName, &group.Spec.Priority, "pod group"
		}
	case *scheduling.CompositePodGroup:
		if utilfeature.DefaultFeatureGate.Enabled(features.CompositePodGroup) {
			return &group.Spec.PriorityClassName, &group.Spec.Priority, "composite pod group"
		}
	}
	return nil, nil, ""
}
