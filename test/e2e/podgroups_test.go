// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"path/filepath"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestAGangIsPlacedWholeOrNotAtAll verifies that berth up, with the feature gates of pod groups,
// serves their API. While filler pods leave room for only two members, a gang of three must stay
// unbound with a message. After a filler pod is deleted, the gang must be bound completely, and its
// PodGroup must be reported as scheduled. The Job controller must create a gang for an Indexed Job.
func TestAGangIsPlacedWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	c := start(t, filepath.Join(t.TempDir(), "gang"), "--nodes", "3", "--ui-port", "-1",
		"--feature-gates", "GenericWorkload=true,WorkloadWithJob=true")
	nodes, err := c.client.CoreV1().Nodes().List(background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	most := nodes.Items[0].Status.Allocatable.Cpu().MilliValue() * 6 / 10 // only one pod with this request fits on a node
	create := func(name, group string) {
		t.Helper()
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PodSpec{Containers: []v1.Container{{
			Name: "c", Image: "i",
			Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: *resource.NewMilliQuantity(most, resource.DecimalSI)}},
		}}}}
		if group != "" {
			p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: &group}
		}
		eventually(t, patience, func() error { // the ServiceAccount may not exist yet
			_, err := c.client.CoreV1().Pods("default").Create(background(), p, metav1.CreateOptions{})
			return err
		})
	}
	placed := func(selected ...string) (n int) {
		for _, name := range selected {
			if p, err := c.client.CoreV1().Pods("default").Get(background(), name, metav1.GetOptions{}); err == nil && p.Spec.NodeName != "" {
				n++
			}
		}
		return n
	}
	create("filler", "")
	eventually(t, patience, func() error { return differ(placed("filler"), 1) })

	groups := c.client.SchedulingV1beta1().PodGroups("default")
	gang := &schedulingv1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{Name: "gang"}}
	gang.Spec.SchedulingPolicy.Gang = &schedulingv1beta1.GangSchedulingPolicy{MinCount: 3}
	if _, err := groups.Create(background(), gang, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	scheduled := func(want metav1.ConditionStatus) error {
		g, err := groups.Get(background(), "gang", metav1.GetOptions{})
		if err != nil {
			return err
		}
		condition := meta.FindStatusCondition(g.Status.Conditions, schedulingv1beta1.PodGroupInitiallyScheduled)
		if condition == nil || condition.Status != want {
			return fmt.Errorf("PodGroupInitiallyScheduled is %v, want %s", condition, want)
		}
		t.Logf("%s: %s", condition.Reason, condition.Message)
		return nil
	}
	members := []string{"gang-0", "gang-1", "gang-2"}
	for _, name := range members {
		create(name, "gang")
	}
	eventually(t, patience, func() error { return scheduled(metav1.ConditionFalse) })
	if n := placed(members...); n != 0 {
		t.Errorf("%d pods of the gang are bound though only two fit", n)
	}
	if err := c.client.CoreV1().Pods("default").Delete(background(), "filler", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
		t.Fatal(err)
	}
	eventually(t, patience, func() error { return differ(placed(members...), 3) })
	eventually(t, patience, func() error { return scheduled(metav1.ConditionTrue) })

	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "trained"}, Spec: batchv1.JobSpec{
		CompletionMode: new(batchv1.IndexedCompletion), Completions: new(int32(3)), Parallelism: new(int32(3)),
		Template: v1.PodTemplateSpec{Spec: v1.PodSpec{RestartPolicy: v1.RestartPolicyNever, Containers: []v1.Container{{Name: "c", Image: "i"}}}},
		Scheduling: &batchv1.JobSchedulingConfiguration{SchedulingPolicy: &schedulingv1alpha3.WorkloadPodGroupSchedulingPolicy{
			Gang: &schedulingv1alpha3.WorkloadPodGroupGangSchedulingPolicy{},
		}},
	}}
	if _, err := c.client.BatchV1().Jobs("default").Create(background(), job, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, patience, func() error {
		list, err := groups.List(background(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range list.Items {
			if g := &list.Items[i]; g.Name != "gang" && g.Spec.SchedulingPolicy.Gang != nil &&
				meta.IsStatusConditionTrue(g.Status.Conditions, schedulingv1beta1.PodGroupInitiallyScheduled) {
				return nil
			}
		}
		return fmt.Errorf("no group of the Job is scheduled: %+v", list.Items)
	})
}

func differ(got, want int) error {
	if got != want {
		return fmt.Errorf("%d pods are placed, want %d", got, want)
	}
	return nil
}
