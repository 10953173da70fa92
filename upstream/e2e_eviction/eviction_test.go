package e2eeviction

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const alone = "--leader-elect=false"

// TestTaintEviction is what a user of kubectl taint sees. The subtests share a
// cluster and each has nodes of its own.
func TestTaintEviction(t *testing.T) {
	shared := newCluster(t)
	startController(t, shared.kubeconfig, alone, "--controllers=taint-eviction-controller")

	for name, test := range map[string]func(*cluster){
		"at once, with event and condition":   atOnce,
		"after the tolerated seconds":         afterSeconds,
		"removed in time":                     removedInTime,
		"smallest of several":                 smallestOfSeveral,
		"three taints, W2":                    threeTaints,
		"bound by hand to a tainted node":     boundByHand,
		"a toleration added to a running pod": tolerationAdded,
		"many pods at once":                   manyAtOnce,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(shared.at(t))
		})
	}
}

func atOnce(c *cluster) {
	c.node("once", nil)
	c.pod("once", "once")
	c.kubectl("taint", "nodes", "once", "key1=value1:NoExecute")
	c.within(10*time.Second, "evicted", func() bool { return c.leaves("once") })
	condition := c.podCondition("once", v1.DisruptionTarget)
	if condition.Status != v1.ConditionTrue || condition.Reason != "DeletionByTaintManager" || condition.Message != "Taint manager: deleting due to NoExecute taint" {
		c.Errorf("condition: %+v", condition)
	}
	c.within(10*time.Second, "event", func() bool {
		return c.hasEvent("once", "TaintManagerEviction", "Marking for deletion Pod default/once")
	})
}

func afterSeconds(c *cluster) {
	c.node("seconds", nil)
	c.pod("seconds", "seconds", tolerates("key1", 4))
	began := time.Now()
	c.kubectl("taint", "nodes", "seconds", "key1=value1:NoExecute")
	tainted := time.Now()
	c.within(10*time.Second, "evicted", func() bool { return c.leaves("seconds") })
	// The API keeps the taint's time in whole seconds.
	if early := began.Add(3 * time.Second); time.Now().Before(early) {
		c.Errorf("evicted %v too early", time.Until(early))
	}
	if late := time.Since(tainted); late > 6*time.Second {
		c.Errorf("evicted after %v", late)
	}
}

func removedInTime(c *cluster) {
	c.node("removed", nil)
	c.pod("removed", "removed", tolerates("key1", 5))
	c.kubectl("taint", "nodes", "removed", "key1=value1:NoExecute")
	c.pod("removed-marker", "removed") // shows that the controller has seen the taint
	c.within(10*time.Second, "taint seen", func() bool { return c.leaves("removed-marker") })
	c.kubectl("taint", "nodes", "removed", "key1=value1:NoExecute-")
	c.within(10*time.Second, "event", func() bool {
		return c.hasEvent("removed", "TaintManagerEviction", "Cancelling deletion of Pod default/removed")
	})
	<-time.After(6 * time.Second) // past the time at which it would have gone
	c.stays("removed")
}

func smallestOfSeveral(c *cluster) {
	c.node("several", nil)
	c.pod("several", "several", tolerates("a", 30), tolerates("b", 2))
	c.kubectl("taint", "nodes", "several", "a=x:NoExecute", "b=x:NoExecute")
	tainted := time.Now()
	c.within(10*time.Second, "evicted", func() bool { return c.leaves("several") })
	if late := time.Since(tainted); late > 5*time.Second {
		c.Errorf("evicted after %v", late)
	}
}

func threeTaints(c *cluster) {
	c.node("three", nil)
	equal := func(effect v1.TaintEffect) v1.Toleration {
		return v1.Toleration{Key: "key1", Operator: v1.TolerationOpEqual, Value: "value1", Effect: effect}
	}
	c.pod("three", "three", equal(v1.TaintEffectNoSchedule), equal(v1.TaintEffectNoExecute))
	c.pod("three-not", "three")
	c.kubectl("taint", "nodes", "three", "key1=value1:NoSchedule", "key1=value1:NoExecute", "key2=value2:NoSchedule")
	c.within(10*time.Second, "the other is evicted", func() bool { return c.leaves("three-not") })
	c.stays("three")
}

func boundByHand(c *cluster) {
	c.node("hand", nil)
	c.kubectl("taint", "nodes", "hand", "a=x:NoSchedule")
	c.pod("hand", "hand") // NoSchedule is the scheduler's, and asks nobody to go
	c.kubectl("taint", "nodes", "hand", "b=x:NoExecute")
	c.within(10*time.Second, "evicted", func() bool { return c.leaves("hand") })
	c.pod("hand-2", "hand")
	c.within(10*time.Second, "evicted", func() bool { return c.leaves("hand-2") })
}

func tolerationAdded(c *cluster) {
	c.node("added", nil)
	c.pod("added", "added", tolerates("a", 5))
	c.kubectl("taint", "nodes", "added", "a=x:NoExecute")
	pod, err := c.client.CoreV1().Pods("default").Get(c.Context(), "added", metav1.GetOptions{})
	c.must(err)
	longer := int64(3600)
	for i := range pod.Spec.Tolerations {
		if pod.Spec.Tolerations[i].Key == "a" {
			pod.Spec.Tolerations[i].TolerationSeconds = &longer
		}
	}
	_, err = c.client.CoreV1().Pods("default").Update(c.Context(), pod, metav1.UpdateOptions{})
	c.must(err)
	<-time.After(7 * time.Second) // past the time that the old toleration gave
	c.stays("added")
}

