// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/world"
	"github.com/berth-k8s/berth/internal/world/workload"
)

// Simulation of kubectl apply. The order of the steps in applySet matters: the manifests are first
// compared with existing objects, then expanded to pods, and only then shown to the core, so that
// existing workloads keep their pods and only new workloads get new pods.

// applyFiles reads manifests and applies them like kubectl apply -f. It requires a world with Read
// set in its options.
func (o *operations) applyFiles(files Files) (*Done, error) {
	if o.options.Read == nil {
		return nil, fmt.Errorf("%s: no files can be read here", strings.Join(files, ", "))
	}
	set, err := o.options.Read(files, o.workloads.set)
	if err != nil {
		return nil, err
	}
	if err := set.Check(o.refuseFields); err != nil {
		return nil, err
	}
	return o.applySet(set)
}

// refuseFields returns the API server's error about the object's fields that no scheduler reads, or
// nil. Only objects from files are checked: other objects have been stored by an API server.
func (o *operations) refuseFields(object metav1.Object) error {
	kind, name := manifest.KindOf(object), object.GetName()
	if was, isUpdate := o.scheduler.api.Same(object); isUpdate {
		merged, _, err := manifest.Merge(was, object)
		if err != nil {
			return err
		}
		object = merged
	}
	if errs := rules.ValidateApplied(object); len(errs) > 0 {
		return apierrors.NewInvalid(kind.GroupKind(), name, errs)
	}
	return nil
}

// applySet applies manifests like kubectl apply: it creates new objects, and scales existing
// workloads or, if their template changed, rolls them out immediately. It expands the set, and the
// world takes over its workloads. The result notes changes kubectl would not make.
func (o *operations) applySet(set *manifest.Set) (*Done, error) {
	if err := set.Check(func(object metav1.Object) error { return o.refuseObject(object, set) }); err != nil {
		return nil, err
	}
	done := &Done{}
	set.JobGroups = o.gangs
	// This must precede the expansion, which creates pods from the workloads' final templates and
	// replica counts.
	there := o.workloads.takeOver(set)
	set.Expand(int64(o.options.Seed))
	o.pods.catalog = mergeSets(o.workloads.set, set)
	// Claims, templates and budgets must exist before the pods that need them are created below.
	o.loadApplied(set)
	o.claims.identifyClaims()
	o.budgets.countBudgets()
	// Drop the refusals of earlier operations.
	o.pods.refusals = nil
	for _, n := range set.Nodes {
		if o.nodes.applyNode(n) {
			done.Notes = append(done.Notes,
				fmt.Sprintf("node %s is there already: kubectl apply does not change its status, such as its capacity", n.Name))
		}
	}
	for _, object := range workloadsOf(set) {
		// An existing workload is updated and reuses its pods. Jobs are immutable, so an existing
		// Job is only marked as known and its expanded pods are not created.
		if was := there[object]; was != nil {
			o.controllers.updateWorkload(was, workload.Of(object), set)
		} else if job, ok := object.(*batchv1.Job); ok && o.workloads.table().Named(rules.Job, job.Namespace, job.Name) != nil {
			there[object] = workload.Of(object)
			done.Notes = append(done.Notes, fmt.Sprintf("job %s/%s is there already and is left as it is", job.Namespace, job.Name))
		} else {
			o.workloads.keepWorkload(object)
			if d, ok := object.(*appsv1.Deployment); ok {
				o.workloads.replaceReplicaSets(d, set)
			}
		}
	}
	known := map[types.UID]bool{} // owners whose expanded pods are not created
	for object := range there {
		known[object.GetUID()] = true
	}
	// Expansion creates a ReplicaSet for each Deployment. For an existing Deployment,
	// updateWorkload has already handled the pods, so the pods expanded from the manifest must not
	// be added.
	for _, r := range set.ReplicaSets {
		if owner := metav1.GetControllerOfNoCopy(r); owner != nil && known[owner.UID] {
			known[r.UID] = true
		}
	}
	// Expansion considers only the nodes in the manifests, but DaemonSets cover all nodes of the
	// world.
	for _, d := range set.DaemonSets {
		if known[d.UID] = true; there[d] == nil {
			o.controllers.makeDaemons(d) // for all nodes of the world
		}
	}
	if o.allowed.mustStop() {
		return nil, o.allowed.ended
	}
	var refused manifest.Errors
	for i, p := range set.Pods {
		if ref := metav1.GetControllerOfNoCopy(p); ref != nil && known[ref.UID] {
			continue
		}
		// Expansion may create hundreds of thousands of pods, so check the limits in the loop.
		if o.allowed.mustStop() {
			return nil, o.allowed.ended
		}
		there := o.pods.named[Name{p.Namespace, p.Name}]
		if there == nil {
			if why := o.createPod(p.DeepCopy()); why != "" && metav1.GetControllerOfNoCopy(p) == nil {
				file, line := set.PodAt(i)
				refused = append(refused, &manifest.Error{File: file, Line: line, Text: why})
			}
		} else if merged, _, err := o.mergeObject(there.object, p); err != nil {
			return nil, err
		} else if !o.pods.updatePod(there, merged.(*v1.Pod)) {
			done.Notes = append(done.Notes, fmt.Sprintf("pod %s/%s is there already and is left as it is", p.Namespace, p.Name))
		}
	}
	if len(refused) > 0 {
		return nil, refused
	}
	done.Notes = append(done.Notes, o.pods.refusals...)
	return done, nil
}

