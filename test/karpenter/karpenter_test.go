// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	kwok "sigs.k8s.io/karpenter/kwok/cloudprovider"
	kwokoptions "sigs.k8s.io/karpenter/kwok/options"
	v1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/yaml"
)

func TestPodsAreOfFiveKindsAndOfTheirSeed(t *testing.T) {
	pods := mustMakePods(t, 1003, 42)

	kinds := map[string]int{}
	for _, pod := range pods {
		name, _, _ := strings.Cut(pod.Name, "-0")
		kinds[name]++
	}
	for _, k := range mixes["diverse"] {
		want := 200
		if k.name == generic.name {
			want = 203
		}
		if kinds[k.name] != want {
			t.Errorf("%d pods are %s, want %d", kinds[k.name], k.name, want)
		}
	}
	// These are the first pods that Karpenter's benchmark draws with its seed, 42.
	for i, want := range []string{"f 500m 512Mi", "b 1 256Mi", "g 250m 512Mi"} {
		requests := pods[i].Spec.Containers[0].Resources.Requests
		got := strings.Join([]string{pods[i].Labels["my-label"], requests.Cpu().String(), requests.Memory().String()}, " ")
		if got != want {
			t.Errorf("pod %d is %s, want %s", i, got, want)
		}
	}
	sameLabel := func(a, b *corev1.Pod) bool { return a.Labels["my-label"] == b.Labels["my-label"] }
	if slices.EqualFunc(pods, mustMakePods(t, 1003, 7), sameLabel) {
		t.Error("seeds 42 and 7 give the same labels")
	}
}

// TestKwokReadsTheTypes verifies that Karpenter's kwok provider reads the same types, with the same
// allocatable resources and prices, from the file.
func TestKwokReadsTheTypes(t *testing.T) {
	dir := writeTestWorld(t, 50)

	ctx := kwokoptions.ToContext(context.Background(), &kwokoptions.Options{InstanceTypesFilePath: filepath.Join(dir, typesFile)})
	read, err := kwok.ConstructInstanceTypes(ctx)
	if err != nil {
		t.Fatal(err)
	}

	types := instanceTypes()
	if len(read) != len(types) {
		t.Fatalf("%d types are read, want %d", len(read), len(types))
	}
	for i, want := range types {
		got := read[i]
		for name, much := range want.Allocatable() {
			if room := got.Allocatable()[name]; room.Cmp(much) != 0 {
				t.Errorf("%s has %s of %s, want %s", got.Name, room.String(), name, much.String())
			}
		}
		if len(got.Offerings) != 5 || got.Name != want.Name {
			t.Errorf("%s has %d offerings, want 5 of %s", got.Name, len(got.Offerings), want.Name)
		}
		for j, offering := range got.Offerings {
			w := want.Offerings[j]
			if offering.Price != w.Price || offering.Zone() != w.Zone() || offering.CapacityType() != w.CapacityType() {
				t.Errorf("%s is offered in %s at %v, want %s at %v", got.Name, offering.Zone(), offering.Price, w.Zone(), w.Price)
			}
		}
	}
}

func TestManifestsAreWhatIsScheduled(t *testing.T) {
	dir, pods := writeTestWorld(t, 50), mustMakePods(t, 50, 42)

	for i, text := range documents(t, filepath.Join(dir, podsFile)) {
		var read corev1.Pod
		if err := yaml.UnmarshalStrict([]byte(text), &read); err != nil {
			t.Fatal(err)
		}
		want := pods[i].DeepCopy()
		want.UID, want.CreationTimestamp = "", read.CreationTimestamp
		if got, want := encode(t, read), encode(t, want); got != want {
			t.Errorf("pod %d is %s, want %s", i, got, want)
		}
	}

	var pool v1.NodePool
	if err := yaml.UnmarshalStrict([]byte(documents(t, filepath.Join(dir, nodePoolsFile))[0]), &pool); err != nil {
		t.Fatal(err)
	}
	if got, want := encode(t, pool.Spec), encode(t, nodePool().Spec); got != want {
		t.Errorf("the NodePool has %s, want %s", got, want)
	}
}