func manyAtOnce(c *cluster) {
	const pods = 100
	c.node("many", nil)
	for i := range pods {
		c.pod(fmt.Sprintf("many-%d", i), "many")
	}
	c.kubectl("taint", "nodes", "many", "a=x:NoExecute")
	for i := range pods {
		c.within(30*time.Second, "all are evicted", func() bool { return c.leaves(fmt.Sprintf("many-%d", i)) })
	}
}

// TestCountdownSurvivesKill kills the controller with SIGKILL in mid-countdown,
// twice. kubectl wrote no timeAdded. The API server tracks nothing of a node
// that was created bare, so that nothing but Berth's note tells its taint's time.
func TestCountdownSurvivesKill(t *testing.T) {
	c := newCluster(t)
	c.node("n", nil)
	_, err := c.client.CoreV1().Nodes().Create(t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "bare"}}, metav1.CreateOptions{})
	c.must(err)
	c.pod("p", "n", tolerates("a", 14), tolerates("b"))
	c.pod("q", "bare", tolerates("a", 14))
	first := startController(t, c.kubeconfig, alone)
	began := time.Now()
	c.kubectl("taint", "nodes", "n", "bare", "a=x:NoExecute")
	<-time.After(2 * time.Second)
	// Another taint, so that the list's own time no longer tells.
	c.kubectl("taint", "nodes", "n", "b=x:NoExecute")
	for _, node := range []string{"n", "bare"} {
		c.within(10*time.Second, "note on node "+node, func() bool {
			n, err := c.client.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
			return err == nil && strings.Contains(n.Annotations["berth.dev/taints-since"], `"of":`)
		})
	}
	first.kill()
	<-time.After(time.Second)
	startController(t, c.kubeconfig, alone).kill()
	startController(t, c.kubeconfig, alone)
	for _, pod := range []string{"p", "q"} {
		c.within(20*time.Second, "evicted", func() bool { return c.leaves(pod) })
		after := time.Since(began)
		if after < 13*time.Second || after > 17*time.Second {
			t.Errorf("%s evicted %v after the taint, want 14 s", pod, after)
		}
		t.Logf("%s evicted %v after the taint", pod, after)
	}
}

// TestLeaderIsReplaced kills the leader of two; the other one evicts.
func TestLeaderIsReplaced(t *testing.T) {
	c := newCluster(t)
	c.node("n", nil)
	lead := []string{"--leader-elect-lease-duration=3s", "--leader-elect-renew-deadline=2s", "--leader-elect-retry-period=500ms"}
	first := startController(t, c.kubeconfig, lead...)
	c.within(10*time.Second, "a leader", func() bool {
		lease, err := c.client.CoordinationV1().Leases("kube-system").Get(t.Context(), "berth-controller", metav1.GetOptions{})
		return err == nil && lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity != ""
	})
	second := startController(t, c.kubeconfig, lead...)
	c.pod("p", "n", tolerates("a", 5))
	c.kubectl("taint", "nodes", "n", "a=x:NoExecute")
	first.kill()
	c.within(15*time.Second, "evicted by the other", func() bool { return c.leaves("p") })
	second.stop()
}

// TestBudgetsAreRespected is H13: a budget holds evictions up until the deadline.
func TestBudgetsAreRespected(t *testing.T) {
	c := newCluster(t)
	c.node("n", nil)
	c.pod("p", "n")
	one := intstr.FromInt32(1)
	_, err := c.client.PolicyV1().PodDisruptionBudgets("default").Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "b"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: &one, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "n"}}},
	}, metav1.CreateOptions{})
	c.must(err)
	pod, err := c.client.CoreV1().Pods("default").Get(t.Context(), "p", metav1.GetOptions{})
	c.must(err)
	pod.Status.Phase = v1.PodRunning
	pod.Status.Conditions = append(pod.Status.Conditions, v1.PodCondition{Type: v1.PodReady, Status: v1.ConditionTrue})
	_, err = c.client.CoreV1().Pods("default").UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
	c.must(err)
	c.within(10*time.Second, "budget counted", func() bool {
		b, err := c.client.PolicyV1().PodDisruptionBudgets("default").Get(t.Context(), "b", metav1.GetOptions{})
		return err == nil && b.Status.ObservedGeneration == b.Generation && b.Status.CurrentHealthy == 1
	})
	startController(t, c.kubeconfig, alone, "--evict-through-budgets", "--eviction-deadline=6s")
	c.kubectl("taint", "nodes", "n", "a=x:NoExecute")
	tainted := time.Now()
	c.within(15*time.Second, "evicted", func() bool { return c.leaves("p") })
	if after := time.Since(tainted); after < 4*time.Second {
		t.Errorf("evicted after %v in spite of the budget", after)
	}
	if reason := c.podCondition("p", v1.DisruptionTarget).Reason; reason != "DeletionByTaintManager" {
		t.Errorf("reason %q", reason)
	}
}
