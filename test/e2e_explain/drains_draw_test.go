// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2eexplain

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/node/simnodes/simkubelet"
)

// pool is a set of three nodes with a dedicated namespace. The namespace's pods run only on these
// nodes, so a pool serves as a separate cluster.
type pool struct {
	ctx       context.Context
	label     string
	nodes     []string
	seed      uint64
	random    *rand.Rand
	namespace string
	least     int // minimum number of pods
}

const finalizer = "example.com/wait"

// draw creates random workloads, pods and budgets, and waits until they are stable.
func (p *pool) draw(seed uint64) error {
	p.seed, p.random, p.namespace, p.least = seed, rand.New(rand.NewPCG(seed, 29)), fmt.Sprintf("drains-%d", seed), 0
	if _, err := client.CoreV1().Namespaces().Create(p.ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: p.namespace}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	owner, err := client.CoreV1().ConfigMaps(p.namespace).Create(p.ctx, &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	if err := p.eventually(func() error {
		_, err := client.CoreV1().ServiceAccounts(p.namespace).Get(p.ctx, "default", metav1.GetOptions{})
		return err
	}); err != nil {
		return err
	}
	things := 2 + p.random.IntN(5)
	for i := range things {
		name := fmt.Sprintf("p%d", i)
		if p.random.IntN(2) == 0 {
			err = errors.Join(err, p.makeWorkload(name))
		} else {
			err = errors.Join(err, p.makePod(name, owner))
		}
	}
	for i := range []int{0, 1, 1, 2}[p.random.IntN(4)] {
		err = errors.Join(err, p.makeBudget(fmt.Sprintf("b%d", i)))
	}
	if err = errors.Join(err, p.settle()); err != nil {
		return err
	}
	p.least = 0 // from now on pods may disappear
	return errors.Join(p.disturb(), p.settle())
}

// template draws the fields that all kinds of pods have.
func (p *pool) template(name string) v1.PodTemplateSpec {
	probe := &v1.Probe{ProbeHandler: v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"true"}}}, PeriodSeconds: 1}
	t := v1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"of": name, "app": []string{"a", "b"}[p.random.IntN(2)]}, Annotations: map[string]string{}},
		Spec: v1.PodSpec{
			TerminationGracePeriodSeconds: ptr.To[int64](1), NodeSelector: map[string]string{"pool": p.label},
			Containers: []v1.Container{{Name: "c", Image: "i", ReadinessProbe: probe}},
		},
	}
	if p.random.IntN(5) == 0 {
		t.Spec.Volumes = []v1.Volume{{Name: "scratch", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
	}
	return t
}

func (p *pool) makeWorkload(name string) (err error) {
	t, object, of := p.template(name), metav1.ObjectMeta{Name: name}, &metav1.LabelSelector{MatchLabels: map[string]string{"of": name}}
	replicas := 2 + p.random.Int32N(5)
	switch p.random.IntN(6) {
	case 0, 1:
		spec := appsv1.DeploymentSpec{Replicas: &replicas, Selector: of, Template: t}
		_, err = client.AppsV1().Deployments(p.namespace).Create(p.ctx, &appsv1.Deployment{ObjectMeta: object, Spec: spec}, metav1.CreateOptions{})
	case 2, 3:
		spec := appsv1.StatefulSetSpec{Replicas: &replicas, Selector: of, Template: t, PodManagementPolicy: appsv1.ParallelPodManagement}
		_, err = client.AppsV1().StatefulSets(p.namespace).Create(p.ctx, &appsv1.StatefulSet{ObjectMeta: object, Spec: spec}, metav1.CreateOptions{})
	case 4:
		replicas = int32(len(p.nodes))
		spec := appsv1.DaemonSetSpec{Selector: of, Template: t}
		_, err = client.AppsV1().DaemonSets(p.namespace).Create(p.ctx, &appsv1.DaemonSet{ObjectMeta: object, Spec: spec}, metav1.CreateOptions{})
	default:
		replicas = 1 + p.random.Int32N(2)
		t.Spec.RestartPolicy = v1.RestartPolicyNever
		if p.random.IntN(3) > 0 { // otherwise the pod ends soon
			t.Annotations[simkubelet.AnnotationRunFor] = "1h"
		}
		spec := batchv1.JobSpec{Parallelism: &replicas, Completions: &replicas, Template: t, BackoffLimit: ptr.To[int32](99)}
		_, err = client.BatchV1().Jobs(p.namespace).Create(p.ctx, &batchv1.Job{ObjectMeta: object, Spec: spec}, metav1.CreateOptions{})
	}
	p.least += int(replicas)
	return err
}

// makePod creates a pod without a controller, or with a controller that is of an unknown kind, is
// of a kind without pods, or no longer exists.
func (p *pool) makePod(name string, owner *v1.ConfigMap) error {
	t := p.template(name)
	pod := &v1.Pod{ObjectMeta: t.ObjectMeta, Spec: t.Spec}
	pod.Name, pod.Spec.NodeName, pod.Spec.RestartPolicy = name, p.nodes[max(p.random.IntN(4)-2, 0)], v1.RestartPolicyNever
	controller := func(version, kind, name string, uid types.UID) {
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: version, Kind: kind, Name: name, UID: uid, Controller: ptr.To(true)}}
	}
	switch p.random.IntN(8) {
	case 0:
		controller("apps.kruise.io/v1alpha1", "CloneSet", "other", "other")
	case 1:
		controller("v1", "ConfigMap", owner.Name, owner.UID)
	case 2: // the garbage collector will delete this pod
		controller("apps/v1", "DaemonSet", "gone", "gone")
		pod.Finalizers = []string{finalizer}
		pod.Annotations[simkubelet.AnnotationTerminateAfter], pod.Spec.TerminationGracePeriodSeconds = "1h", ptr.To[int64](3600)
	}
	switch p.random.IntN(8) {
	case 0, 1:
		pod.Annotations[simkubelet.AnnotationRunFor] = "0s"
		pod.Annotations[simkubelet.AnnotationExitCode] = fmt.Sprint(p.random.IntN(2))
	case 2:
		pod.Spec.InitContainers = []v1.Container{{Name: "init", Image: "i"}}
		pod.Annotations[simkubelet.AnnotationInitFor] = "1h"
	case 3:
		pod.Annotations[v1.MirrorPodAnnotationKey] = "x"
	}
	p.least++
	_, err := client.CoreV1().Pods(p.namespace).Create(p.ctx, pod, metav1.CreateOptions{})
	return err
}

