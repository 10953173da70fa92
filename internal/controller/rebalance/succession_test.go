// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance_test

import (
	"strconv"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/world"
)

// drainJob plans to drain n0, which has some pods of a Job; n1 is empty.
func drainJob(job batchv1.Job, pods int, deletes bool) (*rebalance.State, *rebalance.Draining) {
	job.ObjectMeta = metav1.ObjectMeta{Namespace: "default", Name: "job", UID: "job"}
	objects := []metav1.Object{&job}
	for _, name := range []string{"n0", "n1"} {
		n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		n.Status.Allocatable = v1.ResourceList{v1.ResourceCPU: resource.MustParse("8"), v1.ResourcePods: resource.MustParse("10")}
		objects = append(objects, n)
	}
	for i := range pods {
		index := strconv.Itoa(i)
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "job-" + index, UID: types.UID("p" + index)}}
		p.Annotations = map[string]string{batchv1.JobCompletionIndexAnnotation: index}
		p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(&job, batchv1.SchemeGroupVersion.WithKind("Job"))}
		p.Spec = v1.PodSpec{NodeName: "n0", SchedulerName: v1.DefaultSchedulerName, Containers: []v1.Container{{Name: "c"}}}
		p.Status.Phase = v1.PodRunning
		objects = append(objects, p)
	}
	state := &rebalance.State{AsOf: time.Unix(0, 0), World: world.Open(objects)}
	leaving := &rebalance.Leaving{Nodes: []string{"n0"}, Delete: deletes}
	return state, rebalance.PlanDrain(state, leaving, rebalance.Options{Profiles: []*plugins.Profile{plugins.Default()}})
}

// TestAJobThatReplacesNothing verifies that a drained pod is lost, and gets no successor, if its
// Job does not replace pods.
func TestAJobThatReplacesNothing(t *testing.T) {
	over := []batchv1.JobCondition{{Type: batchv1.JobFailureTarget, Status: v1.ConditionTrue}}
	for name, c := range map[string]struct {
		job  batchv1.Job
		lost bool
	}{
		"runs":       {batchv1.Job{Spec: batchv1.JobSpec{Completions: ptr.To[int32](2)}}, false},
		"suspended":  {batchv1.Job{Spec: batchv1.JobSpec{Suspend: ptr.To(true)}}, true},
		"over":       {batchv1.Job{Status: batchv1.JobStatus{Conditions: over}}, true},
		"work queue": {batchv1.Job{Status: batchv1.JobStatus{Succeeded: 1}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			_, plan := drainJob(c.job, 1, false)
			if len(plan.Pods) != 1 || plan.Pods[0].Lost != c.lost || (plan.Pods[0].To == "n1") == c.lost {
				t.Errorf("%+v", plan.Pods)
			}
		})
	}
}

