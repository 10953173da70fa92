// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/admission/lookup"
	"github.com/berth-k8s/berth/internal/quantity"
)

// reviewer computes the responses to reviews: it passes the objects sent by the API server to the
// rules, and returns their changes as a patch. An error means no response: the API server then
// applies the failure policy. A reviewer keeps no state between two reviews.
type reviewer struct {
	rules  admission.Config // with AfterAPIServer
	caches *lookup.Caches
	now    func() time.Time // the webhook's clock
}

// mutateObject applies the rules that change an object. It allows unknown resources without
// changes, because administrators may also write configurations.
func (r *reviewer) mutateObject(ctx context.Context, request *admissionv1.AdmissionRequest) (*admissionv1.AdmissionResponse, error) {
	switch resourceOf(request) {
	case "pods":
		pod, old, err := podsOf(request)
		if err != nil {
			return nil, err
		}
		// Encode the fields before applying the rules, which change the pod in place.
		before, err := podFields(pod)
		if err != nil {
			return nil, err
		}
		if err := admission.Change(r.rules, r.caches.For(ctx), pod, old); err != nil {
			return refusalResponse(pod, err)
		}
		after, err := podFields(pod)
		if err != nil {
			return nil, err
		}
		return patchResponse(before, after)
	case "nodes":
		return r.mutateNode(request)
	}

	return allowResponse(), nil
}

// mutateNode taints a new node as not ready, and records the time of evicting taints.
func (r *reviewer) mutateNode(request *admissionv1.AdmissionRequest) (*admissionv1.AdmissionResponse, error) {
	var node corev1.Node
	var old *corev1.Node
	if err := quantity.Unmarshal(request.Object.Raw, &node); err != nil {
		return nil, fmt.Errorf("read node: %w", err)
	}

	before, err := nodeFields(&node)
	if err != nil {
		return nil, err
	}

	if request.Operation == admissionv1.Create {
		admission.Node(&node)
	} else {
		old = &corev1.Node{}
		if err := quantity.Unmarshal(request.OldObject.Raw, old); err != nil {
			return nil, fmt.Errorf("read stored node: %w", err)
		}
	}

	admission.NoteTaintTimes(&node, old, r.now())
	after, err := nodeFields(&node)
	if err != nil {
		return nil, err
	}
	return patchResponse(before, after)
}

// validateObject applies the rules that only refuse. It changes nothing, because a validating
// webhook cannot.
func (r *reviewer) validateObject(ctx context.Context, request *admissionv1.AdmissionRequest) (*admissionv1.AdmissionResponse, error) {
	switch resourceOf(request) {
	case "pods":
		pod, old, err := podsOf(request)
		if err != nil {
			return nil, err
		}
		err = admission.Judge(r.rules, r.caches.For(ctx), pod, old)
		var refused *admission.Refusal
		switch {
		case err == nil:
		case errors.As(err, &refused) || errors.Is(err, lookup.ErrCold):
			return refusalResponse(pod, err)
		// Without a response, the failure policy Ignore would store the pod unchecked.
		default:
			return denyResponse(apierrors.NewServiceUnavailable("the rules for the pod cannot be looked up: " + err.Error()).Status()), nil
		}
	case "priorityclasses":
		var class schedulingv1.PriorityClass
		if err := quantity.Unmarshal(request.Object.Raw, &class); err != nil {
			return nil, fmt.Errorf("read priority class: %w", err)
		}
		// The cache may lack a default created a moment ago.
		err := admission.PriorityClass(r.caches.Fresh(ctx), &class, request.Operation == admissionv1.Create)
		if status := apierrors.APIStatus(nil); errors.As(err, &status) && apierrors.IsForbidden(err) {
			return denyResponse(status.Status()), nil
		}
		if err != nil {
			return nil, err
		}
	}

	return allowResponse(), nil
}

// resourceOf returns the resource of the request; "" for resources ignored by the webhook,
// including subresources.
func resourceOf(request *admissionv1.AdmissionRequest) string {
	if request.SubResource != "" || request.Operation != admissionv1.Create && request.Operation != admissionv1.Update {
		return ""
	}
	switch request.Resource {
	case metav1.GroupVersionResource{Version: "v1", Resource: "pods"}, metav1.GroupVersionResource{Version: "v1", Resource: "nodes"},
		metav1.GroupVersionResource{Group: "scheduling.k8s.io", Version: "v1", Resource: "priorityclasses"}:
		return request.Resource.Resource
	}
	return ""
}

