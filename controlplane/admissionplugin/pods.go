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

// PodName is the name of the plugin for pods, ReplacedByPod what it stands for.
const PodName = "BerthPod"

// ReplacedByPod are upstream's plugins that do what PodName does.
func ReplacedByPod() []string {
	return []string{"Priority", "DefaultTolerationSeconds", "PodTolerationRestriction", "ExtendedResourceToleration", "RuntimeClass"}
}

// pods changes new pods and refuses some. As upstream's plugins it looks at
// pods themselves, created or updated, and at no subresource: status, binding,
// resize and the like change nothing that the rules read or write.
type pods struct {
	informed
	config admission.Config
}

var (
	_ apiserver.MutationInterface   = &pods{}
	_ apiserver.ValidationInterface = &pods{}
)

// NewPod returns the plugin for pods. config says which defaults are set and which tolerations are
// added.
func NewPod(config admission.Config) apiserver.Interface {
	return &pods{informed: informed{Handler: apiserver.NewHandler(apiserver.Create, apiserver.Update)}, config: config}
}

// Admit implements apiserver.MutationInterface. It may be called twice for one request, if a
// webhook changes the pod afterwards.
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

// Validate implements apiserver.ValidationInterface. It sees the pod as webhooks have left it.
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

// read is the pod as the rules see it, and the one that is stored if there is. Both are copies.
func (p *pods) read(a apiserver.Attributes) (pod, old *v1.Pod, err error) {
	if err := p.await(a); err != nil {
		return nil, nil, err
	}
	if pod, err = external(a.GetObject()); err != nil {
		return nil, nil, err
	}
	// The object of a new pod may be without: the request's path has it.
	pod.Namespace = a.GetNamespace()
	// Some rules are about what an update adds.
	if a.GetOperation() == apiserver.Update {
		old, err = external(a.GetOldObject())
	}
	return pod, old, err
}

// external converts a pod to the API's version, in which the rules are written. It is a copy.
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

// write carries back what the rules may have changed, and nothing else. Converting the whole pod
// back could change fields that no rule has touched.
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

// refused is the error as clients see it: a refusal is Forbidden, in the words of every plugin of
// the API server. Any other error is an internal one: the request may be repeated.
func refused(a apiserver.Attributes, err error) error {
	var refusal *admission.Refusal
	if errors.As(err, &refusal) {
		return apiserver.NewForbidden(a, refusal)
	}
	return apierrors.NewInternalError(err)
}
