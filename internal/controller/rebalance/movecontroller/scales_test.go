// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package movecontroller

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/internal/kube/fakeapi"
	"github.com/berth-k8s/berth/internal/response"
)

// rolloutAPI serves a ReplicaSet and the scale of its Rollout.
type rolloutAPI struct {
	set   appsv1.ReplicaSet
	scale autoscalingv1.Scale
	fails func(r *http.Request) int // returns the status of a failure, or 0
}

func (a *rolloutAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if a.fails != nil {
		if status := a.fails(r); status != 0 {
			w.WriteHeader(status)
			return
		}
	}
	answer := any(&a.set)
	switch r.Method + " " + r.URL.Path {
	case "GET /apis/argoproj.io/v1alpha1":
		answer = &metav1.APIResourceList{GroupVersion: "argoproj.io/v1alpha1", APIResources: []metav1.APIResource{
			{Name: "rollouts", Kind: "Rollout"}, {Name: "rollouts/scale", Kind: "Scale", Group: "autoscaling", Version: "v1"}}}
	case "GET /apis/argoproj.io/v1alpha1/namespaces/default/rollouts/web/scale":
		answer = &a.scale
	case "PUT /apis/argoproj.io/v1alpha1/namespaces/default/rollouts/web/scale":
		var put autoscalingv1.Scale
		if json.NewDecoder(r.Body).Decode(&put) != nil || put.ResourceVersion != a.scale.ResourceVersion {
			w.WriteHeader(http.StatusConflict)
			return
		}
		a.scale.Spec = put.Spec
		answer = &a.scale
	case "GET /apis/apps/v1/namespaces/default/replicasets/web-1":
	case "PATCH /apis/apps/v1/namespaces/default/replicasets/web-1":
		var patch struct {
			Metadata struct{ Labels map[string]*string }
		}
		_ = json.NewDecoder(r.Body).Decode(&patch)
		a.set.Labels = map[string]string{}
		if value := patch.Metadata.Labels[rebalance.SurgeLabel]; value != nil {
			a.set.Labels[rebalance.SurgeLabel] = *value
		}
	default:
		w.WriteHeader(http.StatusNotFound)
		return
	}
	_ = json.NewEncoder(w).Encode(answer)
}

