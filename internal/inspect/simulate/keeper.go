package simulate

import (
	"cmp"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Who makes a pod, as other packages see it: its controller and, above a ReplicaSet, the
// Deployment. An owner is known by its reference even if its object was not read.

// Owner is an object that makes pods, or has others make them.
type Owner struct {
	Kind, Name string
	// Object is nil if it was not read, or is of a kind that is not.
	Object metav1.Object
	// Template is that of its pods; nil if Object is.
	Template *v1.PodTemplateSpec
}

// Ref names the owner as Kind/name.
func (o *Owner) Ref() string { return o.Kind + "/" + o.Name }

// Workload names the owner as kubectl does: deployment/web.
func (o *Owner) Workload() string { return strings.ToLower(o.Kind) + "/" + o.Name }

// ControllerOf returns the controller that made the pod; nil if it has none. Its Object may
// be nil.
func (w *World) ControllerOf(p *v1.Pod) *Owner {
	return w.workloads.ownerBy(p.Namespace, metav1.GetControllerOfNoCopy(p))
}

// OwnerOf returns what people know the pod by: its controller or, of a ReplicaSet, what made that.
// It returns nil if the pod has no controller.
func (w *World) OwnerOf(p *v1.Pod) *Owner {
	owner := w.ControllerOf(p)
	if owner == nil || owner.Kind != "ReplicaSet" {
		return owner
	}
	if owner.Object != nil {
		return cmp.Or(w.ControlledBy(p.Namespace, owner), owner)
	}
	// The ReplicaSet was not read. Its name is that of the Deployment and the hash that the
	// pod has as a label, so the Deployment can be known all the same.
	hash := p.Labels[appsv1.DefaultDeploymentUniqueLabelKey]
	if name, ok := strings.CutSuffix(owner.Name, "-"+hash); ok && hash != "" { // as the Deployment controller names it
		owner = &Owner{Kind: "Deployment", Name: name}
		if l := w.workloads.table().Named(rules.Deployment, p.Namespace, name); l != nil {
			owner.Object, owner.Template = l.Object, l.Template
		}
	}
	return owner
}

// ControlledBy returns the controller of an owner: it keeps the template in turn. It is nil if
// there is none.
func (w *World) ControlledBy(namespace string, o *Owner) *Owner {
	if o.Object == nil {
		return nil
	}
	return w.workloads.ownerBy(namespace, metav1.GetControllerOfNoCopy(o.Object))
}

// ownerBy returns the owner that a reference in the namespace names; nil without a reference.
func (w *workloads) ownerBy(namespace string, ref *metav1.OwnerReference) *Owner {
	if ref == nil {
		return nil
	}
	owner := &Owner{Kind: ref.Kind, Name: ref.Name}
	if l := w.table().By(rules.OwnerBy(namespace, ref)); l != nil {
		owner.Object, owner.Template = l.Object, l.Template
	}
	return owner
}