// createPod creates a pod and returns the reason the API server refuses it, or "".
func (o *operations) createPod(p *v1.Pod) string {
	if made := o.pods.createPod(p, false); made != nil {
		return made.refused
	}
	return o.pods.refusals[len(o.pods.refusals)-1]
}

// refuseObject returns the API server's error about an object of the set, or nil if it would be
// stored.
func (o *operations) refuseObject(object metav1.Object, set *manifest.Set) error {
	kind, name := manifest.KindOf(object), object.GetName()
	resource, _ := meta.UnsafeGuessKindToResource(kind)
	was, isUpdate := o.scheduler.api.Same(object)
	if class, ok := object.(*schedulingv1.PriorityClass); ok {
		if err := admission.PriorityClass(o.pods.catalog, class, !isUpdate); err != nil {
			return err
		}
	}
	if !isUpdate {
		return o.refuseNamespace(object.GetNamespace(), resource.GroupResource(), name, set)
	}

	merged, before, err := o.mergeObject(was, object)
	if err != nil {
		return err
	}
	if errs := rules.ValidateUpdate(merged, before); len(errs) > 0 {
		for _, e := range errs {
			if len(e.ErrorBody()) > 300 {
				e.BadValue = field.OmitValueType{} // omit the value, a whole template
			}
		}
		return apierrors.NewInvalid(kind.GroupKind(), name, errs)
	}
	if claim, ok := merged.(*v1.PersistentVolumeClaim); ok && !o.canResize(claim, was.(*v1.PersistentVolumeClaim)) {
		return apierrors.NewForbidden(resource.GroupResource(), name, errors.New("only dynamically provisioned pvc can be resized and "+
			"the storageclass that provisions the pvc must support resize"))
	}
	return nil
}

// mergeObject returns the result of kubectl apply for an existing object, and the existing object
// with defaults.
func (o *operations) mergeObject(was, applied metav1.Object) (merged, before metav1.Object, err error) {
	merged, before, err = manifest.Merge(was, applied)
	if p, ok := merged.(*v1.Pod); ok && err == nil {
		err := admission.Change(o.pods.admission, o.pods.catalog, p, was.(*v1.Pod))
		if err == nil {
			err = admission.Judge(o.pods.admission, o.pods.catalog, p, was.(*v1.Pod))
		}
		if err != nil {
			return nil, nil, admission.StatusError(p, err)
		}
	}
	return merged, before, err
}

// refuseNamespace returns the error of creating an object in a namespace that is missing or being
// deleted. Missing namespaces are refused only in a whole cluster, because other sets need not list
// their namespaces.
func (o *operations) refuseNamespace(namespace string, resource schema.GroupResource, name string, set *manifest.Set) error {
	is, there := world.Get[*v1.Namespace](o.scheduler.api, "", namespace)
	switch {
	case there && is.DeletionTimestamp != nil:
		return apierrors.NewForbidden(resource, name, fmt.Errorf("unable to create new content in namespace %s because it is being terminated", namespace))
	case namespace == "", namespace == v1.NamespaceDefault, there, !o.workloads.set.Whole, len(o.workloads.set.Namespaces) == 0,
		slices.ContainsFunc(set.Namespaces, func(n *v1.Namespace) bool { return n.Name == namespace }):
		return nil
	}
	return apierrors.NewNotFound(v1.Resource("namespaces"), namespace)
}

// canResize reports whether the claim's storage request does not grow, or its class supports
// expansion. Unless the set is a whole cluster, a missing class is assumed to support expansion.
func (o *operations) canResize(claim, was *v1.PersistentVolumeClaim) bool {
	size := claim.Spec.Resources.Requests[v1.ResourceStorage]
	if size.Cmp(was.Spec.Resources.Requests[v1.ResourceStorage]) <= 0 {
		return true
	}
	class, there := world.Get[*storagev1.StorageClass](o.scheduler.api, "", ptr.Deref(claim.Spec.StorageClassName, ""))
	return there && ptr.Deref(class.AllowVolumeExpansion, false) || !there && !o.workloads.set.Whole
}

// mergeSets adds the namespaces, the classes and the objects for plans of the newer set b to a and
// returns a catalog of both. It modifies a. Of two objects with the same name, the list keeps both,
// the newer one last.
func mergeSets(a, b *manifest.Set) *admission.Catalog {
	a.Namespaces = append(a.Namespaces, b.Namespaces...)
	a.PriorityClasses = append(a.PriorityClasses, b.PriorityClasses...)
	a.RuntimeClasses = append(a.RuntimeClasses, b.RuntimeClasses...)
	a.ForPlans = append(a.ForPlans, b.ForPlans...)
	return admission.NewCatalog(a.Namespaces, a.PriorityClasses, a.RuntimeClasses)
}