// TestScaleThrough verifies that a ReplicaSet is scaled through the scale subresource of its
// controller, only once, and only if no other client has changed the scale. The scale must be
// restored whether the process was killed before or after writing it, or not at all.
func TestScaleThrough(t *testing.T) {
	type at struct {
		replicas int32
		label    string
	}
	denied := func(r *http.Request) int {
		if r.Method == http.MethodPut {
			return http.StatusForbidden
		}
		return 0
	}
	for name, c := range map[string]struct {
		before  at
		raise   bool
		fails   func(r *http.Request) int
		after   at
		outcome response.Outcome
	}{
		"raise":                            {before: at{2, ""}, raise: true, after: at{3, "note"}},
		"raised before, the answer lost":   {before: at{3, "note"}, raise: true, after: at{3, "note"}},
		"raise, scaled meanwhile":          {before: at{5, ""}, raise: true, after: at{5, ""}, outcome: response.Conflict},
		"raise, another surge":             {before: at{3, "other"}, raise: true, after: at{3, "other"}, outcome: response.Conflict},
		"raise, forbidden":                 {before: at{2, ""}, raise: true, fails: denied, after: at{2, ""}, outcome: response.Refused},
		"lower":                            {before: at{3, "note"}, after: at{2, ""}},
		"lower, killed before the scale":   {before: at{2, "note"}, after: at{2, ""}},
		"lower, somebody has scaled it":    {before: at{7, "note"}, after: at{7, ""}},
		"lowered before, the answer lost":  {before: at{2, ""}, after: at{2, ""}},
		"lower, it is another one's surge": {before: at{3, "other"}, after: at{3, "other"}},
	} {
		t.Run(name, func(t *testing.T) {
			api := &rolloutAPI{fails: c.fails}
			api.set.Name, api.set.UID, api.set.ResourceVersion, api.set.Spec.Replicas = "web-1", "set", "1", ptr.To[int32](2)
			api.scale.Name, api.scale.UID, api.scale.ResourceVersion, api.scale.Spec.Replicas = "web", "owner", "1", c.before.replicas
			if c.before.label != "" {
				api.set.Labels = map[string]string{rebalance.SurgeLabel: c.before.label}
			}
			server := httptest.NewServer(api)
			defer server.Close()
			client := kubernetes.NewForConfigOrDie(&rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
			r := newRequests(client, nil)
			through := &rebalance.Through{APIVersion: "argoproj.io/v1alpha1", Kind: "Rollout", Name: "web", UID: "owner"}
			change := execute.Scale{Target: rebalance.Scaled{Kind: "ReplicaSet", Namespace: "default", Name: "web-1", UID: "set", Through: through},
				From: 3, To: 2, Before: "note"}
			if c.raise {
				change.From, change.To, change.Before, change.After = 2, 3, "", "note"
			}
			answer := r.carryOut(t.Context(), change).(execute.Answered)
			if got := (at{api.scale.Spec.Replicas, api.set.Labels[rebalance.SurgeLabel]}); got != c.after || answer.Outcome != c.outcome {
				t.Errorf("%+v, answered %+v; want %+v, %v", got, answer, c.after, c.outcome)
			}
		})
	}
}

// TestOwnersOfOtherNamespacesAreNotScaled verifies that an owner reference, which a tenant can
// write, never leads to another namespace or API.
func TestOwnersOfOtherNamespacesAreNotScaled(t *testing.T) {
	for _, through := range []rebalance.Through{
		{APIVersion: "argoproj.io/v1alpha1", Kind: "Rollout", Name: "../../victim/rollouts/web", UID: "owner"},
		{APIVersion: "argoproj.io/v1alpha1", Kind: "Rollout", Name: "..", UID: "owner"},
		{APIVersion: "argoproj.io/..", Kind: "Rollout", Name: "web", UID: "owner"},
		{APIVersion: "../v1alpha1", Kind: "Rollout", Name: "web", UID: "owner"},
		{APIVersion: "argoproj.io/v1alpha1", Kind: "Unknown", Name: "web", UID: "owner"},
	} {
		var requested []string
		api := &rolloutAPI{fails: func(r *http.Request) int {
			if requested = append(requested, r.URL.Path); strings.Contains(r.URL.Path, "victim") {
				return http.StatusTeapot
			}
			return 0
		}}
		server := httptest.NewServer(api)
		client := kubernetes.NewForConfigOrDie(&rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
		r := newRequests(client, nil)
		answer := r.carryOut(t.Context(), execute.Scale{From: 3, To: 2, Before: "note",
			Target: rebalance.Scaled{Kind: "ReplicaSet", Namespace: "default", Name: "web-1", UID: "set", Through: &through}}).(execute.Answered)
		server.Close()
		for _, path := range requested {
			if path != "/apis/argoproj.io/v1alpha1" {
				t.Errorf("%+v: requested %s", through, path)
			}
		}
		if answer.Outcome != response.Refused {
			t.Errorf("%+v: answered %+v", through, answer)
		}
	}
}

// TestDroppedLabelsLeaveTheScaleAsItIs verifies that a workload is not scaled, or is scaled back,
// if a policy drops the label needed to scale it back.
func TestDroppedLabelsLeaveTheScaleAsItIs(t *testing.T) {
	for name, spared := range map[string]int{"the dry run shows it": 0, "the policy skips dry runs": 1} {
		t.Run(name, func(t *testing.T) {
			api, writes := fakeapi.New(), 0
			api.Put(&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "d"},
				Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](3)}})
			api.SetPolicy(func(o fakeapi.Object) {
				if writes++; writes > spared {
					o.SetLabels(nil)
				}
			})
			r := newRequests(api.Client(), nil)
			answer := r.carryOut(t.Context(), execute.Scale{From: 3, To: 4, After: "3_x_1",
				Target: rebalance.Scaled{Kind: "Deployment", Namespace: "default", Name: "web", UID: "d"}}).(execute.Answered)
			d := fakeapi.All(api, &appsv1.Deployment{})[0]
			if answer.Outcome != response.Refused || *d.Spec.Replicas != 3 || len(d.Labels) > 0 {
				t.Errorf("answered %+v, %d replicas, labels %v", answer, *d.Spec.Replicas, d.Labels)
			}
		})
	}
}
