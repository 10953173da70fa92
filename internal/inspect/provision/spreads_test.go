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

// spreadingPods are pods that spread over zones and over nodes, with selectors for pods that need
// not be like them, among pods that only are counted.
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

// zonesCatalog has three sizes in three zones.
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
	file := filepath.Join(t.TempDir(), "catalog.yaml")
	if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	c, err := ReadCatalog([]string{file})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Pods that spread get nodes that are right for them in a few rounds, and none is left.
func TestSpreadingIsPlanned(t *testing.T) {
	for seed := range uint64(6) {
		w, err := simulate.Open(manifest.Assemble("test", spreadingPods(rand.New(rand.NewPCG(seed, 3)), 900)), simulate.Options{Seed: 1})
		if err != nil {
			t.Fatal(err)
		}
		rounds := 0
		plan, err := Make(w, zonesCatalog(t), Options{Progress: func(words string) {
			if strings.HasPrefix(words, "round") {
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
