// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package admissionplugin

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apiserver "k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/pkg/apis/core"
	conversion "k8s.io/kubernetes/pkg/apis/core/v1"

	"github.com/berth-k8s/berth/internal/admission"
)

// PodName is the name of the plugin for pods.
const PodName = "BerthPod"

// ReplacedByPod returns the upstream plugins replaced by PodName.
func ReplacedByPod() []string {
	return []string{"Priority", "DefaultTolerationSeconds", "PodTolerationRestriction", "ExtendedResourceToleration", "RuntimeClass"}
}

// pods mutates and validates pods. Like upstream's plugins, it handles the creation and update of
// pods, but no subresources: status, binding, resize and the like do not change fields read or
// written by the rules.
type pods struct {
	informed
	config admission.Config
}

var (
	_ apiserver.MutationInterface   = &pods{}
	_ apiserver.ValidationInterface = &pods{}
)

// NewPod returns the plugin for pods. config selects the defaults to set and the tolerations to
// add.
func NewPod(config admission.Config) apiserver.Interface {
	return &pods{informed: informed{Handler: apiserver.NewHandler(apiserver.Create, apiserver.Update)}, config: config}
}

// Admit implements apiserver.MutationInterface. It may be called twice per request, if a webhook
// changes the pod in between.
func (p *pods) Admit(ctx context.Context, a apiserver.Attributes, _ apiserver.ObjectInterfaces) error {
	if !isAbout(a, core.Resource("pods")) {
		return nil
	}
	pod, old, err := p.read(a)
	if err != nil {
		return err
	}
	if err := admission.Change(p.config, p.caches.For(ctx), pod, old); err != nil {
		return refused(a, err)
	}
	return write(a.GetObject().(*core.Pod), pod)
}

// Validate implements apiserver.ValidationInterface. It sees the pod after the webhooks.
func (p *pods) Validate(ctx context.Context, a apiserver.Attributes, _ apiserver.ObjectInterfaces) error {
	if !isAbout(a, core.Resource("pods")) {
		return nil
	}
	pod, old, err := p.read(a)
	if err != nil {
		return err
	}
	if err := admission.Judge(p.config, p.caches.For(ctx), pod, old); err != nil {
		return refused(a, err)
	}
	return nil
}

// read returns copies of the pod, as seen by the rules, and of the stored pod, if any.
func (p *pods) read(a apiserver.Attributes) (pod, old *v1.Pod, err error) {
	if err := p.await(a); err != nil {
		return nil, nil, err
	}
	if pod, err = external(a.GetObject()); err != nil {
		return nil, nil, err
	}
	// A new pod's namespace may be missing from the object; use the namespace from the request's
	// path.
	pod.Namespace = a.GetNamespace()
	// Some rules apply only to changes made by an update.
	if a.GetOperation() == apiserver.Update {
		old, err = external(a.GetOldObject())
	}
	return pod, old, err
}

// external returns a copy of a pod converted to the versioned API used by the rules.
func external(object any) (*v1.Pod, error) {
	pod, ok := object.(*core.Pod)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("expected *core.Pod but got %T", object))
	}
	var result v1.Pod
	if err := conversion.Convert_core_Pod_To_v1_Pod(pod, &result, nil); err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return &result, nil
}

// write copies back only the fields that the rules may have changed. Converting the whole pod back
// could change other fields.
func write(pod *core.Pod, changed *v1.Pod) error {
	var only v1.PodSpec
	admission.CopyChanges(&only, &changed.Spec)
	var from core.PodSpec
	if err := conversion.Convert_v1_PodSpec_To_core_PodSpec(&only, &from, nil); err != nil {
		return apierrors.NewInternalError(err)
	}
	to := &pod.Spec
	to.PriorityClassName, to.Priority, to.PreemptionPolicy = from.PriorityClassName, from.Priority, from.PreemptionPolicy
	to.Tolerations, to.Affinity, to.NodeSelector, to.Overhead = from.Tolerations, from.Affinity, from.NodeSelector, from.Overhead
	return nil
}

// refused converts an error for clients. A refusal becomes Forbidden, phrased as by the API
// server's other plugins. Any other error becomes an internal error, after which the client may
// retry.
func refused(a apiserver.Attributes, err error) error {
	var refusal *admission.Refusal
	if errors.As(err, &refusal) {
		return apiserver.NewForbidden(a, refusal)
	}
	return apierrors.NewInternalError(err)
}