// TestADepartureThatFailsAJob verifies that a pod gets no successor if its departure fails its Job,
// or its index of the Job. No pod of a failed Job gets a successor, regardless of the order.
func TestADepartureThatFailsAJob(t *testing.T) {
	failed := func(n int32) batchv1.JobStatus { return batchv1.JobStatus{Failed: n} }
	onDisruption := func(action batchv1.PodFailurePolicyAction) *batchv1.PodFailurePolicy {
		return &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{Action: action,
			OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: v1.DisruptionTarget}}}}}
	}
	for name, c := range map[string]struct {
		job    batchv1.Job
		delete bool
		fails  [2]string // expected Fails of job-0 and job-1; "" if the pod gets a successor
	}{
		"none allowed":       {job: batchv1.Job{Spec: batchv1.JobSpec{BackoffLimit: ptr.To[int32](0)}}, fails: [2]string{"Job/job fails: backoffLimit 0", "Job/job fails: backoffLimit 0"}},
		"one allowed":        {job: batchv1.Job{Spec: batchv1.JobSpec{BackoffLimit: ptr.To[int32](1)}}, fails: [2]string{"Job/job fails: backoffLimit 1", "Job/job fails: backoffLimit 1"}},
		"two allowed":        {job: batchv1.Job{Spec: batchv1.JobSpec{BackoffLimit: ptr.To[int32](2)}}},
		"failed before":      {job: batchv1.Job{Status: failed(6)}, fails: [2]string{"Job/job fails: backoffLimit 6", "Job/job fails: backoffLimit 6"}},
		"none of an index":   {job: batchv1.Job{Spec: batchv1.JobSpec{BackoffLimitPerIndex: ptr.To[int32](0), Completions: ptr.To[int32](9)}}, fails: [2]string{"index 0 of Job/job fails: backoffLimitPerIndex 0", "index 1 of Job/job fails: backoffLimitPerIndex 0"}},
		"all indexes":        {job: batchv1.Job{Spec: batchv1.JobSpec{BackoffLimitPerIndex: ptr.To[int32](0), Completions: ptr.To[int32](2)}}, fails: [2]string{"Job/job fails: 2 of its 2 indexes failed, and none is left", "Job/job fails: 2 of its 2 indexes failed, and none is left"}},
		"one of each index":  {job: batchv1.Job{Spec: batchv1.JobSpec{BackoffLimitPerIndex: ptr.To[int32](1), Completions: ptr.To[int32](9)}}},
		"ignored":            {job: batchv1.Job{Spec: batchv1.JobSpec{BackoffLimit: ptr.To[int32](0), PodFailurePolicy: onDisruption(batchv1.PodFailurePolicyActionIgnore)}}},
		"fatal":              {job: batchv1.Job{Spec: batchv1.JobSpec{PodFailurePolicy: onDisruption(batchv1.PodFailurePolicyActionFailJob)}}, fails: [2]string{"Job/job fails: rule 1 of its podFailurePolicy", "Job/job fails: rule 1 of its podFailurePolicy"}},
		"fatal, but deleted": {job: batchv1.Job{Spec: batchv1.JobSpec{PodFailurePolicy: onDisruption(batchv1.PodFailurePolicyActionFailJob)}}, delete: true},
	} {
		t.Run(name, func(t *testing.T) {
			state, plan := drainJob(c.job, 2, c.delete)
			if len(plan.Pods) != 2 {
				t.Fatalf("%+v", plan.Pods)
			}
			for i, p := range plan.Pods {
				if fails := c.fails[i]; p.Fails != fails || p.Lost != (fails != "") || (p.To == "n1") != (fails == "") {
					t.Errorf("%+v, want %q", p, fails)
				}
			}

			// A plan must not change its state, so that another plan is the same.
			if after := state.World.Workloads().Named(rules.Job, "default", "job").Object.(*batchv1.Job); after.Status.Failed != c.job.Status.Failed {
				t.Errorf("the plan has counted failures in the state: %+v", after.Status)
			}
		})
	}
}

// TestPodsComeBackAsTheyAreMadeNext verifies that successors are built from the current template. A
// pod resized in place gets the size of its template, and may fit on a node with less room. A pod
// of a StatefulSet with a changed template gets the new template.
func TestPodsComeBackAsTheyAreMadeNext(t *testing.T) {
	spec := func(cpu, disk string) v1.PodSpec {
		return v1.PodSpec{SchedulerName: v1.DefaultSchedulerName, NodeSelector: map[string]string{"disk": disk}, PriorityClassName: "high", Containers: []v1.Container{{
			Name: "c", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)}},
		}}}
	}
	meta := metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "web"}
	resized := &appsv1.ReplicaSet{ObjectMeta: meta, Spec: appsv1.ReplicaSetSpec{Template: v1.PodTemplateSpec{Spec: spec("1", "ssd")}}}
	changed := &appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Template: v1.PodTemplateSpec{Spec: spec("1", "hdd")}}}
	changed.Status.UpdateRevision = "new"
	for _, c := range []struct {
		by   metav1.Object
		kind string
		to   string
	}{{resized, "ReplicaSet", "n1"}, {changed, "StatefulSet", "n2"}} {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "web-1", UID: "p", Generation: 2, Labels: map[string]string{appsv1.ControllerRevisionHashLabelKey: "old"},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(c.by, appsv1.SchemeGroupVersion.WithKind(c.kind))},
		}, Spec: spec("6", "ssd")}
		p.Spec.NodeName, p.Spec.Priority, p.Status.Phase = "n0", ptr.To[int32](7), v1.PodRunning

		all := []metav1.Object{c.by, p}
		for name, labels := range map[string][2]string{"n0": {"8", "ssd"}, "n1": {"2", "ssd"}, "n2": {"2", "hdd"}} {
			n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"disk": labels[1]}}}
			n.Status.Allocatable = v1.ResourceList{v1.ResourceCPU: resource.MustParse(labels[0]), v1.ResourcePods: resource.MustParse("10")}
			all = append(all, n)
		}
		state := &rebalance.State{AsOf: time.Unix(0, 0), World: world.Open(all)}
		plan := rebalance.PlanDrain(state, &rebalance.Leaving{Nodes: []string{"n0"}}, rebalance.Options{Profiles: []*plugins.Profile{plugins.Default()}})
		if len(plan.Pods) != 1 || plan.Pods[0].To != c.to {
			t.Errorf("%s: %+v, want %s", c.kind, plan.Pods, c.to)
		}

		if next := state.World.Workloads().Next(p); *next.Spec.Priority != 7 || next.UID != "p" || p.Spec.Containers[0].Resources.Requests.Cpu().Value() != 6 {
			t.Errorf("%s: %+v", c.kind, next)
		}
	}
}
