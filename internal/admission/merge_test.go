package admission

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// plainMerge merges by comparing all pairs, as kube-apiserver does.
func plainMerge(first, second []v1.Toleration) []v1.Toleration {
	all := slices.Concat(first, second)
	var merged []v1.Toleration
	for i := range all {
		t := &all[i]
		redundant := plainCovered(t, merged)
		for j := i + 1; j < len(all) && !redundant; j++ {
			redundant = !apiequality.Semantic.DeepEqual(t, &all[j]) && plainCovers(&all[j], t)
		}
		if !redundant {
			merged = append(merged, *t)
		}
	}
	return merged
}

func plainCovered(t *v1.Toleration, list []v1.Toleration) bool {
	return slices.ContainsFunc(list, func(wide v1.Toleration) bool { return plainCovers(&wide, t) })
}

// plainCovers is kube-apiserver's isSuperset.
func plainCovers(wide, t *v1.Toleration) bool {
	if apiequality.Semantic.DeepEqual(wide, t) {
		return true
	}
	if wide.Key != t.Key && !(wide.Key == "" && wide.Operator == v1.TolerationOpExists) {
		return false
	}
	if wide.Effect != t.Effect && wide.Effect != "" {
		return false
	}
	if wide.Effect == v1.TaintEffectNoExecute && wide.TolerationSeconds != nil &&
		(t.TolerationSeconds == nil || *t.TolerationSeconds > *wide.TolerationSeconds) {
		return false
	}
	switch wide.Operator {
	case v1.TolerationOpExists:
		return true
	case v1.TolerationOpEqual, "":
		return t.Operator == v1.TolerationOpEqual && t.Value == wide.Value
	}
	return false
}

func drawTolerations(r *rand.Rand, most int) (list []v1.Toleration) {
	for range r.IntN(most) {
		t := v1.Toleration{
			Key: []string{"", "a", "b"}[r.IntN(3)], Value: []string{"", "x", "y"}[r.IntN(3)],
			Operator: []v1.TolerationOperator{"", v1.TolerationOpExists, v1.TolerationOpEqual, v1.TolerationOpGt}[r.IntN(4)],
			Effect:   []v1.TaintEffect{"", v1.TaintEffectNoExecute, v1.TaintEffectNoSchedule}[r.IntN(3)],
		}
		if r.IntN(2) == 0 {
			t.TolerationSeconds = new(int64(r.IntN(3)))
		}
		list = append(list, t)
	}
	return list
}

func TestMergesAgreeWithThoseOfAllPairs(t *testing.T) {
	for seed := range uint64(100_000) {
		r := rand.New(rand.NewPCG(seed, 7))
		first, second := drawTolerations(r, 7), drawTolerations(r, 7)
		if got, want := mergeTolerations(first, second), plainMerge(first, second); !apiequality.Semantic.DeepEqual(got, want) {
			t.Fatalf("seed %d: %v and %v:\n%v\nexpected\n%v", seed, first, second, got, want)
		}
		set := newTolerationSet(first)
		for i := range second {
			if got, want := set.covers(&second[i]), plainCovered(&second[i], first); got != want {
				t.Fatalf("seed %d: %v covers %v: %v, expected %v", seed, first, second[i], got, want)
			}
		}
	}
}

// TestLargePodsAreAdmittedInProportionalTime verifies that the rules take less than a second for
// pods of 30,000 tolerations and extended resources, under an allow-list as long. Comparing all
// pairs takes minutes.
func TestLargePodsAreAdmittedInProportionalTime(t *testing.T) {
	const many = 30_000
	var tolerations []v1.Toleration
	requests := v1.ResourceList{}
	for i := range many {
		tolerations = append(tolerations, v1.Toleration{
			Key: fmt.Sprint("example.com/", i), Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoSchedule, TolerationSeconds: new(int64(i)),
		})
		requests[v1.ResourceName(fmt.Sprint("example.com/other-", i))] = resource.MustParse("1")
	}
	allowed := append(slices.Clone(tolerations), v1.Toleration{Key: "last", Operator: v1.TolerationOpExists})
	for i := range many {
		allowed = append(allowed, v1.Toleration{Key: fmt.Sprint("example.com/other-", i), Operator: v1.TolerationOpExists})
	}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "large"}}
	pod.Spec.Tolerations = slices.Concat(tolerations, tolerations)
	pod.Spec.Containers = []v1.Container{{Name: "c", Resources: v1.ResourceRequirements{Requests: requests}}}
	config := Config{AfterAPIServer: true, DefaultTolerations: tolerations, AllowedTolerations: append(allowed,
		v1.Toleration{Key: v1.TaintNodeNotReady, Operator: v1.TolerationOpExists}, v1.Toleration{Key: v1.TaintNodeUnreachable, Operator: v1.TolerationOpExists},
		v1.Toleration{Key: v1.TaintNodeMemoryPressure, Operator: v1.TolerationOpExists})}

	fastest := time.Hour
	for range 3 { // a busy machine delays some attempts, not all
		created, updated := pod.DeepCopy(), pod.DeepCopy()
		updated.Spec.Tolerations = slices.Concat(updated.Spec.Tolerations, tolerations)
		began := time.Now()
		if err := Pod(config, &Catalog{}, created); err != nil {
			t.Fatal(err)
		}
		if err := Change(config, &Catalog{}, updated, pod); err != nil {
			t.Fatal(err)
		}
		if err := Judge(config, &Catalog{}, updated, pod); err != nil {
			t.Fatal(err)
		}
		fastest = min(fastest, time.Since(began))
	}
	t.Logf("%d tolerations in %s", len(pod.Spec.Tolerations), fastest)
	if fastest > 5*time.Second {
		t.Errorf("%d tolerations took %s", len(pod.Spec.Tolerations), fastest)
	}
}
