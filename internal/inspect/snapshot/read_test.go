// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/inspect/snapshot"
	"github.com/berth-k8s/berth/internal/inspect/snapshot/apitest"
)

func object(apiVersion, kind, namespace, name string) apitest.Object {
	meta := map[string]any{"name": name, "uid": kind + "-" + name}
	if namespace != "" {
		meta["namespace"] = namespace
	}
	return apitest.Object{"apiVersion": apiVersion, "kind": kind, "metadata": meta}
}

func client(t *testing.T, api *apitest.Server) *snapshot.Client {
	t.Helper()
	c, err := snapshot.NewClient(api.Config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestAClusterIsReadInPages(t *testing.T) {
	api := apitest.New(t)
	api.PageLimit = 7
	for i := range 40 {
		api.Set("pods", object("v1", "Pod", "default", fmt.Sprintf("pod-%d", i)))
	}
	api.Set("nodes", object("v1", "Node", "", "node-1"))
	read := 0
	s, err := client(t, api).Read(t.Context(), func(objects int) { read = objects })
	if err != nil {
		t.Fatal(err)
	}
	if read != 42 {
		t.Errorf("%d objects read, want 42 with the namespace", read)
	}
	if len(s.Pods) != 40 || len(s.Nodes) != 1 || s.ResourceVersion == "" || s.AsOf.IsZero() || len(s.Missing) > 0 {
		t.Errorf("%d pods, %d nodes, %+v, missing %v", len(s.Pods), len(s.Nodes), s.Source, s.Missing)
	}
	lists := slices.DeleteFunc(api.Reads(), func(path string) bool { return path != "/api/v1/pods" })
	if len(lists) != 6 {
		t.Errorf("pods were listed in %d pages, want 6 of 7", len(lists))
	}
	if _, err := simulate.Open(s.Set, simulate.Options{}); err != nil {
		t.Error(err)
	}
}

// TestUnusedManagedFieldsAreDropped verifies that managed fields are kept only for nodes, unless
// DropManagedFields is set.
func TestUnusedManagedFieldsAreDropped(t *testing.T) {
	api := apitest.New(t)
	for resource, o := range map[string]apitest.Object{"pods": object("v1", "Pod", "default", "a"), "nodes": object("v1", "Node", "", "n")} {
		o["metadata"].(map[string]any)["managedFields"] = []any{map[string]any{"manager": "kubelet", "operation": "Update"}}
		api.Set(resource, o)
	}
	for _, drop := range []bool{false, true} {
		c := client(t, api)
		c.DropManagedFields = drop
		s, err := c.Read(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(s.Pods[0].ManagedFields) > 0 {
			t.Error("the managed fields of the pod are kept")
		}
		if kept := len(s.Nodes[0].ManagedFields) > 0; kept == drop {
			t.Errorf("node: to be dropped: %v, kept: %v", drop, kept)
		}
	}
}

// TestProgressIsReported verifies that objects are counted while a kind is read.
func TestProgressIsReported(t *testing.T) {
	api := apitest.New(t)
	for i := range 1500 {
		api.Set("pods", object("v1", "Pod", "default", fmt.Sprintf("pod-%d", i)))
	}
	var reported []int
	if _, err := client(t, api).Read(t.Context(), func(objects int) { reported = append(reported, objects) }); err != nil {
		t.Fatal(err)
	}
	if !slices.IsSorted(reported) || !slices.ContainsFunc(reported, func(n int) bool { return n >= 1000 && n < 1500 }) || slices.Max(reported) != 1501 {
		t.Errorf("reported %v, want numbers between, and 1501 with the namespace", reported)
	}
}

func TestWhatMayNotBeReadIsLeftOutUnlessItIsNeeded(t *testing.T) {
	api := apitest.New(t)
	api.Refuse("csidrivers", http.StatusForbidden)
	api.Refuse("resourceslices", http.StatusNotFound)
	s, err := client(t, api).Read(t.Context(), nil)
	if err != nil || len(s.Missing) != 1 || !strings.HasPrefix(s.Missing[0], "csidrivers: ") { // unserved kinds are not missing
		t.Errorf("%v, missing %q", err, s.Missing)
	}
	api.Refuse("podgroups", http.StatusForbidden) // most clusters serve no pod groups, and roles omit them
	if s, err := client(t, api).Read(t.Context(), nil); err != nil || len(s.Missing) != 1 {
		t.Errorf("without pod groups: %v, missing %q", err, s.Missing)
	}
	member := object("v1", "Pod", "default", "member")
	member["spec"] = map[string]any{"schedulingGroup": map[string]any{"podGroupName": "g"}}
	api.Set("pods", member)
	if s, err := client(t, api).Read(t.Context(), nil); err != nil || len(s.Missing) != 2 {
		t.Errorf("where a pod names a group: %v, missing %q", err, s.Missing)
	}
	api.Refuse("pods", http.StatusForbidden)
	if _, err := client(t, api).Read(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "list pods") ||
		!strings.Contains(err.Error(), "--clusterrole=berth-view") {
		t.Errorf("without pods: %v", err)
	}
}

// TestAnAdminOfANamespaceGetsItsPods verifies that a user with access to one namespace can read its
// pods.
func TestAnAdminOfANamespaceGetsItsPods(t *testing.T) {
	api := apitest.New(t)
	api.Refuse("nodes", http.StatusForbidden)
	for _, name := range []string{"waits", "new", "runs"} {
		pod := object("v1", "Pod", "shop", name)
		if name != "new" {
			pod["status"] = map[string]any{"conditions": []any{map[string]any{
				"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available", "lastTransitionTime": "2026-11-27T12:00:00Z"}}}
		}
		if name == "runs" {
			pod["spec"] = map[string]any{"nodeName": "node-1"}
		}
		api.Set("pods", pod)
	}
	want := []string{"the scheduler wrote into the status of pod shop/waits, 2026-11-27 12:00:00Z: 0/3 nodes are available"}
	if lines := client(t, api).StatusesOf(t.Context(), "shop"); !slices.Equal(lines, want) {
		t.Errorf("%q", lines)
	}
}

// TestNoWriteIsSent verifies that the connection itself refuses all writes: the test's server fails
// at any request other than GET.
func TestNoWriteIsSent(t *testing.T) {
	api := apitest.New(t)
	clientset, err := kubernetes.NewForConfig(snapshot.ReadOnly(api.Config))
	if err != nil {
		t.Fatal(err)
	}
	pods, ctx := clientset.CoreV1().Pods("default"), t.Context()
	_, create := pods.Create(ctx, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}, metav1.CreateOptions{})
	_, update := pods.Update(ctx, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}, metav1.UpdateOptions{})
	_, patch := pods.Patch(ctx, "p", "application/merge-patch+json", []byte("{}"), metav1.PatchOptions{})
	for verb, err := range map[string]error{
		"create": create, "update": update, "patch": patch, "delete": pods.Delete(ctx, "p", metav1.DeleteOptions{}),
		"bind": pods.Bind(ctx, &v1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "p"}}, metav1.CreateOptions{}),
	} {
		if err == nil || !strings.Contains(errors.Unwrap(err).Error(), "is not sent: this command only reads") {
			t.Errorf("%s: %v", verb, err)
		}
	}
	if reads := api.Reads(); len(reads) > 0 {
		t.Errorf("sent: %v", reads)
	}
}

