// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// TestReplacedNodesLeaveHeadroom verifies that a plan keeps the room of a share of all replicas and
// of CapacityBuffers: after all exchanges, placeholders have room for exactly these pods, and the
// nodes cost more than without them. The placeholders are neither moves nor reasons to stay.
func TestReplacedNodesLeaveHeadroom(t *testing.T) {
	document := func(kind, text string, values ...any) manifest.Document {
		return manifest.Document{Kind: kind, File: "test", Text: fmt.Appendf(nil, text, values...)}
	}
	for seed := range max(uint64(*clusters)/4, 1) {
		plain := headroomPlan(t, seed, Options{}, nil)
		objects, _ := halfEmpty(rand.New(rand.NewPCG(seed, 77)), 10)
		replicas, first := 0, objects[0].(*appsv1.ReplicaSet)
		for _, object := range objects {
			if set, ok := object.(*appsv1.ReplicaSet); ok && set.Spec.Replicas != nil {
				replicas += int(*set.Spec.Replicas)
			}
		}
		percent := (int(*first.Spec.Replicas)*30 + 99) / 100
		tests := map[string]struct {
			share   float64
			objects []manifest.Document
			want    int
		}{
			"share": {share: 0.2, want: int(0.2*float64(replicas) + 1e-9)},
			"buffers": {want: 5 + percent + 2, objects: []manifest.Document{
				document(manifest.PodTemplate, `{"metadata": {"namespace": "default", "name": "t"}, "template": {"spec": {"containers": [{"name": "c", "image": "i",
					"resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}], "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}}}`),
				document(manifest.CapacityBuffer, `{"metadata": {"namespace": "default", "name": "fixed"}, "spec": {"podTemplateRef": {"name": "t"}, "replicas": 5}}`),
				document(manifest.CapacityBuffer, `{"metadata": {"namespace": "default", "name": "share"}, "spec": {"replicas": 1, "percentage": 30,
					"scalableRef": {"apiGroup": "apps", "kind": "ReplicaSet", "name": %q}}}`, first.Name),
				document(manifest.CapacityBuffer, `{"metadata": {"namespace": "default", "name": "limit"}, "spec": {"podTemplateRef": {"name": "t"},
					"limits": {"cpu": "2500m", "memory": "64Gi", "nvidia.com/gpu": "1"}}}`),
			}},
			"unknown": {objects: []manifest.Document{
				document(manifest.CapacityBuffer, `{"metadata": {"namespace": "default", "name": "lost"}, "spec": {"podTemplateRef": {"name": "t"}, "replicas": 5}}`),
				document(manifest.PodTemplate, `{"metadata": {"namespace": "other", "name": "t"}}`),
			}},
		}
		for name, test := range tests {
			t.Run(fmt.Sprint(name, seed), func(t *testing.T) {
				r := headroomPlan(t, seed, Options{Seed: seed, Headroom: test.share}, test.objects)
				t.Logf("%d pods of headroom: %.4g -> %.4g an hour; %.4g without", r.Headroom, r.Before, r.Before-r.Hour, plain.Before-plain.Hour)
				if r.Headroom != test.want {
					t.Errorf("room for %d pods is kept, want %d", r.Headroom, test.want)
				}
				if costs, less := r.Before-r.Hour, plain.Before-plain.Hour; (costs > less+tiny) != (test.want > 0) || len(r.Exchanges) == 0 {
					t.Errorf("%d exchanges: costs %v with headroom, and %v without", len(r.Exchanges), costs, less)
				}
			})
		}
	}
}

// TestMissingHeadroomBuysNothing verifies that a plan does not buy nodes for headroom that is
// missing already before, and keeps the existing part.
func TestMissingHeadroomBuysNothing(t *testing.T) {
	r := headroomPlan(t, 1, Options{}, []manifest.Document{
		{Kind: manifest.PodTemplate, Text: []byte(`{"metadata": {"namespace": "default", "name": "t"}, "template": {"spec": {"containers": [{"name": "c", "image": "i",
			"resources": {"requests": {"cpu": "1"}}}]}}}`)},
		{Kind: manifest.CapacityBuffer, Text: []byte(`{"metadata": {"namespace": "default", "name": "huge"}, "spec": {"podTemplateRef": {"name": "t"}, "replicas": 5000}}`)},
	})
	if r.Headroom == 0 || r.Headroom >= 5000 {
		t.Errorf("room for %d pods is kept", r.Headroom)
	}
	if r.Hour < -tiny {
		t.Errorf("the plan costs %v an hour more", -r.Hour)
	}
}

// headroomPlan returns the exchanges of a half-empty cluster, and verifies in a new world that
// their nodes have room for all placeholders.
func headroomPlan(t *testing.T, seed uint64, o Options, more []manifest.Document) *Replaced {
	t.Helper()
	objects, catalog := halfEmpty(rand.New(rand.NewPCG(seed, 77)), 10)
	// A tenant may store a workload without pods, for example beyond its quota: it does not count.
	huge := objects[0].(*appsv1.ReplicaSet).DeepCopy()
	huge.Namespace, huge.UID, huge.Spec.Replicas = "tenant", "huge", new(int32(20_000))
	set := manifest.Assemble("test", append(objects, huge))
	set.ForPlans = more
	origin, err := simulate.Open(set, simulate.Options{Seed: seed})
	if err != nil {
		t.Fatal(err)
	}
	var notes []string
	open := func() (*simulate.World, error) {
		w, err := origin.Twin()
		if err != nil {
			return nil, err
		}
		done, err := o.KeepRoom(w)
		if err == nil {
			notes = done.Notes
		}
		return w, err
	}
	w, err := open()
	if err != nil {
		t.Fatal(err)
	}
	plan, err := Make(w, catalog, o)
	if err == nil {
		err = plan.Replace(open, o)
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(plan.Nodes) > 0 {
		t.Errorf("%d nodes are bought before any exchange", len(plan.Nodes))
	}
	if lost := slices.ContainsFunc(more, func(d manifest.Document) bool { return strings.Contains(string(d.Text), `"lost"`) }); lost != (len(notes) == 1) {
		t.Errorf("notes: %q", notes)
	}

	r := &replacer{open: open, p: plan, o: o, out: plan.Replaced}
	after, err := r.world()
	if err != nil {
		t.Fatal(err)
	}
	held := 0
	for _, n := range after.Cluster().SortedNodes() {
		for _, p := range n.Pods {
			if p.Class.Priority == placeholderPriority {
				held++
			}
		}
	}
	if held != plan.Replaced.Headroom || len(waitingNames(after)) > 0 {
		t.Errorf("after all exchanges, %d of %d placeholders have room, and %d pods are pending", held, plan.Replaced.Headroom, len(waitingNames(after)))
	}
	for _, e := range plan.Replaced.Exchanges {
		for _, m := range e.Moves {
			if strings.Contains(m.Pod, placeholder) {
				t.Errorf("%s is listed as a move", m.Pod)
			}
		}
	}
	return plan.Replaced
}
