// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"fmt"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
)

const (
	namespace = "soak"
	careful   = "careful-scheduler" // scheduler name of the profile whose preemption respects budgets

	guarded = "guarded" // pods with a budget that never allows a disruption
	filler  = "filler"  // lowest priority; fills the remaining room

	nodeCPU, nodePods, nodeWidgets = 4, 30, 2
	widget                         = "example.com/widget"

	evictKey, rejectKey, avoidKey = "soak/leave", "soak/stay-away", "soak/rather-not" // taint keys
)

var priorities = map[string]int32{"soak-low": 10, "soak-middle": 100, "soak-high": 1000}

// workload is a Deployment or StatefulSet of the campaign.
type workload struct {
	name     string
	share    float64 // maximum share of the cluster's CPU
	cpu      int64   // request of a pod, in millicores
	priority string
	shape    func(*v1.PodTemplateSpec)
	budget   *policyv1.PodDisruptionBudgetSpec
	set      bool // a StatefulSet
}

// allWorkloads returns workloads that request more than the cluster's capacity in total, so that
// some pods are pending and some are preempted.
func allWorkloads() []workload {
	all, half, most := intstr.FromInt32(0), intstr.FromString("50%"), intstr.FromString("75%")
	return []workload{
		{name: "plain", share: 0.2, cpu: 500, priority: "soak-middle", budget: &policyv1.PodDisruptionBudgetSpec{MinAvailable: &most}},
		{name: filler, share: 0.4, cpu: 500, priority: "soak-low"},
		// Guarded pods use nearly all widgets, and careful pods request some. Careful pods must not
		// preempt guarded pods, despite their higher priority.
		{name: guarded, share: 0.15, cpu: 250, priority: "soak-low", shape: wantsWidget,
			budget: &policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &all}},
		{name: "half", share: 0.1, cpu: 500, priority: "soak-low", budget: &policyv1.PodDisruptionBudgetSpec{MinAvailable: &half}},
		{name: "important", share: 0.15, cpu: 1500, priority: "soak-high"},
		{name: "careful", share: 0.03, cpu: 250, priority: "soak-high",
			shape: func(p *v1.PodTemplateSpec) { p.Spec.SchedulerName = careful; wantsWidget(p) }},
		{name: "spread", share: 0.1, cpu: 250, priority: "soak-middle", shape: addSpread},
		{name: "apart", share: 0.1, cpu: 250, priority: "soak-middle", shape: addAntiAffinity},
		{name: "sandboxed", share: 0.1, cpu: 500, priority: "soak-middle",
			shape: func(p *v1.PodTemplateSpec) { p.Spec.RuntimeClassName = pointerTo("soak-sandbox") }},
		{name: "devices", share: 0.01, cpu: 100, priority: "soak-middle", shape: wantsWidget},
		{name: "patient", share: 0.1, cpu: 250, priority: "soak-middle", shape: func(p *v1.PodTemplateSpec) { addToleration(p, 7) }},
		{name: "database", share: 0.05, cpu: 500, priority: "soak-high", set: true,
			shape: func(p *v1.PodTemplateSpec) { addToleration(p, 2) }},
	}
}

func pointerTo[T any](v T) *T { return &v }

func addSpread(p *v1.PodTemplateSpec) {
	p.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{MaxSkew: 2, TopologyKey: v1.LabelTopologyZone,
		WhenUnsatisfiable: v1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{MatchLabels: p.Labels}}}
}

func addAntiAffinity(p *v1.PodTemplateSpec) {
	apart := v1.PodAffinityTerm{TopologyKey: v1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: p.Labels}}
	p.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{apart},
	}}
}

func wantsWidget(p *v1.PodTemplateSpec) {
	one := resource.MustParse("1")
	r := &p.Spec.Containers[0].Resources
	r.Requests[widget], r.Limits = one, v1.ResourceList{widget: one}
}

func addToleration(p *v1.PodTemplateSpec, seconds int64) {
	p.Spec.Tolerations = append(p.Spec.Tolerations, v1.Toleration{
		Key: evictKey, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute, TolerationSeconds: &seconds,
	})
}

func (l *workload) podLabels() map[string]string { return map[string]string{"app": l.name} }

func (l *workload) newTemplate() v1.PodTemplateSpec {
	return podTemplate(l.podLabels(), l.cpu, l.priority, l.shape)
}