func TestPlanHoldsAndCostsWhatItsNodesDo(t *testing.T) {
	pods := mustMakePods(t, 200, 42)
	p := solveForTest(t, pods)

	if err := p.check(pods); err != nil {
		t.Error(err)
	}
	if p.pending != 0 || len(p.nodes) < 40 {
		t.Errorf("%d pods are pending and %d nodes are launched; 40 pods cannot share a node", p.pending, len(p.nodes))
	}
	// The price is 0.1 per CPU and 0.1 per 1e9 bytes, in all zones.
	cost := 0.0
	for _, n := range p.nodes {
		cost += 0.1*n.Capacity.Cpu().AsApproximateFloat64() + 0.1e-9*n.Capacity.Memory().AsApproximateFloat64()
	}
	if d := cost - p.cost; d > 1e-6 || d < -1e-6 {
		t.Errorf("the plan costs %v, want %v", p.cost, cost)
	}
}

func TestCheckFindsWhatDoesNotHold(t *testing.T) {
	pods := mustMakePods(t, 200, 42)
	alone := slices.IndexFunc(pods, func(p *corev1.Pod) bool { return p.Labels["app"] == "nginx" })
	for name, c := range map[string]struct {
		spoil func(p *plan)
		want  string
	}{
		"a node that is too small": {func(p *plan) {
			p.nodes[0].Capacity = corev1.ResourceList{"cpu": resource.MustParse("150m")}
		}, "are left"},
		"a pod in two places": {func(p *plan) { p.nodes[1].pods = append(p.nodes[1].pods, p.nodes[0].pods[0]) }, "has two nodes"},
		"a pod that is lost":  {func(p *plan) { p.nodes[0].pods = p.nodes[0].pods[1:] }, "199 pods placed and 0 pending of 200"},
		"two that exclude each other": {func(p *plan) {
			for i := range p.nodes[:2] {
				p.nodes[i].pods = append(p.nodes[i].pods, pods[alone])
			}
			p.nodes[0].pods = append(p.nodes[0].pods, pods[alone])
		}, "pods with app=nginx are on node 0"},
	} {
		t.Run(name, func(t *testing.T) {
			p := solveForTest(t, pods)
			c.spoil(&p)
			if err := p.check(pods); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("check says %v, want %q", err, c.want)
			}
		})
	}
}

func TestReportSaysWhatRunsTook(t *testing.T) {
	var out bytes.Buffer
	if err := (settings{counts: "50", seed: 42, mix: "diverse", times: 2, warmUp: true, output: "json"}).run(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	var r report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Runs) != 2 || r.Nodes < 10 || r.CostPerHour <= 0 || r.Seconds <= 0 || r.PeakMiB <= 0 {
		t.Errorf("the report is %s", out.String())
	}
	for _, run := range r.Runs {
		if run.CostPerHour < r.CostPerHour {
			t.Errorf("a run costs %v, less than the cheapest, %v", run.CostPerHour, r.CostPerHour)
		}
	}
}

func mustMakePods(t *testing.T, count int, seed int64) []*corev1.Pod {
	t.Helper()
	pods, err := makePods("diverse", count, seed)
	if err != nil {
		t.Fatal(err)
	}
	return pods
}

func writeTestWorld(t *testing.T, count int) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := writeWorld(dir, mustMakePods(t, count, 42), nodePool(), instanceTypes()); err != nil {
		t.Fatal(err)
	}
	return dir
}

func solveForTest(t *testing.T, pods []*corev1.Pod) plan {
	t.Helper()
	results, _, err := solve(t.Context(), pods, nodePool(), instanceTypes())
	if err != nil {
		t.Fatal(err)
	}
	p, err := newPlan(results)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func documents(t *testing.T, path string) []string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(string(text), "---\n")[1:]
}

func encode(t *testing.T, object any) string {
	t.Helper()
	text, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
