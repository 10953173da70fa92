// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

func errorf(format string, args ...any) error { return fmt.Errorf(format, args...) }

func toJSON(v any) string {
	content, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(content)
}

var (
	labels   = map[string]string{"app": "test"}
	selector = &metav1.LabelSelector{MatchLabels: labels}
	template = corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: containers()}}
)

// waitPods waits until the namespace has exactly n pods and returns them.
func (c *cluster) waitPods(t *testing.T, namespace string, n int) []corev1.Pod {
	t.Helper()
	var pods []corev1.Pod
	eventually(t, func(ctx context.Context) error {
		list, err := c.api.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err == nil && len(list.Items) != n {
			err = errorf("%d pods, want %d", len(list.Items), n)
		}
		if err == nil {
			pods = list.Items
		}
		return err
	})
	return pods
}

// updatePod changes a pod's status like a kubelet.
func (c *cluster) updatePod(t *testing.T, pod corev1.Pod, change func(*corev1.PodStatus)) {
	t.Helper()
	change(&pod.Status)
	if _, err := c.api.CoreV1().Pods(pod.Namespace).UpdateStatus(t.Context(), &pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// createNode creates a node ready for pods. It removes the initial taint, which is otherwise done
// by Berth's node health controller.
func (c *cluster) createNode(t *testing.T, name string, labels map[string]string) {
	t.Helper()
	nodes := c.api.CoreV1().Nodes()
	node, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(node.Spec.Taints) != 1 || node.Spec.Taints[0].Key != corev1.TaintNodeNotReady {
		t.Errorf("TaintNodesByCondition: taints %v", node.Spec.Taints)
	}
	node.Spec.Taints = nil
	if _, err := nodes.Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func ready(status *corev1.PodStatus) {
	status.Phase = corev1.PodRunning
	status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
}

func deploymentScalesUpAndIsCollected(t *testing.T, c *cluster) {
	ns := c.namespace(t)
	deployments := c.api.AppsV1().Deployments(ns)
	if _, err := deployments.Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       appsv1.DeploymentSpec{Replicas: ptr.To[int32](50), Selector: selector, Template: template},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pods := c.waitPods(t, ns, 50)
	sets, err := c.api.AppsV1().ReplicaSets(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(sets.Items) != 1 {
		t.Fatalf("%d replica sets (%v), want 1", len(sets.Items), err)
	}
	if owner := metav1.GetControllerOf(&pods[0]); owner == nil || owner.UID != sets.Items[0].UID {
		t.Errorf("the pods' owner is %v, want the replica set", owner)
	}
	if err := deployments.Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.waitPods(t, ns, 0)
}

func daemonSetPutsOnePodOnEachNode(t *testing.T, c *cluster) {
	ns := c.namespace(t)
	for _, name := range []string{"daemon-node-1", "daemon-node-2"} {
		c.createNode(t, name, map[string]string{"daemons": "here"})
	}
	daemon := template.DeepCopy()
	daemon.Spec.NodeSelector = map[string]string{"daemons": "here"}
	if _, err := c.api.AppsV1().DaemonSets(ns).Create(t.Context(), &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "daemon"},
		Spec:       appsv1.DaemonSetSpec{Selector: selector, Template: *daemon},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.waitPods(t, ns, 2)
}

func statefulSetMakesOnePodAfterTheOther(t *testing.T, c *cluster) {
	ns := c.namespace(t)
	if _, err := c.api.AppsV1().StatefulSets(ns).Create(t.Context(), &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "db"},
		Spec:       appsv1.StatefulSetSpec{Replicas: ptr.To[int32](2), Selector: selector, Template: template, ServiceName: "db"},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	first := c.waitPods(t, ns, 1)[0]
	if first.Name != "db-0" {
		t.Fatalf("the first pod is %s, want db-0", first.Name)
	}
	c.updatePod(t, first, ready)
	c.waitPods(t, ns, 2)
}

func jobCompletesAndIsRemovedAfterItsTTL(t *testing.T, c *cluster) {
	ns := c.namespace(t)
	job := template.DeepCopy()
	job.Spec.RestartPolicy = corev1.RestartPolicyNever
	if _, err := c.api.BatchV1().Jobs(ns).Create(t.Context(), &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "once"},
		Spec:       batchv1.JobSpec{Template: *job, TTLSecondsAfterFinished: ptr.To[int32](0)},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.updatePod(t, c.waitPods(t, ns, 1)[0], func(status *corev1.PodStatus) { status.Phase = corev1.PodSucceeded })
	eventually(t, func(ctx context.Context) error {
		_, err := c.api.BatchV1().Jobs(ns).Get(ctx, "once", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errorf("the job is still there (%v)", err)
	})
	c.waitPods(t, ns, 0)
}

func cronJobIsTaken(t *testing.T, c *cluster) {
	ns := c.namespace(t)
	job := template.DeepCopy()
	job.Spec.RestartPolicy = corev1.RestartPolicyNever
	created, err := c.api.BatchV1().CronJobs(ns).Create(t.Context(), &batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{Name: "nightly"},
		Spec:       batchv1.CronJobSpec{Schedule: "0 3 * * *", JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: *job}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// The CronJob controller removes Jobs that do not exist from the list of active Jobs.
	created.Status.Active = []corev1.ObjectReference{{Kind: "Job", Name: "gone", Namespace: ns, UID: "gone", APIVersion: "batch/v1"}}
	if _, err := c.api.BatchV1().CronJobs(ns).UpdateStatus(t.Context(), created, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func(ctx context.Context) error {
		cron, err := c.api.BatchV1().CronJobs(ns).Get(ctx, "nightly", metav1.GetOptions{})
		if err == nil && len(cron.Status.Active) > 0 {
			err = errorf("still active: %v", cron.Status.Active)
		}
		return err
	})
}

func quotaIsCountedAndEnforced(t *testing.T, c *cluster) {
	ns := c.namespace(t)
	if _, err := c.api.CoreV1().ResourceQuotas(ns).Create(t.Context(), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "quota"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("1")}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	used := func(want string) {
		t.Helper()
		eventually(t, func(ctx context.Context) error {
			quota, err := c.api.CoreV1().ResourceQuotas(ns).Get(ctx, "quota", metav1.GetOptions{})
			if got := quota.Status.Used[corev1.ResourcePods]; err == nil && (got.String() != want || len(quota.Status.Used) == 0) {
				err = errorf("%s pods counted, want %s", got.String(), want)
			}
			return err
		})
	}
	used("0")
	c.createPod(t, ns, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "one"}})
	used("1")
	_, err := c.api.CoreV1().Pods(ns).Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "two"}, Spec: corev1.PodSpec{Containers: containers()}}, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("a second pod: %v, want it forbidden", err)
	}
	if err := c.api.CoreV1().Pods(ns).Delete(t.Context(), "one", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	used("0")
}

func disruptionBudgetIsCounted(t *testing.T, c *cluster) {
	ns := c.namespace(t)
	if _, err := c.api.AppsV1().ReplicaSets(ns).Create(t.Context(), &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       appsv1.ReplicaSetSpec{Replicas: ptr.To[int32](3), Selector: selector, Template: template},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.api.PolicyV1().PodDisruptionBudgets(ns).Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: selector, MinAvailable: ptr.To(intstr.FromInt32(1))},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, pod := range c.waitPods(t, ns, 3) {
		c.updatePod(t, pod, ready)
	}
	eventually(t, func(ctx context.Context) error {
		budget, err := c.api.PolicyV1().PodDisruptionBudgets(ns).Get(ctx, "web", metav1.GetOptions{})
		if s := budget.Status; err == nil && (s.ExpectedPods != 3 || s.CurrentHealthy != 3 || s.DisruptionsAllowed != 2) {
			err = errorf("%d expected, %d healthy, %d disruptions allowed; want 3, 3, 2", s.ExpectedPods, s.CurrentHealthy, s.DisruptionsAllowed)
		}
		return err
	})
}

func namespaceIsDeletedWithWhatIsInIt(t *testing.T, c *cluster) {
	ns := c.namespace(t)
	c.createPod(t, ns, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod"}})
	if err := c.api.CoreV1().Namespaces().Delete(t.Context(), ns, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func(ctx context.Context) error {
		namespace, err := c.api.CoreV1().Namespaces().Get(ctx, ns, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errorf("the namespace is still there: %s (%v)", toJSON(namespace.Status), err)
	})
}

func serviceGetsEndpointSlices(t *testing.T, c *cluster) {
	ns := c.namespace(t)
	service, err := c.api.CoreV1().Services(ns).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.ServiceSpec{Selector: labels, Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if service.Spec.ClusterIP == "" {
		t.Error("the service has no address")
	}
	c.createNode(t, "endpoint-node", nil)
	pod := c.createPod(t, ns, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Labels: labels},
		Spec:       corev1.PodSpec{NodeName: "endpoint-node", Containers: containers()},
	})
	c.updatePod(t, *pod, func(status *corev1.PodStatus) {
		ready(status)
		status.PodIP, status.PodIPs = "10.1.2.3", []corev1.PodIP{{IP: "10.1.2.3"}}
	})
	eventually(t, func(ctx context.Context) error {
		slices, err := c.api.DiscoveryV1().EndpointSlices(ns).List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=web"})
		if err != nil {
			return err
		}
		if len(slices.Items) != 1 || len(slices.Items[0].Endpoints) != 1 || slices.Items[0].Endpoints[0].Addresses[0] != "10.1.2.3" {
			return errorf("endpoint slices %s", toJSON(slices.Items))
		}
		return nil
	})
}

func claimIsBoundToAVolume(t *testing.T, c *cluster) {
	ns := c.namespace(t)
	gigabyte := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	if _, err := c.api.CoreV1().PersistentVolumes().Create(t.Context(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "disk"},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: gigabyte, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/disk"}},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.api.CoreV1().PersistentVolumeClaims(ns).Create(t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "data"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: gigabyte},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func(ctx context.Context) error {
		claim, err := c.api.CoreV1().PersistentVolumeClaims(ns).Get(ctx, "data", metav1.GetOptions{})
		if err == nil && (claim.Status.Phase != corev1.ClaimBound || claim.Spec.VolumeName != "disk") {
			err = errorf("claim is %s to %q", claim.Status.Phase, claim.Spec.VolumeName)
		}
		return err
	})
}

func terminatingPodsWithoutNodeAreCollected(t *testing.T, c *cluster) {
	ns := c.namespace(t)
	// Pod garbage collection deletes terminating pods without a node soonest.
	c.createPod(t, ns, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod", Finalizers: []string{"berth.dev/test"}}})
	if err := c.api.CoreV1().Pods(ns).Delete(t.Context(), "pod", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func(ctx context.Context) error {
		found, err := c.api.CoreV1().Pods(ns).Get(ctx, "pod", metav1.GetOptions{})
		if err == nil && found.Status.Phase != corev1.PodFailed {
			err = errorf("phase %s", found.Status.Phase)
		}
		if err == nil {
			found.Finalizers = nil
			_, err = c.api.CoreV1().Pods(ns).Update(ctx, found, metav1.UpdateOptions{})
		}
		return err
	})
	c.waitPods(t, ns, 0)
}

func aggregatedClusterRolesAreFilled(t *testing.T, c *cluster) {
	rule := rbacv1.PolicyRule{APIGroups: []string{"berth.dev"}, Resources: []string{"ships"}, Verbs: []string{"get"}}
	if _, err := c.api.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "ships", Labels: map[string]string{"rbac.authorization.k8s.io/aggregate-to-view": "true"}},
		Rules:      []rbacv1.PolicyRule{rule},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func(ctx context.Context) error {
		view, err := c.api.RbacV1().ClusterRoles().Get(ctx, "view", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, r := range view.Rules {
			if toJSON(r) == toJSON(rule) {
				return nil
			}
		}
		return errorf("the role view does not have the rule")
	})
}
