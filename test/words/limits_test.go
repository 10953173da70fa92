// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package words

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	api "k8s.io/kubernetes/pkg/apis/core"
	corev1 "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/kubernetes/plugin/pkg/admission/limitranger"
	"sigs.k8s.io/yaml"

	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// TestLimitRangesRefuseWhatUpstreamRefuses verifies that package simulate refuses random pods with
// the same messages as upstream's LimitRanger.
func TestLimitRangesRefuseWhatUpstreamRefuses(t *testing.T) {
	refused := 0
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 1))
		limits := randomLimitRange(r)
		pod := &v1.Pod{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
			ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default"},
		}
		for i := range 1 + r.IntN(2) {
			pod.Spec.Containers = append(pod.Spec.Containers, randomContainer(r, fmt.Sprintf("c%d", i)))
		}
		if r.IntN(3) == 0 {
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, randomContainer(r, "i"))
		}
		want := upstreamsLimits(t, limits, pod)
		got, valid := berthsLimits(t, limits, pod)
		if !valid {
			continue // a default request above the container's own limit, which validation refuses before LimitRanger
		}
		if got != want {
			text, _ := yaml.Marshal([]any{limits, pod})
			t.Fatalf("seed %d:\nupstream: %s\nBerth:    %s\n%s", seed, want, got, text)
		}
		if want != "" {
			refused++
		}
	}
	if refused < 100 || refused > 400 {
		t.Errorf("%d of 500 refused: the cases are one-sided", refused)
	}
}

func randomLimitRange(r *rand.Rand) *v1.LimitRange {
	limits := &v1.LimitRange{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "LimitRange"}, ObjectMeta: metav1.ObjectMeta{Name: "l", Namespace: "default"}}
	for _, kind := range []v1.LimitType{v1.LimitTypeContainer, v1.LimitTypePod} {
		item := v1.LimitRangeItem{Type: kind}
		for _, list := range []*v1.ResourceList{&item.Min, &item.Max} {
			if r.IntN(4) == 0 {
				*list = amountOf(r)
			}
		}
		if r.IntN(5) == 0 {
			item.MaxLimitRequestRatio = v1.ResourceList{v1.ResourceCPU: resource.MustParse([]string{"1", "2", "1500m"}[r.IntN(3)])}
		}
		if kind == v1.LimitTypeContainer && r.IntN(3) == 0 {
			item.DefaultRequest = amountOf(r)
		}
		limits.Spec.Limits = append(limits.Spec.Limits, item)
	}
	corev1.SetObjectDefaults_LimitRange(limits)
	return limits
}

func amountOf(r *rand.Rand) v1.ResourceList {
	cpu := []string{"50m", "100m", "200m", "1"}
	memory := []string{"64Mi", "128Mi", "1Gi", "100M"}
	list := v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu[r.IntN(len(cpu))])}
	if r.IntN(2) == 0 {
		list[v1.ResourceMemory] = resource.MustParse(memory[r.IntN(len(memory))])
	}
	return list
}

// randomContainer returns a container that never requests more than its own limit, because the test
// does not compare validation.
func randomContainer(r *rand.Rand, name string) v1.Container {
	c := v1.Container{Name: name, Image: "i"}
	switch r.IntN(4) {
	case 0:
		c.Resources.Requests = amountOf(r)
	case 1:
		c.Resources.Limits = amountOf(r)
	case 2:
		c.Resources.Limits = v1.ResourceList{v1.ResourceCPU: resource.MustParse("400m")}
		c.Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse([]string{"100m", "200m", "400m"}[r.IntN(3)])}
	}
	return c
}

func upstreamsLimits(t *testing.T, limits *v1.LimitRange, pod *v1.Pod) string {
	t.Helper()
	pod = pod.DeepCopy()
	corev1.SetObjectDefaults_Pod(pod)
	var internal api.Pod
	if err := corev1.Convert_v1_Pod_To_core_Pod(pod, &internal, nil); err != nil {
		t.Fatal(err)
	}
	if err := limitranger.PodMutateLimitFunc(limits, &internal); err != nil {
		t.Fatal(err)
	}
	err := limitranger.PodValidateLimitFunc(limits, &internal)
	if err == nil {
		return ""
	}
	return normal(err)
}

// normal formats the errors in sorted order, because upstream reports them in the order of a map.
func normal(err error) string {
	list, ok := err.(utilerrors.Aggregate)
	if !ok {
		return err.Error()
	}
	seen := map[string]bool{}
	var faults []string
	for _, e := range list.Errors() {
		if text := e.Error(); !seen[text] {
			seen[text] = true
			faults = append(faults, text)
		}
	}
	slices.Sort(faults)
	if len(faults) == 1 {
		return faults[0]
	}
	return "[" + strings.Join(faults, ", ") + "]"
}

func berthsLimits(t *testing.T, limits *v1.LimitRange, pod *v1.Pod) (faults string, valid bool) {
	t.Helper()
	var text strings.Builder
	for _, object := range []any{limits, pod} {
		y, err := yaml.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&text, "---\n%s", y)
	}
	set, err := manifest.Read([]string{"-"}, strings.NewReader(text.String()), manifest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := simulate.Run(set, simulate.Options{})
	if err != nil {
		return "", false
	}
	_, faults, _ = strings.Cut(s.Pods[0].Message, "is forbidden: ")
	return faults, true
}