// roundTripper responds to requests for one path, and forwards the rest.
type roundTripper struct {
	path, body string
	next       http.RoundTripper
}

func (r roundTripper) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.URL.Path != r.path {
		return r.next.RoundTrip(request)
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(strings.NewReader(r.body)), Request: request}, nil
}

// TestNodePoolsOfAClusterAreRead verifies that NodePools are read on request, if the cluster has
// them and permits it.
func TestNodePoolsOfAClusterAreRead(t *testing.T) {
	const path = "/apis/karpenter.sh/v1/nodepools"
	for _, status := range []int{http.StatusOK, http.StatusNotFound, http.StatusForbidden} {
		api := apitest.New(t)
		if status == http.StatusOK {
			api.Config.Wrap(func(next http.RoundTripper) http.RoundTripper {
				return roundTripper{path, `{"kind": "NodePoolList", "items": [{"kind": "NodePool", "metadata": {"name": "p"}}]}`, next}
			})
		} else {
			api.Refuse("nodepools", status)
		}
		c := client(t, api)
		if s, err := c.Read(t.Context(), nil); err != nil || len(s.ForPlans) > 0 || slices.Contains(api.Reads(), path) {
			t.Errorf("%d, not requested: %v, %v", status, s, err)
		}
		c.ForPlans = true
		s, err := c.Read(t.Context(), nil)
		if err != nil || (len(s.ForPlans) == 1) != (status == http.StatusOK) || (len(s.Missing) == 1) != (status == http.StatusForbidden) || !s.Whole {
			t.Errorf("%d: %v, %v", status, s, err)
		}
	}
}