// podsOf returns the pod of the request and, for an update, the stored pod. It takes the namespace
// from the request, because an object being created may omit it.
func podsOf(request *admissionv1.AdmissionRequest) (pod, old *corev1.Pod, err error) {
	pod = &corev1.Pod{}
	if err := quantity.Unmarshal(request.Object.Raw, pod); err != nil {
		return nil, nil, fmt.Errorf("read pod: %w", err)
	}
	pod.Namespace = request.Namespace
	if request.Operation == admissionv1.Update {
		old = &corev1.Pod{}
		if err := quantity.Unmarshal(request.OldObject.Raw, old); err != nil {
			return nil, nil, fmt.Errorf("read stored pod: %w", err)
		}
	}
	return pod, old, nil
}

// refusalResponse returns the response that refuses the pod, with the status a client would get
// from kube-apiserver. It returns any error other than a refusal, which means no response.
func refusalResponse(pod *corev1.Pod, err error) (*admissionv1.AdmissionResponse, error) {
	var refused *admission.Refusal
	if !errors.As(err, &refused) {
		return nil, err
	}
	return denyResponse(admission.StatusError(pod, err).Status()), nil
}

// denyResponse refuses a request with the given status.
func denyResponse(status metav1.Status) *admissionv1.AdmissionResponse {
	return &admissionv1.AdmissionResponse{Result: &status}
}

// allowResponse lets a request pass unchanged.
func allowResponse() *admissionv1.AdmissionResponse {
	return &admissionv1.AdmissionResponse{Allowed: true}
}

// fieldValues are the encoded fields that the rules may change, by path. Two lists of one kind have
// the same paths in the same order, so that they can be compared by index.
type fieldValues []struct {
	path  string
	value json.RawMessage // nil if absent
}

// podFields returns the pod's fields listed by admission.CopyChanges.
func podFields(pod *corev1.Pod) (fieldValues, error) {
	spec := &pod.Spec
	return encodeFields(map[string]any{
		"affinity": spec.Affinity, "nodeSelector": spec.NodeSelector, "overhead": spec.Overhead, "preemptionPolicy": spec.PreemptionPolicy,
		"priority": spec.Priority, "priorityClassName": spec.PriorityClassName, "tolerations": spec.Tolerations,
	}, "affinity", "nodeSelector", "overhead", "preemptionPolicy", "priority", "priorityClassName", "tolerations")
}

// nodeFields returns the node's fields that the rules may change.
func nodeFields(node *corev1.Node) (fieldValues, error) {
	return encodeFields(map[string]any{"taints": node.Spec.Taints}, "taints")
}

// encodeFields encodes the values in the given order. Empty values count as absent, because the API
// server omits them.
func encodeFields(values map[string]any, order ...string) (fieldValues, error) {
	result := make(fieldValues, len(order))
	for i, name := range order {
		data, err := json.Marshal(values[name])
		if err != nil {
			return nil, err
		}
		result[i].path = "/spec/" + name
		if text := string(data); text != "null" && text != `""` && text != "[]" && text != "{}" {
			result[i].value = data
		}
	}
	return result, nil
}

// operation is one operation of a JSON patch (RFC 6902).
type operation struct {
	Op    string          `json:"op"`
	Path  string          `json:"path"`
	Value json.RawMessage `json:"value,omitempty"`
}

// patchResponse returns the response that turns before into after. It includes only changed fields,
// so that it applies to an object of any API version, including fields unknown to this program. For
// example, for a pod that got priority 0 and a toleration:
//
//	[{"op":"add","path":"/spec/priority","value":0},
//	 {"op":"add","path":"/spec/tolerations","value":[...]}]
func patchResponse(before, after fieldValues) (*admissionv1.AdmissionResponse, error) {
	var patch []operation
	for i, field := range after {
		switch was := before[i].value; {
		case bytes.Equal(was, field.value):
		case field.value == nil:
			patch = append(patch, operation{Op: "remove", Path: field.path})
		default: // add also replaces an existing member
			patch = append(patch, operation{Op: "add", Path: field.path, Value: field.value})
		}
	}

	response := allowResponse()
	if len(patch) == 0 {
		return response, nil
	}
	data, err := json.Marshal(patch)
	if err != nil {
		return nil, err
	}
	response.Patch, response.PatchType = data, new(admissionv1.PatchTypeJSONPatch)
	return response, nil
}
