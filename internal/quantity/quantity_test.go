// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package quantity

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// TestParseIsUpstreams verifies that Parse returns the same errors, values and formats as
// upstream's parser for random texts, up to the bound.
func TestParseIsUpstreams(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	digits := func() string {
		n := []int{0, 1, 2, 18, 19, 20, 300, 399, 400, 401, 450, 800}[r.IntN(12)]
		if r.IntN(3) == 0 {
			return strings.Repeat("0", n)
		}
		text := make([]byte, n)
		for i := range text {
			text[i] = '0' + byte(r.IntN(10)*r.IntN(2))
		}
		return string(text)
	}
	suffixes := []string{"", "n", "m", "k", "E", "Ki", "Ei", "x", "e", "e-", "E+3", "e3", "e-3", "e-9", "e-12", "e-450", "e-999", "e-1500",
		"e200", "e269", "e270", "e271", "e450", "e999", "e1500", "e4294967299", "e99999999999999999999", ".5", "-1", "e1.5", "e 1"}
	for range 200_000 {
		text := []string{"", "-", "+", "--"}[r.IntN(40)/13] + digits() + []string{"", "."}[r.IntN(2)] + digits() + suffixes[r.IntN(len(suffixes))]
		want, wantErr := resource.ParseQuantity(text)
		got, err := Parse(text)
		if fmt.Sprint(err) != fmt.Sprint(wantErr) {
			t.Fatalf("%q: error %v, upstream's %v", text, err, wantErr)
		}
		if err != nil {
			continue
		}
		switch limit := resource.MustParse("1e270"); {
		case want.Cmp(limit) > 0:
			want = limit
		case want.Sign() < 0 && want.CmpInt64(0) < 0:
			if limit.Neg(); want.Cmp(limit) < 0 {
				want = limit
			}
		}
		for _, quantity := range []*resource.Quantity{&got, &want} { // negating twice drops the cached text
			quantity.Neg()
			quantity.Neg()
		}
		if got.Cmp(want) != 0 || got.String() != want.String() {
			t.Fatalf("%q is %s, upstream's is %s", text, got.String(), want.String())
		}
	}
}

// hugeQuantities take upstream's parser or comparison from 100 ms to forever.
var hugeQuantities = []string{"1e60000000", "-1e60000000", "1e2147483647", "1e-2000000000", "12345678901234567890e60000000", "0e2000000000",
	"0.12345678901234567890e60000000", strings.Repeat("9", 1_000_000), "0." + strings.Repeat("1", 1_000_000), strings.Repeat("0", 1_000_000) + "Ki"}

// TestHugeQuantitiesAreCheap verifies that the time to parse and use a quantity depends only on its
// length.
func TestHugeQuantitiesAreCheap(t *testing.T) {
	began := time.Now()
	for _, text := range hugeQuantities {
		quantity, err := Parse(text)
		if err != nil {
			t.Errorf("%.30s: %v", text, err)
		}
		use(quantity)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("%v for %d quantities", took, len(hugeQuantities))
	}
}

// use performs every operation used on quantities.
func use(quantity resource.Quantity) {
	one := resource.MustParse("1.5")
	quantity.Cmp(one)
	quantity.CmpInt64(7)
	quantity.Value()
	quantity.MilliValue()
	quantity.AsInt64()
	quantity.AsFloat64Slow()
	_ = quantity.String()
	one.Add(quantity)
	one.Sub(quantity)
	one.Sub(quantity)
	_ = one.String()
	_ = quantity.AsDec().String()
}

