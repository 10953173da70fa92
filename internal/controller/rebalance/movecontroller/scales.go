// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package movecontroller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/internal/response"
)

// scalesOf returns the kinds with a scale subresource. Unresponsive API groups count as having
// none. Discovery runs only once: this process ignores CustomResourceDefinitions installed later.
func scalesOf(client discovery.DiscoveryInterface) (map[schema.GroupKind]bool, error) {
	_, lists, err := client.ServerGroupsAndResources()
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) {
		return nil, err
	}

	kinds := map[schema.GroupKind]bool{}
	for _, list := range lists {
		group, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			continue
		}
		for i := range list.APIResources {
			if kind := list.APIResources[i].Kind; resourceWithScale(list, kind) != "" {
				kinds[group.WithKind(kind).GroupKind()] = true
			}
		}
	}

	return kinds, nil
}

// resourceWithScale returns the resource of a kind if it has a scale subresource, or "". Discovery
// lists subresources as separate entries named RESOURCE/SUBRESOURCE.
func resourceWithScale(list *metav1.APIResourceList, kind string) string {
	for i := range list.APIResources {
		resource := &list.APIResources[i]
		if resource.Kind != kind || strings.Contains(resource.Name, "/") {
			continue
		}
		for k := range list.APIResources {
			if list.APIResources[k].Name == resource.Name+"/scale" {
				return resource.Name
			}
		}
	}
	return ""
}

// scaleWorkload changes a workload's scale and its label in one request.
//
// The label records progress: a request is repeated after a lost response, and must not scale
// twice.
//
//	set:   no label, From replicas             scale, and set the label
//	       label After                         nothing to do
//	       anything else                       Conflict
//	unset: label Before, From replicas         scale back, and remove the label
//	       label Before, other replicas        remove the label: another client has scaled
//	       another label, or none              nothing to do
func (r *requests) scaleWorkload(ctx context.Context, a execute.Scale) error {
	scaled := a.Target
	changes := func(object metav1.Object, replicas *int32) (map[string]any, error) {
		switch label, wants := object.GetLabels()[rebalance.SurgeLabel], ptr.Deref(replicas, 1); {
		case object.GetUID() != scaled.UID:
			return nil, apierrors.NewNotFound(appsv1.Resource(scaled.Kind), scaled.Name)
		case label == a.After, a.After == "" && label != a.Before:
			return nil, nil // done by an earlier request, or the label belongs to another surge
		case a.After != "" && (label != "" || wants != a.From):
			return nil, apierrors.NewConflict(appsv1.Resource(scaled.Kind), scaled.Name, errors.New("it was scaled meanwhile"))
		case a.After != "":
			return scaleTo(a.To, a.After), nil
		case wants != a.From:
			return map[string]any{"metadata": surgeLabel(nil)}, nil
		}
		return scaleTo(a.To, nil), nil
	}
	if scaled.Kind == "ReplicaSet" && scaled.Through != nil {
		return r.scaleThrough(ctx, a)
	}
	if a.After == "" {
		return r.changeScale(ctx, scaled, metav1.PatchOptions{}, changes)
	}

	// A workload scaled without its label would never be scaled back. Therefore a dry run first
	// checks that admission keeps the label. If the label is dropped nevertheless, the scale is
	// reverted.
	err := r.changeScale(ctx, scaled, metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}, changes)
	if dropped := (notStoredError{}); errors.As(err, &dropped) && !dropped.dry {
		return errors.Join(err, r.changeScale(ctx, scaled, metav1.PatchOptions{}, func(_ metav1.Object, replicas *int32) (map[string]any, error) {
			if ptr.Deref(replicas, 1) != a.To {
				return nil, nil
			}
			return map[string]any{"spec": map[string]any{"replicas": a.From}}, nil
		}))
	}
	return err
}