func (p *pool) makeBudget(name string) error {
	limit, least := intstr.FromInt32([]int32{0, 1, 1, 1, 2}[p.random.IntN(5)]), intstr.FromInt32(p.random.Int32N(6))
	b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: policyv1.PodDisruptionBudgetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": []string{"a", "b"}[p.random.IntN(2)]}}, MaxUnavailable: &limit,
	}}
	if p.random.IntN(2) == 0 {
		b.Spec.MaxUnavailable, b.Spec.MinAvailable = nil, &least
	}
	if p.random.IntN(4) == 0 {
		b.Spec.UnhealthyPodEvictionPolicy = ptr.To(policyv1.AlwaysAllow)
	}
	_, err := client.PolicyV1().PodDisruptionBudgets(p.namespace).Create(p.ctx, b, metav1.CreateOptions{})
	return err
}

// disturb makes some pods terminate slowly, some keep a finalizer while they are deleted, and some
// become unready.
func (p *pool) disturb() error {
	pods, _, err := p.look()
	for i := range pods {
		patch, ends := "", false
		switch p.random.IntN(16) {
		case 0:
			patch, ends = fmt.Sprintf(`{"metadata": {"annotations": {%q: "1h"}}}`, simkubelet.AnnotationTerminateAfter), true
		case 1:
			patch, ends = fmt.Sprintf(`{"metadata": {"finalizers": [%q]}}`, finalizer), true
		case 2, 3:
			patch = fmt.Sprintf(`{"metadata": {"annotations": {%q: "false"}}}`, simkubelet.AnnotationReady)
		}
		if patch == "" || pods[i].DeletionTimestamp != nil {
			continue
		}
		_, failed := client.CoreV1().Pods(p.namespace).Patch(p.ctx, pods[i].Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		if err = errors.Join(err, failed); ends {
			err = errors.Join(err, client.CoreV1().Pods(p.namespace).Delete(p.ctx, pods[i].Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](3600)}))
		}
	}
	return err
}

// look reads the pods and the budgets of the namespace.
func (p *pool) look() ([]v1.Pod, []policyv1.PodDisruptionBudget, error) {
	pods, err := client.CoreV1().Pods(p.namespace).List(p.ctx, metav1.ListOptions{})
	if err != nil {
		return nil, nil, err
	}
	budgets, err := client.PolicyV1().PodDisruptionBudgets(p.namespace).List(p.ctx, metav1.ListOptions{})
	if err != nil {
		return nil, nil, err
	}
	return pods.Items, budgets.Items, nil
}

