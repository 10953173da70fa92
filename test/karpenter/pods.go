// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"math/rand"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// kind is a kind of pods in Karpenter's benchmark.
type kind struct {
	name string
	// shape adds labels and constraints to a pod.
	shape func(d *dice, pod *corev1.Pod)
}

// generic pods also make up the remainder if the number of pods is not divisible by the number of
// kinds.
var generic = kind{"generic", func(d *dice, pod *corev1.Pod) { pod.Labels = d.labels() }}

// mixes lists kinds of pods with equal shares. The mix "diverse" is from Karpenter's benchmark.
var mixes = map[string][]kind{
	"generic": {generic},
	"diverse": {
		generic,
		{"zone-spread", spread(corev1.LabelTopologyZone)},
		{"hostname-spread", spread(corev1.LabelHostname)},
		{"zone-affinity", zoneAffinity},
		{"hostname-anti-affinity", hostnameAntiAffinity},
	},
}

// makePods generates pods like Karpenter's benchmark: kind after kind, with draws in the same
// order, so that a seed yields the same pods.
func makePods(mix string, count int, seed int64) ([]*corev1.Pod, error) {
	kinds := mixes[mix]
	if kinds == nil {
		return nil, fmt.Errorf("-mix %q: no such mix; there are %s", mix, strings.Join(slices.Sorted(maps.Keys(mixes)), ", "))
	}
	d := &dice{rand.New(rand.NewSource(seed))}

	pods := make([]*corev1.Pod, 0, count)
	for _, k := range kinds {
		for range count / len(kinds) {
			pods = append(pods, d.pod(k, len(pods)))
		}
	}
	for len(pods) < count {
		pods = append(pods, d.pod(generic, len(pods)))
	}
	return pods, nil
}

// dice draws the properties of pods.
type dice struct{ *rand.Rand }

// created is the creation time of the first pod. Later pods are created later, because Karpenter
// considers pods with equal requests in the order of their creation. In its benchmark, each pod is
// some nanoseconds younger than the previous one.
var created = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func (d *dice) pod(k kind, number int) *corev1.Pod {
	pod := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Name:              fmt.Sprintf("%s-%05d", k.name, number),
			Namespace:         metav1.NamespaceDefault,
			UID:               types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", number)),
			CreationTimestamp: metav1.NewTime(created.Add(time.Duration(number) * time.Microsecond)),
		},
		Spec: corev1.PodSpec{
			SchedulerName: corev1.DefaultSchedulerName,
			Containers:    []corev1.Container{{Name: "main", Image: "registry.k8s.io/pause:3.10"}},
		},
	}

	k.shape(d, pod)
	pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse(d.oneOf("100m", "250m", "500m", "1000m", "1500m")),
		corev1.ResourceMemory: resource.MustParse(d.oneOf("100Mi", "256Mi", "512Mi", "1024Mi", "2048Mi", "4096Mi")),
	}
	return pod
}

func (d *dice) oneOf(values ...string) string { return values[d.Intn(len(values))] }

func (d *dice) letter() string { return d.oneOf("a", "b", "c", "d", "e", "f", "g") }

func (d *dice) labels() map[string]string { return map[string]string{"my-label": d.letter()} }

// spread returns a shape with a spread constraint. As in Karpenter's benchmark, the labels of the
// pod and of the selector are drawn independently, so the constraint may not select its own pod.
func spread(key string) func(*dice, *corev1.Pod) {
	return func(d *dice, pod *corev1.Pod) {
		pod.Labels = d.labels()
		pod.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew:           1,
			TopologyKey:       key,
			WhenUnsatisfiable: corev1.DoNotSchedule,
			LabelSelector:     &metav1.LabelSelector{MatchLabels: d.labels()},
		}}
	}
}

// zoneAffinity adds an affinity to the zone of the pods with the same label. The first of these
// pods fits in any zone.
func zoneAffinity(d *dice, pod *corev1.Pod) {
	pod.Labels = map[string]string{"my-affininity": d.letter()} // spelled like this in Karpenter's benchmark
	pod.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: ownTerms(pod, corev1.LabelTopologyZone),
	}}
}

func hostnameAntiAffinity(_ *dice, pod *corev1.Pod) {
	pod.Labels = map[string]string{"app": "nginx"}
	pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: ownTerms(pod, corev1.LabelHostname),
	}}
}

func ownTerms(pod *corev1.Pod, key string) []corev1.PodAffinityTerm {
	return []corev1.PodAffinityTerm{{LabelSelector: &metav1.LabelSelector{MatchLabels: pod.Labels}, TopologyKey: key}}
}