// changeScale changes a Deployment or ReplicaSet through changeObject.
func (r *requests) changeScale(ctx context.Context, scaled rebalance.Scaled, options metav1.PatchOptions,
	change func(metav1.Object, *int32) (map[string]any, error)) error {
	if scaled.Kind == "ReplicaSet" {
		sets := r.client.AppsV1().ReplicaSets(scaled.Namespace)
		return changeObject(ctx, scaled.Name, options, sets.Get, sets.Patch,
			func(o *appsv1.ReplicaSet) (map[string]any, error) { return change(o, o.Spec.Replicas) })
	}
	deployments := r.client.AppsV1().Deployments(scaled.Namespace)
	return changeObject(ctx, scaled.Name, options, deployments.Get, deployments.Patch,
		func(o *appsv1.Deployment) (map[string]any, error) { return change(o, o.Spec.Replicas) })
}

// scaleTo returns a patch of a scale and the label of a surge; a nil label removes the label.
func scaleTo(replicas int32, label any) map[string]any {
	return map[string]any{"metadata": surgeLabel(label), "spec": map[string]any{"replicas": replicas}}
}

// surgeLabel returns the metadata of a patch that sets the label of a surge, or removes it if nil.
func surgeLabel(value any) map[string]any {
	return map[string]any{"labels": map[string]any{rebalance.SurgeLabel: value}}
}

// markPod sets or restores a pod's deletion cost. A different pod of the same name results in
// NotFound.
func (r *requests) markPod(ctx context.Context, a execute.Mark) error {
	pods := r.client.CoreV1().Pods(a.Namespace)
	return changeObject(ctx, a.Name, metav1.PatchOptions{}, pods.Get, pods.Patch, func(p *v1.Pod) (map[string]any, error) {
		if p.UID != a.UID {
			return nil, apierrors.NewNotFound(v1.Resource("pods"), a.Name)
		}
		annotations := execute.MarkOf(p, a)
		if annotations == nil {
			return nil, nil
		}
		return map[string]any{"metadata": map[string]any{"annotations": annotations}}, nil
	})
}

// scaleThrough scales a ReplicaSet through the scale subresource of its controller. The ReplicaSet
// gets the label first and loses it last, so the label warns that the scale may be one too high.
//
// The ReplicaSet and its controller are different objects, which need separate requests:
//
//	up      set the label of the ReplicaSet, then scale
//	down    scale, then remove the label
//
// A process that dies in between leaves a label without a higher scale, never a higher scale
// without a label.
func (r *requests) scaleThrough(ctx context.Context, a execute.Scale) error {
	scale, err := r.readScale(ctx, a.Target)
	switch {
	case apierrors.IsNotFound(err) && a.After == "", err == nil && scale.UID != a.Target.Through.UID && a.After == "":
		return r.noteOn(ctx, a) // the controller was deleted, together with its scale
	case err != nil:
		return err
	// Another object has the controller's name, and is not the controller of this ReplicaSet.
	case scale.UID != a.Target.Through.UID:
		return apierrors.NewNotFound(appsv1.Resource(a.Target.Kind), a.Target.Name)
	case a.After == "":
		if err := r.putBack(ctx, scale, a); err != nil {
			return err
		}
		return r.noteOn(ctx, a)
	}

	if err := r.noteOn(ctx, a); err != nil {
		return err
	}
	switch scale.Spec.Replicas {
	case a.To: // scaled by an earlier request
	case a.From:
		err = r.setScale(ctx, a.Target, scale, a.To)
	default:
		err = apierrors.NewConflict(appsv1.Resource(a.Target.Kind), a.Target.Name, errors.New("it was scaled meanwhile"))
	}
	// After Failed it is unknown whether it was scaled; the label must stay until that is known.
	if result := outcomeOf(err); result == response.OK || result == response.Failed {
		return err
	}

	a.Before, a.After = a.After, "" // it was certainly not scaled
	return errors.Join(err, r.noteOn(ctx, a))
}

