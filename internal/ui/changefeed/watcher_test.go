// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package changefeed_test

import (
	"context"
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/inspect/snapshot/apitest"
	"github.com/berth-k8s/berth/internal/ui/changefeed"
	"github.com/berth-k8s/berth/internal/ui/model"
)

func node(name string, taints ...map[string]any) apitest.Object {
	return apitest.Object{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": name, "uid": name}, "spec": map[string]any{"taints": taints}}
}

func follow(t *testing.T, api *apitest.Server) *changefeed.Watcher {
	t.Helper()
	w, err := changefeed.New(api.Config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); w.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	return w
}

// next waits until the changes after a frame number satisfy enough, and returns them.
func next(t *testing.T, w *changefeed.Watcher, after uint64, enough func([]changefeed.Frame, changefeed.Watches) bool) ([]changefeed.Frame, changefeed.Watches) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		frames, watches, changed := w.Read(after)
		if enough(frames, watches) {
			return frames, watches
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("nothing comes after %d: %d frames, %+v", after, len(frames), watches)
		}
	}
}

func some(frames []changefeed.Frame, _ changefeed.Watches) bool { return len(frames) > 0 }

func delta(t *testing.T, f changefeed.Frame) (d model.Delta) {
	t.Helper()
	if err := json.Unmarshal(f.Data, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestTheStateComesFirstAndThenWhatChanges(t *testing.T) {
	api := apitest.New(t)
	api.Refuse("events", http.StatusForbidden)
	api.PageLimit = 2
	for _, name := range []string{"node-1", "node-2", "node-3", "node-4", "node-5"} {
		api.Set("nodes", node(name))
	}
	w := follow(t, api)
	frames, _ := next(t, w, 0, some)
	state := delta(t, frames[0])
	if !frames[0].Fresh || !state.Fresh || len(state.Nodes.Rows) != 5 {
		t.Fatalf("%+v", state)
	}
	api.Set("nodes", node("node-2", map[string]any{"key": "k", "effect": "NoSchedule"}))
	frames, _ = next(t, w, frames[0].Seq, some)
	change := delta(t, frames[0])
	if frames[0].Fresh || len(change.Nodes.Rows) != 1 || change.Nodes.Rows[0].Taints[0] != "k:NoSchedule" {
		t.Errorf("%+v", change)
	}
	if frames, _, _ := w.Read(0); len(frames) != 1 || !frames[0].Fresh || !strings.Contains(string(frames[0].Data), "k:NoSchedule") {
		t.Error("who comes now does not get the state of now")
	}
	if frames, _, _ := w.Read(1 << 40); len(frames) != 1 || !frames[0].Fresh {
		t.Error("who has a number that was never given out does not get the state")
	}
}

// TestChangesAreNotChangesOfTheWatches verifies that the state of the watches stays the same while
// objects change, so that readers get it once.
func TestChangesAreNotChangesOfTheWatches(t *testing.T) {
	api := apitest.New(t)
	api.Set("nodes", node("node-1"))
	w := follow(t, api)
	frames, before := next(t, w, 0, some)
	api.Set("nodes", node("node-1", map[string]any{"key": "k", "effect": "NoSchedule"}))
	if _, after := next(t, w, frames[0].Seq, some); !reflect.DeepEqual(before, after) {
		t.Errorf("%+v became %+v", before, after)
	}
}

func TestWhatMayNotBeReadIsSaid(t *testing.T) {
	api := apitest.New(t)
	api.Refuse("events", http.StatusForbidden)
	w := follow(t, api)
	_, watches := next(t, w, 0, func(_ []changefeed.Frame, w changefeed.Watches) bool { return w.Listed && len(w.Lost) > 0 })
	if why := watches.Lost["events"]; why != "these credentials may not list and watch events" {
		t.Errorf("%q", why)
	}
	frames, _, _ := w.Read(0)
	if len(frames) != 1 || !frames[0].Fresh {
		t.Error("without events nothing is shown at all, not even an empty cluster")
	}
}

func groupText(name string, needed int) apitest.Object {
	return apitest.Object{"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": map[string]any{"namespace": "default", "name": name, "uid": name},
		"spec": map[string]any{"schedulingPolicy": map[string]any{"gang": map[string]any{"minCount": needed}}}}
}

// TestPodGroupsAreFollowedWhereTheyAreServed verifies that PodGroups, which require feature gates,
// are followed if the API server serves them; otherwise no request is sent, and no watch counts as
// lost.
func TestPodGroupsAreFollowedWhereTheyAreServed(t *testing.T) {
	member := apitest.Object{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"namespace": "default", "name": "a", "uid": "a"},
		"spec": map[string]any{"schedulingGroup": map[string]any{"podGroupName": "train"}}}
	api := apitest.New(t)
	api.Set("pods", member)
	api.Set("podgroups", groupText("train", 2))
	w := follow(t, api)
	says := func(want string) {
		t.Helper()
		next(t, w, 0, func(frames []changefeed.Frame, _ changefeed.Watches) bool {
			if len(frames) == 0 {
				return false
			}
			groups := delta(t, frames[0]).Groups
			return groups != nil && len(groups.Rows) == 1 && groups.Rows[0].Message == want
		})
	}
	says("2 pods are needed at once; it has 1")
	api.Set("podgroups", groupText("train", 3))
	says("3 pods are needed at once; it has 1")
	api.Delete(&schedulingv1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "train"}})
	says("PodGroup train does not exist")

	api = apitest.New(t)
	api.Refuse("v1beta1", http.StatusNotFound)
	api.Refuse("v1alpha3", http.StatusNotFound)
	api.Set("pods", member)
	w = follow(t, api)
	frames, watches := next(t, w, 0, some)
	if rows := delta(t, frames[0]).Queue.Rows; len(rows) != 1 || rows[0].Group != "" {
		t.Errorf("%+v", rows)
	}
	if len(watches.Lost) > 0 {
		t.Errorf("lost: %v", watches.Lost)
	}
	for _, path := range api.Reads() {
		if strings.HasSuffix(path, "podgroups") {
			t.Errorf("read %s", path)
		}
	}
}