// TestQuantitiesOfObjectsAreBounded verifies that a copy of an object has all quantities bounded,
// at any depth, and that an ordinary object is returned itself.
func TestQuantitiesOfObjectsAreBounded(t *testing.T) {
	huge, zero := resource.MustParse("-1e60000000"), resource.MustParse("0e2000000000")
	pod := &v1.Pod{Spec: v1.PodSpec{
		Overhead: v1.ResourceList{"cpu": huge, "memory": resource.MustParse("1Gi")},
		Volumes:  []v1.Volume{{VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{SizeLimit: &zero}}}},
	}}
	pod.Spec.InitContainers = []v1.Container{{Resources: v1.ResourceRequirements{Limits: v1.ResourceList{"cpu": huge}}}}
	bounded := BoundAll(pod)
	for what, quantity := range map[string]resource.Quantity{"the overhead": bounded.Spec.Overhead["cpu"],
		"the limit": bounded.Spec.InitContainers[0].Resources.Limits["cpu"]} {
		if quantity.String() != "-1e270" {
			t.Errorf("%s is %s, want -1e270", what, quantity.String())
		}
	}
	if kept, limit := bounded.Spec.Overhead["memory"], bounded.Spec.Volumes[0].EmptyDir.SizeLimit; kept.String() != "1Gi" || limit.String() != "0" {
		t.Errorf("the memory is %s, want 1Gi; the size %s, want 0", kept.String(), limit.String())
	}
	if left := pod.Spec.Overhead["cpu"]; !left.Equal(huge) {
		t.Errorf("the original object was changed: %s", left.String())
	}
	if again := BoundAll(bounded); again != bounded {
		t.Error("an object without a huge quantity was copied")
	}

	claim := &resourcev1.ResourceClaim{Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
		FirstAvailable: []resourcev1.DeviceSubRequest{{Capacity: &resourcev1.CapacityRequirements{
			Requests: map[resourcev1.QualifiedName]resource.Quantity{"memory": resource.MustParse("1e60000000")}}}}}}}}}
	if got := BoundAll(claim).Spec.Devices.Requests[0].FirstAvailable[0].Capacity.Requests["memory"]; got.String() != "1e270" {
		t.Errorf("the requested capacity is %s, want 1e270", got.String())
	}
	if got := BoundAll(&v1.ConfigMap{}); got == nil {
		t.Error("an object of a kind without quantities is gone")
	}
}

// TestHugeQuantitiesInJSONAreCheap verifies that pods with costly quantities are decoded quickly,
// in every form the decoder accepts, and that other fields keep their values.
func TestHugeQuantitiesInJSONAreCheap(t *testing.T) {
	began := time.Now()
	decode := func(value string) (pod v1.Pod, err error) {
		err = Unmarshal([]byte(`{"Metadata":{"labels":{"size":"1e60000000"},"generation":12345678901234567},"SPEC":{"containers":[{"name":"a",`+
			`"resources":{"REQUESTS":{"cpu":`+value+`,"memory":"1Gi"}}}],"volumes":[{"name":"v","emptyDir":{"sizeLimit":`+value+`}}]}}`), &pod)
		return pod, err
	}
	for _, text := range hugeQuantities {
		want, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		forms := []string{`"` + text + `"`, `" ` + text + ` "`, `"` + strings.ReplaceAll(text, "e", `\u0065`) + `"`}
		if strings.Contains(text, "e") && !strings.HasPrefix(text, "0e") {
			forms = append(forms, text)
		}
		for _, form := range forms {
			pod, err := decode(form)
			if err != nil {
				t.Fatalf("%.40s: %v", form, err)
			}
			cpu, size := pod.Spec.Containers[0].Resources.Requests["cpu"], pod.Spec.Volumes[0].EmptyDir.SizeLimit
			if cpu.Cmp(want) != 0 || size.Cmp(want) != 0 {
				t.Errorf("%.40s: %s and %s, want %s", form, cpu.String(), size.String(), want.String())
			}
			memory := pod.Spec.Containers[0].Resources.Requests["memory"]
			if pod.Labels["size"] != "1e60000000" || pod.Generation != 12345678901234567 || memory.String() != "1Gi" {
				t.Errorf("%.40s: other fields changed: %v, %d, %s", form, pod.Labels, pod.Generation, memory.String())
			}
		}
	}
	for _, invalid := range []string{`"1e-2000000000x"`, `"x1e999"`, `["1e999"]`, `{"a":"1e999"}`, `"1e999`} {
		if _, err := decode(invalid); err == nil {
			t.Errorf("%s was accepted", invalid)
		}
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("%v for %d quantities", took, len(hugeQuantities))
	}
}

func BenchmarkBoundAll(b *testing.B) {
	pod := &v1.Pod{Spec: v1.PodSpec{Containers: make([]v1.Container, 3)}}
	for i := range pod.Spec.Containers {
		pod.Spec.Containers[i].Resources.Requests = v1.ResourceList{"cpu": resource.MustParse("100m"), "memory": resource.MustParse("1Gi")}
		pod.Spec.Containers[i].Resources.Limits = pod.Spec.Containers[i].Resources.Requests
	}
	for b.Loop() {
		BoundAll(pod)
	}
}