// putBack restores the controller's original scale, unless another client has changed it or the
// surge belongs to another process. The ReplicaSet's label identifies the surge. If the ReplicaSet
// has been deleted, only the scale decides.
func (r *requests) putBack(ctx context.Context, scale *autoscalingv1.Scale, a execute.Scale) error {
	set, err := r.client.AppsV1().ReplicaSets(a.Target.Namespace).Get(ctx, a.Target.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return err
	case set.Labels[rebalance.SurgeLabel] != a.Before:
		return nil
	}
	if scale.Spec.Replicas != a.From {
		return nil
	}
	return r.setScale(ctx, a.Target, scale, a.To)
}

// noteOn sets or removes the label of a ReplicaSet. It leaves a label that already has the wanted
// value or belongs to another surge.
func (r *requests) noteOn(ctx context.Context, a execute.Scale) error {
	sets := r.client.AppsV1().ReplicaSets(a.Target.Namespace)
	return changeObject(ctx, a.Target.Name, metav1.PatchOptions{}, sets.Get, sets.Patch, func(set *appsv1.ReplicaSet) (map[string]any, error) {
		switch label := set.Labels[rebalance.SurgeLabel]; {
		case set.UID != a.Target.UID:
			return nil, apierrors.NewNotFound(appsv1.Resource(a.Target.Kind), a.Target.Name)
		case label == a.After, a.After == "" && label != a.Before:
			return nil, nil
		case a.After == "":
			return map[string]any{"metadata": surgeLabel(nil)}, nil
		case label != "" || set.Spec.Replicas == nil || *set.Spec.Replicas != a.From:
			return nil, apierrors.NewConflict(appsv1.Resource(a.Target.Kind), a.Target.Name, errors.New("it was scaled meanwhile"))
		}
		return map[string]any{"metadata": surgeLabel(a.After)}, nil
	})
}

// scaleOf returns a request for the scale of a ReplicaSet's controller. It discovers the resource
// each time, because the resource cannot be derived from the kind, and generated clients do not
// cover every kind's scale.
//
// The names originate from an owner reference, which a tenant can write: scaleOf rejects names
// other than a single path segment, so that the request stays in the ReplicaSet's namespace.
func (r *requests) scaleOf(scaled rebalance.Scaled, verb string) (*rest.Request, error) {
	version, err := schema.ParseGroupVersion(scaled.Through.APIVersion)
	if err != nil || len(content.IsPathSegmentName(version.Group))+len(content.IsPathSegmentName(version.Version)) > 0 {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("%q is not an API version", scaled.Through.APIVersion))
	}
	list, err := r.client.Discovery().ServerResourcesForGroupVersion(version.String())
	if err != nil {
		return nil, err
	}
	resource := resourceWithScale(list, scaled.Through.Kind)
	if resource == "" {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("%s has no scale subresource", scaled.Through.Kind))
	}
	if wrong := content.IsPathSegmentName(scaled.Through.Name); len(wrong) > 0 {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("%q is not a name of a %s: %s", scaled.Through.Name, scaled.Through.Kind, wrong[0]))
	}
	return r.client.Discovery().RESTClient().Verb(verb).AbsPath("/apis", version.Group, version.Version).Namespace(scaled.Namespace).
		Resource(resource).Name(scaled.Through.Name).SubResource("scale").SetHeader("Accept", "application/json"), nil
}

// readScale reads the scale of a ReplicaSet's controller.
func (r *requests) readScale(ctx context.Context, scaled rebalance.Scaled) (*autoscalingv1.Scale, error) {
	request, err := r.scaleOf(scaled, http.MethodGet)
	if err != nil {
		return nil, err
	}
	text, err := request.DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	scale := &autoscalingv1.Scale{}
	return scale, json.Unmarshal(text, scale)
}

// setScale writes a scale conditionally on the version that was read. A Conflict means that the
// scale was changed in between.
func (r *requests) setScale(ctx context.Context, scaled rebalance.Scaled, scale *autoscalingv1.Scale, replicas int32) error {
	scale.Spec.Replicas = replicas
	text, err := json.Marshal(scale)
	if err != nil {
		return err
	}
	request, err := r.scaleOf(scaled, http.MethodPut)
	if err != nil {
		return err
	}
	return request.SetHeader("Content-Type", "application/json").Body(text).Do(ctx).Error()
}