// settle waits until pods and budgets are stable and have not changed for a second.
func (p *pool) settle() error {
	before, since := "", time.Now()
	return p.eventually(func() error {
		pods, budgets, err := p.look()
		if err != nil {
			return err
		}
		if now := versions(pods, budgets); now != before {
			before, since = now, time.Now()
		}
		switch err := unsettled(pods, budgets); {
		case err != nil:
			return err
		case len(pods) < p.least:
			return fmt.Errorf("%d pods, of at least %d", len(pods), p.least)
		case time.Since(since) < time.Second:
			return fmt.Errorf("there were changes %v ago", time.Since(since))
		}
		return nil
	})
}

// unsettled returns an error that describes a pod or budget that is not stable, or nil.
func unsettled(pods []v1.Pod, budgets []policyv1.PodDisruptionBudget) error {
	ready := func(pod *v1.Pod) bool {
		return slices.ContainsFunc(pod.Status.Conditions, func(c v1.PodCondition) bool { return c.Type == v1.PodReady && c.Status == v1.ConditionTrue })
	}
	for i := range pods {
		pod := &pods[i]
		_, ends := pod.Annotations[simkubelet.AnnotationExitCode]
		_, starts := pod.Annotations[simkubelet.AnnotationInitFor]
		runs := pod.Status.Phase == v1.PodRunning && !ends && ready(pod) == (pod.Annotations[simkubelet.AnnotationReady] != "false")
		ended := pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed
		gone := metav1.GetControllerOf(pod) != nil && metav1.GetControllerOf(pod).UID == "gone"
		if pod.Spec.NodeName == "" || pod.Status.StartTime == nil || !(starts || runs || ended || pod.DeletionTimestamp != nil) || gone && pod.DeletionTimestamp == nil {
			return fmt.Errorf("%s is %s on %q, deleted %v", pod.Name, pod.Status.Phase, pod.Spec.NodeName, pod.DeletionTimestamp)
		}
	}
	for i := range budgets {
		b, healthy := &budgets[i], int32(0)
		for i := range pods {
			if covers(b, &pods[i]) && pods[i].DeletionTimestamp == nil && ready(&pods[i]) {
				healthy++
			}
		}
		condition := meta.FindStatusCondition(b.Status.Conditions, policyv1.DisruptionAllowedCondition)
		failed := condition != nil && condition.Reason == policyv1.SyncFailedReason
		// If two budgets cover a pod, the controller recounts only one of them when the pod
		// changes.
		known := len(budgets) > 1 && budgets[0].Spec.Selector.MatchLabels["app"] == budgets[1].Spec.Selector.MatchLabels["app"]
		if condition == nil || !failed && !known && (b.Status.ObservedGeneration < b.Generation || b.Status.CurrentHealthy != healthy) {
			return fmt.Errorf("budget %s: %+v, and %d pods are ready", b.Name, b.Status, healthy)
		}
	}
	return nil
}

func covers(b *policyv1.PodDisruptionBudget, pod *v1.Pod) bool {
	return labels.SelectorFromSet(b.Spec.Selector.MatchLabels).Matches(labels.Set(pod.Labels))
}

// versions returns a text that changes when any pod or budget changes.
func versions(pods []v1.Pod, budgets []policyv1.PodDisruptionBudget) (text string) {
	for i := range pods {
		text += string(pods[i].UID) + pods[i].ResourceVersion + " "
	}
	for i := range budgets {
		text += budgets[i].Name + budgets[i].ResourceVersion + " "
	}
	return text
}

// clear deletes the namespace, waits until its pods have disappeared, and reverts the changes to
// the drained node.
func (p *pool) clear() error {
	_ = client.CoreV1().Namespaces().Delete(p.ctx, p.namespace, metav1.DeleteOptions{})
	if err := p.eventually(func() error {
		pods, _, err := p.look()
		for i := range pods {
			if len(pods[i].Finalizers) > 0 {
				_, _ = client.CoreV1().Pods(p.namespace).Patch(p.ctx, pods[i].Name, types.MergePatchType, []byte(`{"metadata": {"finalizers": null}}`), metav1.PatchOptions{})
			}
			_ = client.CoreV1().Pods(p.namespace).Delete(p.ctx, pods[i].Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
		}
		if len(pods) > 0 {
			return fmt.Errorf("%s has %d pods", p.namespace, len(pods))
		}
		return err
	}); err != nil {
		return err
	}
	_, err := client.CoreV1().Nodes().Patch(p.ctx, p.nodes[0], types.MergePatchType, []byte(`{"spec": {"unschedulable": null, "taints": null}}`), metav1.PatchOptions{})
	return err
}

// eventually calls try until try returns nil, and returns its last error after a minute.
func (p *pool) eventually(try func() error) error {
	for end := time.Now().Add(time.Minute); ; {
		err := try()
		if err == nil || time.Now().After(end) || p.ctx.Err() != nil || apierrors.IsForbidden(err) {
			return err
		}
		select {
		case <-p.ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}