func podTemplate(labels map[string]string, cpu int64, priority string, shape func(*v1.PodTemplateSpec)) v1.PodTemplateSpec {
	p := v1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels,
			Annotations: map[string]string{"berth.dev/terminate-after": strconv.FormatInt(cpu/300, 10) + "s"}},
		Spec: v1.PodSpec{
			PriorityClassName: priority, TerminationGracePeriodSeconds: pointerTo(int64(5)), AutomountServiceAccountToken: pointerTo(false),
			Containers: []v1.Container{{Name: "c", Image: "none", Resources: v1.ResourceRequirements{
				Requests: v1.ResourceList{v1.ResourceCPU: *resource.NewMilliQuantity(cpu, resource.DecimalSI)}}}},
		},
	}
	if shape != nil {
		shape(&p)
	}
	return p
}

// mostPods returns the maximum number of pods of the workload.
func (l *workload) mostPods(nodes int) int {
	return max(1, int(l.share*float64(nodes*nodeCPU*1000)/float64(l.cpu)))
}

// createObjects creates all objects of the campaign.
func createObjects(ctx context.Context, client kubernetes.Interface, nodes int) error {
	create := func(what string, err error) error {
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create %s: %w", what, err)
		}
		return nil
	}

	none := metav1.CreateOptions{}
	_, err := client.CoreV1().Namespaces().Create(ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, none)
	if err := create("namespace", err); err != nil {
		return err
	}

	for name, value := range priorities {
		_, err := client.SchedulingV1().PriorityClasses().Create(ctx,
			&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value}, none)
		if err := create("priority class", err); err != nil {
			return err
		}
	}

	_, err = client.NodeV1().RuntimeClasses().Create(ctx, &nodev1.RuntimeClass{
		ObjectMeta: metav1.ObjectMeta{Name: "soak-sandbox"}, Handler: "sandbox",
		Overhead: &nodev1.Overhead{PodFixed: v1.ResourceList{v1.ResourceCPU: resource.MustParse("250m"),
			v1.ResourceMemory: resource.MustParse("64Mi")}},
	}, none)

	if err := create("runtime class", err); err != nil {
		return err
	}
	_, err = client.AppsV1().DaemonSets(namespace).Create(ctx, newDaemonSet(), none)
	if err := create("daemon set", err); err != nil {
		return err
	}

	for _, l := range allWorkloads() {
		if err := create(l.name, l.createWorkload(ctx, client, (l.mostPods(nodes)+1)/2)); err != nil {
			return err
		}
	}
	return nil
}

func (l *workload) createWorkload(ctx context.Context, client kubernetes.Interface, replicas int) error {
	none := metav1.CreateOptions{}
	meta, selector, n := metav1.ObjectMeta{Name: l.name, Namespace: namespace},
		&metav1.LabelSelector{MatchLabels: l.podLabels()}, int32(replicas)
	if l.budget != nil {
		budget := &policyv1.PodDisruptionBudget{ObjectMeta: meta, Spec: *l.budget}
		budget.Spec.Selector = selector
		if _, err := client.PolicyV1().PodDisruptionBudgets(namespace).Create(ctx, budget, none); err != nil &&
			!apierrors.IsAlreadyExists(err) {
			return err
		}
	}

	if l.set {
		_, err := client.AppsV1().StatefulSets(namespace).Create(ctx, &appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{
			Replicas: &n, Selector: selector, Template: l.newTemplate(), PodManagementPolicy: appsv1.ParallelPodManagement}}, none)
		return err
	}

	_, err := client.AppsV1().Deployments(namespace).Create(ctx, &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{
		Replicas: &n, Selector: selector, Template: l.newTemplate()}}, none)
	return err
}

func newDaemonSet() *appsv1.DaemonSet {
	labels := map[string]string{"app": "daemon"}
	return &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "daemon", Namespace: namespace}, Spec: appsv1.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: podTemplate(labels, 50, "soak-high", nil),
	}}
}

func newJob(name string, completions, parallelism int32, cpu int64) *batchv1.Job {
	template := podTemplate(map[string]string{"app": "job"}, cpu, "soak-middle", nil)
	template.Annotations["berth.dev/run-for"] = "3s"
	template.Spec.RestartPolicy = v1.RestartPolicyNever
	return &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}, Spec: batchv1.JobSpec{
		Completions: &completions, Parallelism: &parallelism, TTLSecondsAfterFinished: pointerTo(int32(5)),
		BackoffLimit: pointerTo(int32(1000)), Template: template}}
}
