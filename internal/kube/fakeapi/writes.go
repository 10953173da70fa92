// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package fakeapi

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes/scheme"
)

// conflictError returns the error for a write whose precondition fails.
func conflictError(t *table, o metav1.Object, format string, args ...any) error {
	return apierrors.NewConflict(schema.GroupResource{Group: t.kind.Group, Resource: strings.ToLower(t.kind.Kind)},
		o.GetName(), fmt.Errorf(format, args...))
}

// bindPod binds a pod. Like upstream's registry, it refuses a pod that has a node, is being
// deleted, or has another UID. The binding resets nominatedNodeName. Like upstream, bindPod does
// not check whether the node exists or has free resources.
func (s *Server) bindPod(t *table, body []byte) (any, error) {
	var b v1.Binding
	if err := json.Unmarshal(body, &b); err != nil {
		return nil, err
	}

	current, ok := t.objects[types.NamespacedName{Namespace: b.Namespace, Name: b.Name}]
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, b.Name)
	}

	pod := current.(*v1.Pod)
	switch {
	case b.UID != "" && b.UID != pod.UID:
		return nil, conflictError(t, pod, "precondition failed: UID in precondition: %v, UID in object meta: %v", b.UID, pod.UID)
	case pod.DeletionTimestamp != nil:
		return nil, conflictError(t, pod, "pod %v is being deleted, cannot be assigned to a host", pod.Name)
	case pod.Spec.NodeName != "":
		return nil, conflictError(t, pod, "pod %v is already assigned to node %q", pod.Name, pod.Spec.NodeName)
	}

	pod = pod.DeepCopy()
	pod.Spec.NodeName = b.Target.Name
	pod.Status.NominatedNodeName = ""
	s.bound = append(s.bound, Bound{nameOf(pod), pod.UID, b.Target.Name})
	s.storeObject(t, pod)
	return &metav1.Status{Status: metav1.StatusSuccess}, nil
}

