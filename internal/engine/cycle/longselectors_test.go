// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"flag"
	"fmt"
	"strconv"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	. "github.com/berth-k8s/berth/internal/engine/cycle"
)

var longSelectors = flag.Int("long-selectors", 8, "objects of each kind with a long selector in TestLongSelectorsHoldNobodyUp")

// longSelector returns a selector of about the maximum length for an object.
func longSelector(of string, which int) *metav1.LabelSelector {
	values, prefix := make([]string, 150_000), fmt.Sprint(of, which, "-")
	for i := range values {
		values[i] = prefix + strconv.Itoa(i)
	}
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpNotIn, Values: values}}}
}

// wideSelector returns a selector with the maximum number of requirements for an object.
func wideSelector(which int) *metav1.LabelSelector {
	s := &metav1.LabelSelector{}
	for i := range 30_000 {
		s.MatchExpressions = append(s.MatchExpressions, metav1.LabelSelectorRequirement{Key: fmt.Sprint("k-", which, "-", i), Operator: metav1.LabelSelectorOpDoesNotExist})
	}
	return s
}

// TestLongSelectorsHoldNobodyUp verifies that a selector with 150,000 values or 30,000
// requirements, in any field a tenant can write, does not delay another tenant's ordinary pod or
// the processing of events.
func TestLongSelectorsHoldNobodyUp(t *testing.T) {
	measuresTime(t)
	for name, selector := range map[string]func(int) *metav1.LabelSelector{"values": func(which int) *metav1.LabelSelector { return longSelector("", which) }, "requirements": wideSelector} {
		c := newCrowd(t) // a new core, since stored objects accumulate
		for i, where := range []struct {
			name  string
			store func(c *crowd)
		}{
			{"a pending pod with claims", func(c *crowd) { c.longClaims(selector) }},
			{"budgets", func(c *crowd) { c.longBudgets(selector) }},
			{"placed pods", func(c *crowd) {
				for i := range *longSelectors {
					pod := withLongTerm(fmt.Sprint("placed-", i), selector(i))
					pod.Spec.NodeName = fmt.Sprint("node-", i)
					c.tell(Seen{Pods, pod})
				}
			}},
			{"pending pods", func(c *crowd) {
				for i := range *longSelectors {
					c.tell(Seen{Pods, withLongTerm(fmt.Sprint("pending-", i), selector(i))})
					c.tell(Tick{})
				}
			}},
		} {
			t.Run(name+" of "+where.name, func(t *testing.T) {
				c.T = t
				where.store(c)

				took, _ := c.attempt(fmt.Sprint("ordinary-", i), holdsTheLoop/2, func(pod *v1.Pod) { pod.Namespace = "other" })

				const events = 200
				tookAll := timeOf(t, func() {
					for i := range events {
						pod := aPod(fmt.Sprint("event-", where.name, i), "100m")
						pod.Namespace, pod.Spec.NodeName = "other", fmt.Sprint("node-", i)
						pod.Labels = map[string]string{"app": fmt.Sprint("event-", i%10)}
						c.tell(Seen{Pods, pod})
					}
				})
				if each := tookAll / events; each > time.Millisecond {
					t.Errorf("an event took %v of processor time, want no more than a millisecond", each)
				} else {
					t.Log("the attempt took", took, "and an event", each)
				}
			})
		}
	}
}

// withLongTerm returns a tenant's pod with an anti-affinity term that has this selector.
func withLongTerm(name string, selector *metav1.LabelSelector) *v1.Pod {
	pod := aPod(name, "100m")
	pod.Namespace, pod.Labels = "tenant", map[string]string{"app": name}
	pod.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{
		{TopologyKey: v1.LabelHostname, LabelSelector: selector, NamespaceSelector: &metav1.LabelSelector{}},
	}}}
	return pod
}

func (c *crowd) longBudgets(selector func(int) *metav1.LabelSelector) {
	for i := range *longSelectors {
		name := fmt.Sprint("b-", i)
		c.tell(Seen{DisruptionBudgets, &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: name, UID: types.UID(name)},
			Spec:       policyv1.PodDisruptionBudgetSpec{Selector: selector(i)},
		}})
	}
	for i := range crowdNodes { // potential victims that the selectors may match
		pod := aPod(fmt.Sprint("covered-", i), "100m")
		pod.Namespace, pod.Labels = "tenant", map[string]string{"app": fmt.Sprint("covered-", i%10)}
		pod.Spec.Priority, pod.Spec.NodeName = new(int32(-20)), fmt.Sprint("node-", i)
		c.tell(Seen{Pods, pod})
	}
}

// longClaims adds a pod waiting for 20 claims that select among a thousand volumes.
func (c *crowd) longClaims(selector func(int) *metav1.LabelSelector) {
	later, class := storagev1.VolumeBindingWaitForFirstConsumer, "local"
	c.tell(Seen{StorageClasses, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: &later}})
	for i := range 1000 {
		c.tell(Seen{Volumes, &v1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("v-", i), Labels: map[string]string{"app": "v"}},
			Spec: v1.PersistentVolumeSpec{StorageClassName: class, Capacity: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")},
				AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}},
			Status: v1.PersistentVolumeStatus{Phase: v1.VolumeAvailable},
		}})
	}
	pod := aPod("claiming", "100m")
	pod.Namespace = "tenant"
	for i := range 20 {
		name := fmt.Sprint("claim-", i)
		c.tell(Seen{Claims, &v1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: name, UID: types.UID(name)},
			Spec: v1.PersistentVolumeClaimSpec{AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, StorageClassName: &class, Selector: selector(i),
				Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}}},
		}})
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: name, VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name}}})
	}
	c.tell(Seen{Pods, pod})

	if took := timeOf(c.T, func() { c.tell(Tick{}) }); took > holdsTheLoop/2 {
		c.Errorf("the attempt at the pod with the claims took %v of processor time, want no more than %v", took, holdsTheLoop/2)
	}
	c.now = c.now.Add(20 * time.Second)
}
