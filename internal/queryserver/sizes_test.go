// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package queryserver

import (
	"encoding/json"
	"runtime"
	"strings"
	"testing"

	berthv1alpha1 "github.com/berth-k8s/berth/api/berth/v1alpha1"
)

// TestTheSizeOfAllPodsIsBounded covers 200 pods of a manifest of 0.9 MB: 4 GB, and 2 TB for
// 100,000 pods.
func TestTheSizeOfAllPodsIsBounded(t *testing.T) {
	text := "{apiVersion: batch/v1, kind: Job, metadata: {name: a}, spec: {parallelism: 200, template: {spec: {containers: [], tolerations: [" +
		strings.Repeat("{},", 300_000) + "{}]}}}}"
	if d, err := readDemand(&berthv1alpha1.FitsRequest{Namespace: "shop", Manifest: text}); err == nil {
		t.Errorf("%d pods of 300,000 tolerations each", len(d.pods))
	}
}

// TestTheSizeOfAllNodesIsBounded covers 50 nodes of a model of 0.9 MB.
func TestTheSizeOfAllNodesIsBounded(t *testing.T) {
	text := podOf("1", "") + "\n---\n{apiVersion: v1, kind: Node, metadata: {name: m}, spec: {taints: [" + strings.Repeat("{},", 300_000) + "{}]}}"
	if d, err := readDemand(&berthv1alpha1.FitsRequest{Namespace: "shop", Manifest: text, NodeCount: 50}); err == nil {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		t.Errorf("%d nodes of 300,000 taints each: %d MB", len(d.nodes), m.HeapAlloc>>20)
		runtime.KeepAlive(d)
	}
}

// TestUnreadableKindsMakeAnAnswerPartial covers kinds that Berth may not list.
func TestUnreadableKindsMakeAnAnswerPartial(t *testing.T) {
	r := start(t, nil)
	r.follower.mu.Lock()
	r.follower.missing["csinodes"] = "csinodes is forbidden"
	r.follower.mu.Unlock()
	answer, err := r.as(t, "admin").Fits(t.Context(), &berthv1alpha1.FitsRequest{Namespace: "shop", Manifest: podOf("1", "")})
	if err != nil || !answer.Basis.Partial {
		t.Errorf("fits: %v, %v", answer, err)
	}
	p, err := r.as(t, "admin").Pending(t.Context(), &berthv1alpha1.PendingRequest{})
	if err != nil || !p.Basis.Partial {
		t.Errorf("pending: %v, %v", p, err)
	}
}

// TestALostWatchMakesAnAnswerPartial covers an API server that cannot be reached for some time.
func TestALostWatchMakesAnAnswerPartial(t *testing.T) {
	r := start(t, nil)
	partial := func() bool {
		p, err := r.as(t, "admin").Pending(t.Context(), &berthv1alpha1.PendingRequest{})
		return err == nil && p.Basis.Partial
	}
	r.api.Refuse("pods", 503)
	r.api.Cut("pods", true)
	r.until(t, partial)
	r.api.Refuse("pods", 0)
	r.until(t, func() bool { return !partial() })
}

// TestQuotasOfOtherNamespacesMakeAnAnswerPartial covers a pod of a namespace other than the
// request's.
func TestQuotasOfOtherNamespacesMakeAnAnswerPartial(t *testing.T) {
	r := start(t, nil)
	r.api.Set("resourcequotas", object("ResourceQuota", "bank", "few", map[string]any{"hard": map[string]any{"pods": "1"}}, map[string]any{}))
	r.until(t, func() bool {
		answer, err := r.as(t, "admin").Fits(t.Context(), &berthv1alpha1.FitsRequest{Namespace: "bank", Manifest: podOf("1", "")})
		return err == nil && answer.Basis.Partial // the quota has been read
	})
	manifest := strings.Replace(podOf("1", ""), "name: new", "name: new, namespace: bank", 1)
	answer, err := r.as(t, "admin").Fits(t.Context(), &berthv1alpha1.FitsRequest{Namespace: "shop", Manifest: manifest})
	if err != nil || !answer.Basis.Partial {
		t.Errorf("%v, %v", answer, err)
	}
}

// stateful is a StatefulSet with claims of a class that does not exist.
const stateful = `{"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db", "namespace": "shop", "uid": "u"},
 "spec": {"replicas": 1, "serviceName": "db", "selector": {"matchLabels": {"app": "db"}},
  "template": {"metadata": {"labels": {"app": "db"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
  "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "none",
   "resources": {"requests": {"storage": "1Gi"}}}}]}}`

// TestLikeAStatefulSetHasItsVolumes covers one more pod of a StatefulSet: without the class of
// its claims, no pod of it can have a node.
func TestLikeAStatefulSetHasItsVolumes(t *testing.T) {
	r := start(t, nil)
	set := map[string]any{}
	if err := json.Unmarshal([]byte(stateful), &set); err != nil {
		t.Fatal(err)
	}
	r.api.Set("statefulsets", set)
	r.until(t, func() bool {
		answer, err := r.as(t, "admin").Fits(t.Context(), &berthv1alpha1.FitsRequest{Namespace: "shop", Like: "statefulset/db"})
		if err == nil && answer.Fits {
			t.Fatalf("%v", answer)
		}
		return err == nil
	})
}

// TestClaimsOfAManifestGetTheDefaultClass covers a StatefulSet with claims of no class.
func TestClaimsOfAManifestGetTheDefaultClass(t *testing.T) {
	r := start(t, nil)
	r.api.Set("storageclasses", map[string]any{"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "provisioner": "x.csi", "volumeBindingMode": "WaitForFirstConsumer",
		"metadata": map[string]any{"name": "standard", "uid": "sc", "annotations": map[string]any{"storageclass.kubernetes.io/is-default-class": "true"}}})
	c := r.as(t, "admin")
	named := strings.Replace(stateful, `"none"`, `"standard"`, 1)
	r.until(t, func() bool { // the class has been read
		answer, err := c.Fits(t.Context(), &berthv1alpha1.FitsRequest{Namespace: "shop", Manifest: named})
		return err == nil && answer.Placed == 1
	})
	unnamed := strings.Replace(named, `"storageClassName": "standard",`, "", 1)
	answer, err := c.Fits(t.Context(), &berthv1alpha1.FitsRequest{Namespace: "shop", Manifest: unnamed})
	if err != nil || !answer.Fits {
		t.Errorf("%v, %v", answer, err)
	}
}
