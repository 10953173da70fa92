// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// spreadingPods returns pods spread over zones and over nodes, among pods that are only counted.
// Some selectors do not match the pods that have them.
func spreadingPods(r *rand.Rand, count int) (pods []metav1.Object) {
	label := func() map[string]string { return map[string]string{"app": string(rune('a' + r.IntN(4)))} }
	for i := range count {
		pod := &v1.Pod{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p-%04d", i), Namespace: "default", UID: types.UID(fmt.Sprint("u", i)), Labels: label()},
			Spec:       v1.PodSpec{SchedulerName: v1.DefaultSchedulerName, Containers: []v1.Container{{Name: "c", Image: "c"}}},
		}
		pod.Spec.Containers[0].Resources.Requests = v1.ResourceList{
			v1.ResourceCPU:    resource.MustParse([]string{"100m", "500m", "1500m"}[r.IntN(3)]),
			v1.ResourceMemory: resource.MustParse([]string{"128Mi", "1Gi", "4Gi"}[r.IntN(3)]),
		}
		if key := []string{v1.LabelTopologyZone, v1.LabelHostname, ""}[r.IntN(3)]; key != "" {
			pod.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{
				MaxSkew: 1, TopologyKey: key, WhenUnsatisfiable: v1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{MatchLabels: label()},
			}}
		}
		pods = append(pods, pod)
	}
	return pods
}

// zonesCatalog returns a catalog of nodes of three sizes in three zones.
func zonesCatalog(t *testing.T) *Catalog {
	t.Helper()
	var b strings.Builder
	for _, zone := range []string{"a", "b", "c"} {
		for _, cpu := range []int{2, 8, 32} {
			fmt.Fprintf(&b, "---\nkind: Node\napiVersion: v1\nmetadata: {name: n%d-%s, labels: {topology.kubernetes.io/zone: %s}, "+
				"annotations: {berth.dev/price: %q}}\nstatus: {allocatable: {cpu: %q, memory: %dGi, pods: '110'}}\n",
				cpu, zone, zone, fmt.Sprint(0.05*float64(cpu)), fmt.Sprint(cpu), 4*cpu)
		}
	}
	return catalogOf(t, b.String())
}

// TestSpreadingIsPlanned verifies that all spreading pods get suitable nodes in a few rounds.
func TestSpreadingIsPlanned(t *testing.T) {
	for seed := range uint64(6) {
		w := openWorld(t, spreadingPods(rand.New(rand.NewPCG(seed, 3)), 900))
		rounds := 0
		plan, err := Make(w, zonesCatalog(t), Options{Progress: func(words string) {
			if strings.Contains(words, "nodes for") {
				rounds++
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		checkPlan(t, w, plan)
		t.Logf("seed %d: %d rounds, %.2f, pending %d", seed, rounds, plan.Hour, len(plan.Pending))
		if len(plan.Pending) > 0 {
			t.Errorf("seed %d: %d pods stay pending, such as %+v", seed, len(plan.Pending), plan.Pending[0])
		}
		if rounds > 3 {
			t.Errorf("seed %d: %d rounds", seed, rounds)
		}
	}
}

// TestScoresStrandPods verifies that the result lists pods that stay pending because the
// scheduler's scores put small pods on room planned for large ones, and the additional nodes for
// them. If the pods fill the nodes in any order, the result lists none.
func TestScoresStrandPods(t *testing.T) {
	for large, stranded := range map[string]int{"4": 2, "3": 0} {
		var pods []metav1.Object
		for i, cpu := range []string{"1", "1", "1", "1", large, large} {
			pods = append(pods, &v1.Pod{
				TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("p-", i), Namespace: "default", UID: types.UID(fmt.Sprint("u", i))},
				Spec: v1.PodSpec{SchedulerName: v1.DefaultSchedulerName, Containers: []v1.Container{{Name: "c", Image: "c",
					Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)}}}}},
			})
		}
		catalog := catalogOf(t, "kind: Node\napiVersion: v1\nmetadata: {name: node, annotations: {berth.dev/price: '1'}}\n"+
			"status: {allocatable: {cpu: '4', memory: 64Gi, pods: '110'}}\n")

		plan, err := Make(openWorld(t, pods), catalog, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := plan.Score(openWorld(t, pods), Options{}); err != nil {
			t.Fatal(err)
		}
		s := plan.Scored
		if s.Pending != stranded || len(s.Nodes) != stranded || s.Hour != float64(stranded) || len(s.Left) != 0 {
			t.Errorf("large pods of %s CPUs on %d nodes: %+v; want %d stranded, and as many nodes more", large, len(plan.Nodes), s, stranded)
		}
	}
}

func openWorld(t *testing.T, objects []metav1.Object) *simulate.World {
	t.Helper()
	w, err := simulate.Open(manifest.Assemble("test", objects), simulate.Options{Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func catalogOf(t *testing.T, text string) *Catalog {
	t.Helper()
	file := filepath.Join(t.TempDir(), "catalog.yaml")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	c, err := ReadCatalog([]string{file}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestScoredPlacementIsRepaired verifies that with the additional nodes all pods run, although the
// scheduler chooses the nodes by its scores.
func TestScoredPlacementIsRepaired(t *testing.T) {
	stranded := 0
	for seed := range uint64(4) {
		pods := spreadingPods(rand.New(rand.NewPCG(seed, 5)), 300)
		plan, err := Make(openWorld(t, pods), zonesCatalog(t), Options{})
		if err != nil {
			t.Fatal(err)
		}
		w := openWorld(t, pods)
		if err := plan.Score(w, Options{}); err != nil {
			t.Fatal(err)
		}

		stranded += plan.Scored.Pending
		if len(plan.Scored.Left) > 0 {
			t.Errorf("seed %d: left %+v", seed, plan.Scored.Left)
		}
		for _, f := range w.Each() {
			if f.Pod != nil && f.Pod.NodeName == "" {
				t.Errorf("seed %d: %s stays pending: %s", seed, f.Pod.Name(), f.Message)
			}
		}
	}
	if stranded == 0 {
		t.Error("no pod was left pending by scores: the test shows nothing")
	}
}
