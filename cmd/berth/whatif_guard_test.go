// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/berth-k8s/berth/internal/inspect/snapshot/apitest"
)

// TestWhatIfDrainFindsTheEvictionGuard forecasts a drain of the only pod of a Deployment, on
// clusters whose webhook configurations have the guard, do not have it, or may not be read.
func TestWhatIfDrainFindsTheEvictionGuard(t *testing.T) {
	const list = `{"kind": "ValidatingWebhookConfigurationList", "apiVersion": "admissionregistration.k8s.io/v1", "items": [
		{"metadata": {"name": "berth-webhook"}, "webhooks": [{"name": %q}]}]}`
	for webhook, guarded := range map[string]bool{"evictions.admission.berth.dev": true, "pods.admission.berth.dev": false, "": false} {
		api := twoNodes(t)
		own := func(kind, group, name, owner, ownerName string) apitest.Object {
			o := apitest.Object{"apiVersion": group, "kind": kind, "metadata": map[string]any{"name": name, "namespace": "default", "uid": name,
				"labels": map[string]any{"app": "web"}}}
			if owner != "" {
				o["metadata"].(map[string]any)["ownerReferences"] = []any{map[string]any{"apiVersion": "apps/v1", "kind": owner,
					"name": ownerName, "uid": ownerName, "controller": true}}
			}
			return o
		}
		spec := map[string]any{"replicas": 1, "selector": map[string]any{"matchLabels": map[string]any{"app": "web"}},
			"template": map[string]any{"metadata": map[string]any{"labels": map[string]any{"app": "web"}},
				"spec": map[string]any{"containers": []any{map[string]any{"name": "c", "image": "i"}}}}}
		deployment, set := own("Deployment", "apps/v1", "web", "", ""), own("ReplicaSet", "apps/v1", "web-1", "Deployment", "web")
		deployment["spec"], set["spec"] = spec, spec
		pod := own("Pod", "v1", "web-1-a", "ReplicaSet", "web-1")
		pod["spec"] = map[string]any{"nodeName": "node-2", "schedulerName": "default-scheduler", "containers": []any{map[string]any{"name": "c", "image": "i"}}}
		pod["status"] = map[string]any{"phase": "Running", "conditions": []any{map[string]any{"type": "Ready", "status": "True"}}}
		budget := own("PodDisruptionBudget", "policy/v1", "web", "", "")
		budget["spec"] = map[string]any{"minAvailable": 1, "selector": spec["selector"]}
		for resource, o := range map[string]apitest.Object{"deployments": deployment, "replicasets": set, "pods": pod, "poddisruptionbudgets": budget} {
			api.Set(resource, o)
		}
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case !strings.HasSuffix(r.URL.Path, "/validatingwebhookconfigurations"):
				api.ServeHTTP(w, r)
			case webhook == "":
				w.WriteHeader(http.StatusForbidden)
			default:
				w.Header().Set("Content-Type", "application/json")
				fmt.Fprintf(w, list, webhook)
			}
		}))
		defer server.Close()
		for flag, guarded := range map[string]bool{"": guarded, " --guard-evictions=false": false, " --guard-evictions": true} {
			out, errs := asPlugin(strings.Fields(liveConfig(t, server.URL).Replace("what-if CONF drain node/node-2" + flag))...)
			if blocked := strings.Contains(out, "Held by a disruption budget"); blocked == guarded {
				t.Errorf("webhook %q,%s:\n%s\n%s", webhook, flag, out, errs)
			}
		}
	}
}