// decodeObject decodes an object of the table's kind.
func (s *Server) decodeObject(t *table, body []byte) (Object, error) {
	o, err := scheme.Scheme.New(t.kind)
	if err == nil {
		err = json.Unmarshal(body, o)
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return o.(Object), nil
}

// createObject stores a new object. It generates a name if only a prefix is given, and drops a UID
// sent by the client.
func (s *Server) createObject(t *table, body []byte) (any, error) {
	o, err := s.decodeObject(t, body)
	if err != nil {
		return nil, err
	}
	if o.GetName() == "" {
		o.SetName(fmt.Sprintf("%s%d", o.GetGenerateName(), s.version))
	}
	if _, ok := t.objects[nameOf(o)]; ok {
		return nil, apierrors.NewAlreadyExists(schema.GroupResource{}, o.GetName())
	}
	o.SetUID("")
	s.storeObject(t, o)
	return o, nil
}

// updateObject replaces an object, or its status. A version in the request is a precondition.
func (s *Server) updateObject(t *table, current Object, sub string, body []byte, dryRun bool) (any, error) {
	o, err := s.decodeObject(t, body)
	if err != nil {
		return nil, err
	}
	if v := o.GetResourceVersion(); v != "" && v != current.GetResourceVersion() {
		return nil, conflictError(t, o, "the object has been modified; please apply your changes to the latest version and try again")
	}
	return s.writeObject(t, current, o, sub, dryRun)
}

// writeObject stores the object, but preserves the status or, if sub is "status", everything except
// the status. A dry run returns the object without storing it.
func (s *Server) writeObject(t *table, current, o Object, sub string, dryRun bool) (any, error) {
	from, into := current, o
	if sub == "status" {
		from, into = o, current.DeepCopyObject().(Object)
	}
	if !copyStatus(from, into) && sub == "status" {
		return nil, apierrors.NewBadRequest("no status")
	}
	into.SetUID(current.GetUID())
	if s.policy != nil {
		s.policy(into)
	}
	if !dryRun {
		s.storeObject(t, into)
	}
	return into, nil
}

// copyStatus copies the status between objects of a type, and reports whether they have one.
func copyStatus(from, into Object) bool {
	status := reflect.ValueOf(from.DeepCopyObject()).Elem().FieldByName("Status")
	if status.IsValid() {
		reflect.ValueOf(into).Elem().FieldByName("Status").Set(status)
	}
	return status.IsValid()
}

// patchObject applies a patch as a strategic merge, whatever its content type. UID and version in
// the patch are preconditions.
func (s *Server) patchObject(t *table, current Object, sub string, body []byte, dryRun bool) (any, error) {
	var meta struct {
		Metadata struct {
			UID             types.UID `json:"uid"`
			ResourceVersion string    `json:"resourceVersion"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(body, &meta); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}

	if uid := meta.Metadata.UID; uid != "" && uid != current.GetUID() {
		return nil, conflictError(t, current, "precondition failed: UID in precondition: %v, UID in object meta: %v", uid, current.GetUID())
	}
	if v := meta.Metadata.ResourceVersion; v != "" && v != current.GetResourceVersion() {
		return nil, conflictError(t, current, "the object has been modified")
	}

	before, err := json.Marshal(current)
	if err != nil {
		return nil, err
	}

	example, err := scheme.Scheme.New(t.kind)
	if err != nil {
		return nil, err
	}

	after, err := strategicpatch.StrategicMergePatch(before, body, example)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}

	o, err := s.decodeObject(t, after)
	if err != nil {
		return nil, err
	}
	return s.writeObject(t, current, o, sub, dryRun)
}

// evictPod deletes a pod unless a PodDisruptionBudget allows no more disruptions. Each eviction
// decrements disruptionsAllowed.
func (s *Server) evictPod(t *table, current Object, body []byte) (any, error) {
	var eviction policyv1.Eviction
	if err := json.Unmarshal(body, &eviction); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}

	// As in the API server, the budgets that match the pod are decremented one after the other. If
	// a later budget refuses, the earlier ones stay decremented until the disruption controller
	// updates them.
	for _, o := range s.tables["poddisruptionbudgets"].sortedObjects() {
		budget := o.DeepCopyObject().(*policyv1.PodDisruptionBudget)
		selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
		if err != nil || budget.Namespace != current.GetNamespace() || !selector.Matches(labels.Set(current.GetLabels())) {
			continue
		}
		if budget.Status.DisruptionsAllowed <= 0 {
			return nil, apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
		}
		budget.Status.DisruptionsAllowed--
		s.storeObject(s.tables["poddisruptionbudgets"], budget)
	}

	// The DeleteOptions of the eviction may have a UID as a precondition.
	options, err := json.Marshal(eviction.DeleteOptions)
	if err != nil {
		return nil, err
	}
	return s.deleteObject(t, current, options)
}

// deleteObject removes an object. If it is a bound pod with a grace period, deleteObject only sets
// its deletionTimestamp; there is no kubelet, so the test must remove the pod.
func (s *Server) deleteObject(t *table, current Object, body []byte) (any, error) {
	var options metav1.DeleteOptions
	_ = json.Unmarshal(body, &options)
	if p := options.Preconditions; p != nil && p.UID != nil && *p.UID != current.GetUID() {
		return nil, conflictError(t, current, "precondition failed: UID in precondition: %v, UID in object meta: %v",
			*p.UID, current.GetUID())
	}
	if pod, ok := current.(*v1.Pod); ok && pod.Spec.NodeName != "" && pod.Spec.TerminationGracePeriodSeconds != nil &&
		*pod.Spec.TerminationGracePeriodSeconds > 0 {
		if pod.DeletionTimestamp == nil {
			pod = pod.DeepCopy()
			pod.DeletionTimestamp = new(metav1.Now())
			s.storeObject(t, pod)
		}
		return pod, nil
	}

	s.removeObject(t, current)
	return &metav1.Status{Status: metav1.StatusSuccess}, nil
}
