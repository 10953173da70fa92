// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2eexplain

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-k8s/berth/test/internal/output"
)

// TestMovesGoOnAfterAKill verifies that pods are moved from a tainted node although the rebalance
// controller is repeatedly killed right after an eviction. No pod may be evicted twice, no
// successor may be moved, and every workload must be ready in the end.
func TestMovesGoOnAfterAKill(t *testing.T) {
	const workloads, kills = 6, 3
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	namespace, from := "moves", tainted(ctx, t, workloads)

	pods, err := client.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	gone, made := map[types.UID]string{}, map[types.UID]bool{}
	// left waits until the given total numbers of pods have been deleted and created.
	left := func(want, successors int) {
		t.Helper()
		for len(gone) < want || len(made) < successors {
			select {
			case <-ctx.Done():
				t.Fatalf("%d pods have left %s and %d are new, want %d: %v", len(gone), from, len(made), want, gone)
			case e := <-pods.ResultChan():
				pod, is := e.Object.(*v1.Pod)
				if !is {
					t.Fatalf("the watch of pods ended: %v", e)
				}
				if pod.Spec.NodeName != from {
					made[pod.UID] = true
				}
				if pod.DeletionTimestamp != nil || e.Type == watch.Deleted {
					gone[pod.UID] = pod.Spec.NodeName
				}
			}
		}
	}
	for n := range kills {
		kill := moving(t)
		left(n+1, 0)
		kill()
	}
	stop := moving(t)
	left(workloads, workloads)
	settled := func() error {
		deployments, err := client.AppsV1().Deployments(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, d := range deployments.Items {
			if d.Status.ReadyReplicas != 1 || d.Status.Replicas != 1 {
				return fmt.Errorf("%s: %+v", d.Name, d.Status)
			}
		}
		journal, err := client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, "berth-rebalance", metav1.GetOptions{})
		if err != nil {
			return err
		}
		var written struct {
			Move    any            `json:"move"`
			Resting map[string]any `json:"resting"`
		}
		if err := json.Unmarshal([]byte(journal.Data["journal"]), &written); err != nil {
			return err
		}
		if written.Move != nil || len(written.Resting) != workloads {
			return fmt.Errorf("the journal has %s, want no move, and %d workloads that rest", journal.Data["journal"], workloads)
		}
		return nil
	}
	until(ctx, t, settled)
	stop()
	list, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range list.Items {
		if !made[pod.UID] {
			t.Errorf("%s came later than the successor that was awaited", pod.Name)
		}
		if pod.Spec.NodeName == from {
			t.Errorf("%s is still on %s", pod.Name, from)
		}
	}
	for uid, node := range gone {
		if node != from {
			t.Errorf("%s was evicted from %s, where it had been moved to", uid, node)
		}
	}
	if len(gone) != workloads || len(list.Items) != workloads || len(made) != workloads {
		t.Errorf("%d pods left, %d successors were made, and %d pods are there; want %d of each", len(gone), len(made), len(list.Items), workloads)
	}
}

// moving starts the rebalance controller, and returns a function that kills it.
func moving(t *testing.T) (kill func()) {
	t.Helper()
	var out output.Buffer
	cmd := exec.Command(filepath.Join(bin, "berth"), "controller", "--controllers=rebalance", "--goals=heal", "--every=10s",
		"--leader-elect=false", "--health-bind-address=127.0.0.1:0", "--kubeconfig", filepath.Join(data, "kubeconfig"), "-v=2")
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	t.Cleanup(func() {
		kill()
		if t.Failed() {
			t.Logf("berth controller:\n%s", &out)
		}
	})
	return kill
}

// tainted creates workloads with one pod each on one node, adds a taint that the pods do not
// tolerate, and returns the node.
func tainted(ctx context.Context, t *testing.T, workloads int) string {
	t.Helper()
	const namespace = "moves"
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	from := nodes.Items[0].Name
	change := func(name, patch string) {
		t.Helper()
		if _, err := client.CoreV1().Nodes().Patch(context.Background(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Error(err)
		}
	}
	cordon := func(on bool) {
		for _, n := range nodes.Items[1:] {
			change(n.Name, fmt.Sprintf(`{"spec": {"unschedulable": %v}}`, on))
		}
	}
	cordon(true)
	t.Cleanup(func() {
		cordon(false)
		change(from, `{"spec": {"taints": null}}`)
		_ = client.CoreV1().Namespaces().Delete(context.Background(), namespace, metav1.DeleteOptions{})
		_ = client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Delete(context.Background(), "berth-rebalance", metav1.DeleteOptions{})
		until(context.Background(), t, func() error {
			if _, err := client.CoreV1().Namespaces().Get(context.Background(), namespace, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("namespace %s is still there: %v", namespace, err)
			}
			return nil
		})
	})
	if _, err := client.CoreV1().Namespaces().Create(ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for n := range workloads {
		name := fmt.Sprintf("app-%d", n)
		labels, grace := map[string]string{"app": name}, int64(1)
		d := &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: appsv1.DeploymentSpec{
				Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: v1.PodTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{Labels: labels},
					Spec:       v1.PodSpec{TerminationGracePeriodSeconds: &grace, Containers: []v1.Container{{Name: "main", Image: "app"}}},
				},
			},
		}
		if _, err := client.AppsV1().Deployments(namespace).Create(ctx, d, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	until(ctx, t, func() error {
		deployments, err := client.AppsV1().Deployments(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, d := range deployments.Items {
			if d.Status.ReadyReplicas != 1 {
				return fmt.Errorf("%s is not ready", d.Name)
			}
		}
		return nil
	})
	change(from, `{"spec": {"taints": [{"key": "old", "effect": "NoSchedule"}]}}`)
	cordon(false)
	return from
}

// until calls a function until it returns nil.
func until(ctx context.Context, t *testing.T, true func() error) {
	t.Helper()
	for err := true(); err != nil; err = true() {
		select {
		case <-ctx.Done():
			t.Fatal(err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
