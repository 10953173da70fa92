// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package admissionplugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

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

// NodeName is the name of the plugin for nodes.
const NodeName = "BerthNode"

// ReplacedByNode returns the upstream plugins replaced by NodeName.
func ReplacedByNode() []string { return []string{"TaintNodesByCondition"} }

// nodes taints new nodes not-ready, like upstream's plugin, and records the time at which evicting
// taints were added. It needs nothing but the node, so it never delays a request.
type nodes struct{ *apiserver.Handler }

var _ apiserver.MutationInterface = &nodes{}

// NewNode returns the plugin for nodes.
func NewNode() apiserver.Interface {
	return &nodes{apiserver.NewHandler(apiserver.Create, apiserver.Update)}
}

// Admit implements apiserver.MutationInterface. Heartbeats are updates as well: without a new taint
// they only cost a comparison of the taints.
func (p *nodes) Admit(_ context.Context, a apiserver.Attributes, _ apiserver.ObjectInterfaces) error {
	if !isAbout(a, core.Resource("nodes")) {
		return nil
	}
	node, ok := a.GetObject().(*core.Node)
	if !ok {
		return apierrors.NewBadRequest(fmt.Sprintf("expected *core.Node but got %T", a.GetObject()))
	}

	isNew := a.GetOperation() == apiserver.Create
	if !isNew && !slices.ContainsFunc(node.Spec.Taints, func(t core.Taint) bool { return t.TimeAdded == nil }) {
		return nil
	}

	changed, err := tainted(node)
	if err != nil {
		return err
	}

	// Compare with the stored node to find new taints.
	var old *v1.Node
	if isNew {
		admission.Node(changed)
	} else if stored, ok := a.GetOldObject().(*core.Node); ok {
		if old, err = tainted(stored); err != nil {
			return err
		}
	}

	admission.NoteTaintTimes(changed, old, time.Now())
	taints := make([]core.Taint, len(changed.Spec.Taints))
	for i := range taints {
		if err := conversion.Convert_v1_Taint_To_core_Taint(&changed.Spec.Taints[i], &taints[i], nil); err != nil {
			return apierrors.NewInternalError(err)
		}
	}

	// If there are no taints, keep the list as it was sent, nil or empty.
	if len(taints) > 0 {
		node.Spec.Taints = taints
	}
	return nil
}

// tainted returns a new node with only a copy of this node's taints.
func tainted(node *core.Node) (*v1.Node, error) {
	result := &v1.Node{}
	for i := range node.Spec.Taints {
		var taint v1.Taint
		if err := conversion.Convert_core_Taint_To_v1_Taint(&node.Spec.Taints[i], &taint, nil); err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		result.Spec.Taints = append(result.Spec.Taints, taint)
	}
	return result, nil
}
