// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package disruption_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/kubectl/pkg/drain"

	"github.com/berth-k8s/berth/internal/world/disruption"
)

// TestRulingsAreKubectls verifies that the rulings on random pods, with random flags, agree with
// kubectl's own filters.
func TestRulingsAreKubectls(t *testing.T) {
	rulings := map[string]int{}
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 3))
		set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "there"}}
		pods := drawPods(r)
		client := fake.NewClientset(set)
		for _, p := range pods {
			_ = client.Tracker().Add(p)
		}
		selector := []string{"", "app=a", "app!=a"}[r.IntN(3)]
		overdue := []int{0, 0, 60}[r.IntN(3)]
		helper := &drain.Helper{
			Ctx: t.Context(), Client: client, PodSelector: selector, SkipWaitForDeleteTimeoutSeconds: overdue,
			IgnoreAllDaemonSets: r.IntN(2) == 0, DeleteEmptyDirData: r.IntN(2) == 0, Force: r.IntN(2) == 0,
		}
		list, _ := helper.GetPodsForDeletion("node")
		leaves, refused := map[string]bool{}, strings.Join(errorsOf(helper), "\n")
		for _, p := range list.Pods() {
			leaves[p.Name] = true
		}

		parsed, err := labels.Parse(selector)
		if err != nil {
			t.Fatal(err)
		}
		rules := disruption.DrainRules{
			Pods: parsed, IgnoreDaemonSets: helper.IgnoreAllDaemonSets, DeleteEmptyDirData: helper.DeleteEmptyDirData, Force: helper.Force,
			Overdue: time.Duration(overdue) * time.Second,
		}
		for _, p := range pods {
			ruling := rules.Judge(p, time.Now(), func(namespace, name string) disruption.Presence {
				if namespace == set.Namespace && name == set.Name {
					return disruption.There
				}
				return disruption.Gone
			})
			rulings[fmt.Sprintf("%+v", ruling)]++
			if (ruling.Leaves || ruling.Waited) != leaves[p.Name] || ruling.Waited && p.DeletionTimestamp == nil {
				t.Fatalf("seed %d: %s: ruled %+v; to kubectl it leaves: %t\n%+v", seed, p.Name, ruling, leaves[p.Name], p)
			}
			fault, _, _ := strings.Cut(ruling.Fault, " (use --force")
			if ruling.Fault != "" && !strings.Contains(refused, fault) || (ruling.Fault != "") != strings.Contains(refused, "default/"+p.Name) {
				t.Fatalf("seed %d: %s: ruled %+v; kubectl refuses: %s", seed, p.Name, ruling, refused)
			}
		}
	}
	if len(rulings) < 9 {
		t.Errorf("only %d kinds of rulings: the pods are too much alike to show anything: %v", len(rulings), rulings)
	}
}

// errorsOf returns kubectl's messages for refusing to begin.
func errorsOf(helper *drain.Helper) (list []string) {
	_, faults := helper.GetPodsForDeletion("node")
	for _, err := range faults {
		list = append(list, err.Error())
	}
	return list
}

// drawPods creates up to four random pods with the properties examined by kubectl's filters.
func drawPods(r *rand.Rand) (pods []*v1.Pod) {
	owners := []*metav1.OwnerReference{
		nil, {APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web"}, {APIVersion: "apps/v1", Kind: "DaemonSet", Name: "there"},
		{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "gone"}, {APIVersion: "apps.kruise.io/v1alpha1", Kind: "DaemonSet", Name: "gone"},
		{APIVersion: "v1", Kind: "Node", Name: "node"},
	}
	phases := []v1.PodPhase{v1.PodRunning, v1.PodRunning, v1.PodPending, v1.PodSucceeded, v1.PodFailed}
	for i := range 1 + r.IntN(4) {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("p%d", i), Labels: map[string]string{"app": string(rune('a' + r.IntN(2)))}}}
		p.Spec.NodeName, p.Status.Phase = "node", phases[r.IntN(len(phases))]
		if owner := owners[r.IntN(len(owners))]; owner != nil {
			yes := r.IntN(8) > 0
			ref := *owner
			ref.Controller = &yes
			p.OwnerReferences = []metav1.OwnerReference{ref}
		}
		if r.IntN(6) == 0 {
			p.Annotations = map[string]string{v1.MirrorPodAnnotationKey: "x"}
		}
		if r.IntN(3) == 0 {
			p.Spec.Volumes = []v1.Volume{{Name: "scratch", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
		}
		if r.IntN(4) == 0 {
			at := metav1.NewTime(time.Now().Add([]time.Duration{time.Minute, -30 * time.Second, -time.Hour}[r.IntN(3)]))
			p.DeletionTimestamp, p.Finalizers = &at, []string{"example.com/wait"}
		}
		pods = append(pods, p)
	}
	return pods
}
