// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// plainMerge merges by comparing all pairs, like kube-apiserver.
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

// TestLargePodsAreAdmittedInProportionalTime verifies that the processor time for a pod grows about
// in proportion to its size. The limit is generous, because on a busy machine, caches are less
// effective for the large pod.
func TestLargePodsAreAdmittedInProportionalTime(t *testing.T) {
	small, large := processorTimeOfAdmission(t, 2_000), processorTimeOfAdmission(t, 16_000)
	t.Logf("4,000 tolerations take %s, 32,000 take %s", small, large)
	if large > 30*small { // quadratic work takes 64 times as long
		t.Errorf("eight times as many tolerations take %.1f times as long", float64(large)/float64(small))
	}
}

// processorTimeOfAdmission returns the lowest of five measurements of creating and updating a pod
// with twice the given number of tolerations.
func processorTimeOfAdmission(t *testing.T, many int) time.Duration {
	t.Helper()
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

	runtime.LockOSThread() // processor time is measured per thread
	defer runtime.UnlockOSThread()
	lowest := time.Hour
	for range 5 {
		created, updated := pod.DeepCopy(), pod.DeepCopy()
		updated.Spec.Tolerations = slices.Concat(updated.Spec.Tolerations, tolerations)
		began := processorTimeOfThread(t)
		if err := Pod(config, &Catalog{}, created); err != nil {
			t.Fatal(err)
		}
		if err := Change(config, &Catalog{}, updated, pod); err != nil {
			t.Fatal(err)
		}
		if err := Judge(config, &Catalog{}, updated, pod); err != nil {
			t.Fatal(err)
		}
		lowest = min(lowest, processorTimeOfThread(t)-began)
	}
	return lowest
}

// processorTimeOfThread returns the processor time of the calling thread.
func processorTimeOfThread(t *testing.T) time.Duration {
	t.Helper()
	const ofThread = 1 // RUSAGE_THREAD
	var used syscall.Rusage
	if err := syscall.Getrusage(ofThread, &used); err != nil {
		t.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
