// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2eeviction

import (
	"context"
	"flag"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// budget creates a budget for the pods of an app, and waits until its status counts the healthy
// pods.
func (c *cluster) budget(app string, healthy int32) {
	c.Helper()
	one := intstr.FromInt32(1)
	budgets := c.client.PolicyV1().PodDisruptionBudgets("default")
	_, err := budgets.Create(c.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: app},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: &one, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
	}, metav1.CreateOptions{})
	c.must(err)
	c.within(time.Minute, "budget counted", func() bool {
		b, err := budgets.Get(c.Context(), app, metav1.GetOptions{})
		return err == nil && b.Status.ObservedGeneration == b.Generation && b.Status.CurrentHealthy == healthy
	})
}

// runs sets a pod's status to Running and Ready, as a kubelet does.
func (c *cluster) runs(name string) {
	c.Helper()
	pod, err := c.client.CoreV1().Pods("default").Get(c.Context(), name, metav1.GetOptions{})
	c.must(err)
	pod.Status.Phase = v1.PodRunning
	pod.Status.Conditions = append(pod.Status.Conditions, v1.PodCondition{Type: v1.PodReady, Status: v1.ConditionTrue})
	_, err = c.client.CoreV1().Pods("default").UpdateStatus(c.Context(), pod, metav1.UpdateOptions{})
	c.must(err)
}

// TestDisruptions verifies disruptions with budgets: taint evictions, kubectl drain, and nodes out
// of service. The subtests share a cluster.
func TestDisruptions(t *testing.T) {
	t.Parallel()
	shared := newCluster(t)
	p := startController(t, shared.kubeconfig, alone, "--node-monitor-period=500ms", "--evict-through-budgets", "--eviction-deadline=15s")
	t.Run("all", func(t *testing.T) {
		for name, test := range map[string]func(*cluster){"NoExecute": budgetsAreRespected, "kubectl": byKubectl, "out of service": outOfService} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(shared.at(t))
			})
		}
	})
	p.stop()
}

// budgetsAreRespected verifies that with --evict-through-budgets a budget delays an eviction until
// the budget permits it, or until the deadline.
func budgetsAreRespected(c *cluster) {
	for _, app := range []string{"held", "freed"} {
		c.node(app, nil)
		c.pod(app, app)
		c.runs(app)
		c.budget(app, 1)
	}
	tainted := time.Now()
	c.kubectl("taint", "nodes", "held", "freed", "a=x:NoExecute")
	<-time.After(2 * time.Second)
	c.stays("held")
	c.stays("freed")
	c.must(c.client.PolicyV1().PodDisruptionBudgets("default").Delete(c.Context(), "freed", metav1.DeleteOptions{}))
	c.within(13*time.Second, "evicted when the budget is gone", func() bool { return c.leaves("freed") })
	if reason := c.podCondition("freed", v1.DisruptionTarget).Reason; reason != "EvictionByEvictionAPI" {
		c.Errorf("reason %q of what the budget let through", reason)
	}
	c.within(time.Minute, "evicted at the deadline", func() bool { return c.leaves("held") })
	if after := time.Since(tainted); after < 14*time.Second {
		c.Errorf("evicted after %v in spite of the budget", after)
	}
	if reason := c.podCondition("held", v1.DisruptionTarget).Reason; reason != "DeletionByTaintManager" {
		c.Errorf("reason %q of what went at the deadline", reason)
	}
}

// byKubectl verifies cordon, the response 429 of the Eviction API, and kubectl drain, which retries
// until the budget permits the eviction.
func byKubectl(c *cluster) {
	c.node("old", nil)
	c.node("new", nil)
	for _, pod := range []string{"first", "second"} {
		c.pod(pod, "old")
	}
	c.runs("first")
	c.budget("old", 1)

	c.kubectl("cordon", "old")
	c.within(time.Minute, "cordon becomes a taint", func() bool { return c.hasTaint("old", "node.kubernetes.io/unschedulable:NoSchedule") })
	c.stays("first")

	err := c.client.CoreV1().Pods("default").EvictV1(c.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "first"}})
	if !apierrors.IsTooManyRequests(err) {
		c.Errorf("the Eviction API answers %v, want 429: the budget allows no disruption", err)
	}
	drained := make(chan string, 1)
	go func() {
		out, err := c.tryKubectl("drain", "old", "--force", "--timeout=60s")
		if err != nil {
			out += err.Error()
		}
		drained <- out
	}()
	c.within(time.Minute, "drain evicts what is not ready", func() bool { return c.leaves("second") })
	<-time.After(time.Second)
	c.stays("first")
	c.must(c.client.PolicyV1().PodDisruptionBudgets("default").Delete(c.Context(), "old", metav1.DeleteOptions{}))
	c.within(time.Minute, "drain tries again", func() bool { return c.leaves("first") })
	for _, pod := range []string{"first", "second"} {
		if reason := c.podCondition(pod, v1.DisruptionTarget).Reason; reason != "EvictionByEvictionAPI" {
			c.Errorf("%s: reason %q", pod, reason)
		}
		c.must(c.client.CoreV1().Pods("default").Delete(context.Background(), pod, *metav1.NewDeleteOptions(0))) // as a kubelet does
	}
	if out := <-drained; !strings.Contains(out, "drained") || !strings.Contains(out, "will retry after 5s") {
		c.Errorf("kubectl drain: %s", out)
	}
	c.kubectl("uncordon", "old")
	c.within(time.Minute, "uncordon takes the taint off", func() bool { return !c.hasTaint("old", "node.kubernetes.io/unschedulable:NoSchedule") })
}

// outOfService verifies that a terminating pod on a node with the taint out-of-service is deleted.
// The pod garbage collector of kube-controller-manager, which the control plane runs, does that.
func outOfService(c *cluster) {
	c.node("out", nil)
	c.condition("out", v1.NodeReady, v1.ConditionFalse)
	c.pod("hangs", "out", tolerates("node.kubernetes.io/not-ready"), tolerates("node.kubernetes.io/out-of-service"))
	c.must(c.client.CoreV1().Pods("default").Delete(c.Context(), "hangs", metav1.DeleteOptions{}))
	c.kubectl("taint", "nodes", "out", "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute")
	c.within(45*time.Second, "ended by the collector", func() bool {
		_, err := c.client.CoreV1().Pods("default").Get(c.Context(), "hangs", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

var slow = flag.Bool("slow", false, "also wait the minute that kube-controller-manager's pod garbage collector takes")

// TestOrphans verifies that the pods of a deleted node are deleted by the pod garbage collector of
// kube-controller-manager, and not by Berth.
//
//	go test ./e2e_eviction -run TestOrphans -slow
func TestOrphans(t *testing.T) {
	if !*slow {
		t.Skip("takes a minute; run with -slow")
	}
	c := newCluster(t)
	startController(t, c.kubeconfig, alone)
	c.node("goes", nil)
	c.pod("orphan", "goes")
	w, err := c.client.CoreV1().Pods("default").Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=orphan"})
	c.must(err)
	defer w.Stop()
	c.kubectl("delete", "node", "goes")
	for limit := time.After(2 * time.Minute); ; {
		select {
		case <-limit:
			t.Fatal("the collector has not taken it")
		case event := <-w.ResultChan():
			for _, condition := range event.Object.(*v1.Pod).Status.Conditions {
				if condition.Type == v1.DisruptionTarget && condition.Reason == "DeletionByPodGC" {
					return
				}
			}
		}
	}
}
