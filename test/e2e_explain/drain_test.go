// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2eexplain

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-k8s/berth/test/internal/output"
)

// TestADrainGoesOnAfterAKill verifies that a drain that is killed right after its first eviction
// can be repeated to empty the node. The node has four pods of a workload whose budget permits one
// disruption. As long as there is a pod without a controller, a drain must be refused without any
// changes.
func TestADrainGoesOnAfterAKill(t *testing.T) {
	const namespace, replicas = "drains", 4
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	from := nodes.Items[0].Name
	unschedulable := func(name string, on bool) {
		t.Helper()
		if _, err := client.CoreV1().Nodes().Patch(context.Background(), name, types.MergePatchType, fmt.Appendf(nil, `{"spec": {"unschedulable": %v}}`, on), metav1.PatchOptions{}); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() {
		for i := range nodes.Items {
			unschedulable(nodes.Items[i].Name, false)
		}
		_ = client.CoreV1().Namespaces().Delete(context.Background(), namespace, metav1.DeleteOptions{})
		until(context.Background(), t, func() error {
			if _, err := client.CoreV1().Namespaces().Get(context.Background(), namespace, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("namespace %s is still there: %v", namespace, err)
			}
			return nil
		})
	})
	for i := range nodes.Items[1:] {
		unschedulable(nodes.Items[i+1].Name, true)
	}
	crowd(ctx, t, namespace, replicas)
	for i := range nodes.Items[1:] {
		unschedulable(nodes.Items[i+1].Name, false)
	}

	drain := func() (*exec.Cmd, *output.Buffer) {
		var out output.Buffer
		cmd := exec.CommandContext(ctx, filepath.Join(bin, "berth"), "drain", from, "--ignore-daemonsets", "--pod-selector=drained=yes",
			"--kubeconfig", filepath.Join(data, "kubeconfig"))
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd, &out
	}
	cordoned := func() bool {
		n, err := client.CoreV1().Nodes().Get(ctx, from, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return n.Spec.Unschedulable
	}
	cmd, out := drain()
	if err := cmd.Wait(); err == nil || !strings.Contains(out.String(), "declare no controller") || cordoned() {
		t.Fatalf("a pod without a controller is in the way; the drain says (%v), and the node is cordoned: %v\n%s", err, cordoned(), out)
	}
	if err := client.CoreV1().Pods(namespace).Delete(ctx, "bare", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(ctx, t, func() error {
		if _, err := client.CoreV1().Pods(namespace).Get(ctx, "bare", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the pod is still there: %v", err)
		}
		return nil
	})

	cmd, out = drain()
	until(ctx, t, func() error {
		if !strings.Contains(out.String(), ": evicted from") {
			return fmt.Errorf("no pod is evicted:\n%s", out)
		}
		return nil
	})
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	cmd, out = drain()
	if err := cmd.Wait(); err != nil || !strings.Contains(out.String(), "node/"+from+" drained") || !cordoned() {
		t.Fatalf("the second run: %v\n%s", err, out)
	}
	if text := out.String(); !strings.Contains(text, "to evict from "+from) || !strings.Contains(text, "POD") || strings.Index(text, "POD") > strings.Index(text, ": evicted from") {
		t.Errorf("the plan is not printed before the first eviction:\n%s", text)
	}
	if strings.Count(out.String(), ": evicted from") >= replicas {
		t.Errorf("the second run evicted as many pods as there were:\n%s", out)
	}
	pods, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range pods.Items {
		if pod.Spec.NodeName == from {
			t.Errorf("%s is still on %s", pod.Name, from)
		}
	}
}

// crowd creates a Deployment whose budget permits one disruption, and a pod without a controller,
// and waits until all pods run.
func crowd(ctx context.Context, t *testing.T, namespace string, replicas int32) {
	t.Helper()
	labels, grace, one := map[string]string{"app": "crowd", "drained": "yes"}, int64(1), intstr.FromInt32(1)
	spec := v1.PodSpec{TerminationGracePeriodSeconds: &grace, Containers: []v1.Container{{Name: "main", Image: "app"}}}
	meta := metav1.ObjectMeta{Name: "crowd"}
	app := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "crowd"}}
	if _, err := client.CoreV1().Namespaces().Create(ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	until(ctx, t, func() error { // the namespace's service account is created a moment later
		bare := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "bare", Labels: map[string]string{"drained": "yes"}}, Spec: spec}
		_, err := client.CoreV1().Pods(namespace).Create(ctx, bare, metav1.CreateOptions{})
		return err
	})
	deployment := &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{
		Replicas: &replicas, Selector: app, Template: v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec},
	}}
	if _, err := client.AppsV1().Deployments(namespace).Create(ctx, deployment, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: meta, Spec: policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &one, Selector: app}}
	if _, err := client.PolicyV1().PodDisruptionBudgets(namespace).Create(ctx, budget, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	until(ctx, t, func() error {
		b, err := client.PolicyV1().PodDisruptionBudgets(namespace).Get(ctx, "crowd", metav1.GetOptions{})
		if err != nil {
			return err
		}
		bare, err := client.CoreV1().Pods(namespace).Get(ctx, "bare", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if b.Status.DisruptionsAllowed != 1 || b.Status.CurrentHealthy != replicas || bare.Spec.NodeName == "" {
			status, err := json.Marshal(b.Status)
			return fmt.Errorf("the workload is not ready: %s, %v", status, err)
		}
		return nil
	})
}