// TestCompositePodGroupsAreFollowedWhereTheyAreServed verifies that a group is shown in its tree if
// the API server serves CompositePodGroups, and without a tree otherwise.
func TestCompositePodGroupsAreFollowedWhereTheyAreServed(t *testing.T) {
	group := groupText("train", 2)
	group["spec"].(map[string]any)["parentCompositePodGroupName"] = "all"
	composite := apitest.Object{"apiVersion": "scheduling.k8s.io/v1alpha3", "kind": "CompositePodGroup",
		"metadata": map[string]any{"namespace": "default", "name": "all", "uid": "all"}, "spec": map[string]any{"schedulingPolicy": map[string]any{"basic": map[string]any{}}}}
	for _, served := range []bool{true, false} {
		api := apitest.New(t)
		if !served {
			api.Refuse("v1alpha3", http.StatusNotFound)
		}
		api.Set("pods", apitest.Object{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"namespace": "default", "name": "a", "uid": "a"},
			"spec": map[string]any{"schedulingGroup": map[string]any{"podGroupName": "train"}}})
		api.Set("podgroups", group)
		api.Set("compositepodgroups", composite)
		w := follow(t, api)
		says := func(tree, why string) {
			t.Helper()
			next(t, w, 0, func(frames []changefeed.Frame, _ changefeed.Watches) bool {
				if len(frames) == 0 {
					return false
				}
				d := delta(t, frames[0])
				if d.Groups == nil || len(d.Groups.Rows) != 1 || d.Groups.Rows[0].Tree != tree {
					return false
				}
				if rows := d.Composites.Rows; tree != "" {
					return len(rows) == 1 && rows[0].Key == tree && rows[0].Message == why
				}
				return len(d.Composites.Rows) == 0
			})
		}
		if !served {
			says("", "")
			continue
		}
		says("default/all", "groups needed at once: 1; groups with all pods: 0")
		api.Delete(&schedulingv1alpha3.CompositePodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "all"}})
		says("default/all", "CompositePodGroup all does not exist")
	}
}

// TestClaimsAreFollowed verifies that a pod that is not tried because its claim does not exist is
// shown with that reason until the claim exists.
func TestClaimsAreFollowed(t *testing.T) {
	api := apitest.New(t)
	api.Set("pods", apitest.Object{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"namespace": "default", "name": "a", "uid": "a"},
		"spec": map[string]any{"resourceClaims": []map[string]any{{"name": "device", "resourceClaimName": "gpu"}}}})
	w := follow(t, api)
	says := func(want string) {
		t.Helper()
		next(t, w, 0, func(frames []changefeed.Frame, _ changefeed.Watches) bool {
			if len(frames) == 0 {
				return false
			}
			queue := delta(t, frames[0]).Queue
			return queue != nil && len(queue.Rows) == 1 && queue.Rows[0].Message == want
		})
	}
	says(`could not find ResourceClaim "default/gpu"`)
	api.Set("resourceclaims", apitest.Object{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": map[string]any{"namespace": "default", "name": "gpu", "uid": "gpu"}})
	says("")
}
