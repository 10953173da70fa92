// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2eeviction

import (
	"context"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const alone = "--leader-elect=false"

// TestTaintEviction verifies the effects of kubectl taint that users can see. The subtests share a
// cluster, but have separate nodes.
func TestTaintEviction(t *testing.T) {
	t.Parallel()
	shared := newClusterWith(t) // Berth's admission rules set the taints' timeAdded
	p := startController(t, shared.kubeconfig, alone, "--controllers=taint-eviction-controller")
	t.Run("rows", func(t *testing.T) { eachRow(t, shared) })
	shared.node("pending", nil)
	shared.pod("pending", "pending", tolerates("pending", 600))
	shared.kubectl("taint", "nodes", "pending", "pending=x:NoExecute")
	scrape(shared, p, append(evictionMetrics, `berth_eviction_pending{taint="pending:NoExecute"} 1`)...)
	p.stop()
}

func eachRow(t *testing.T, shared *cluster) {
	for name, test := range map[string]func(*cluster){
		"at once, with event and condition":   atOnce,
		"after the tolerated seconds":         afterSeconds,
		"removed in time":                     removedInTime,
		"smallest of several":                 smallestOfSeveral,
		"three taints, W2":                    threeTaints,
		"bound by hand to a tainted node":     boundByHand,
		"a toleration added to a running pod": tolerationAdded,
		"many pods at once":                   manyAtOnce,
		"StatefulSet, no toleration":          setWithout,
		"StatefulSet, tolerated for seconds":  setForSeconds,
		"StatefulSet, tolerated for ever":     setForEver,
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
	c.within(time.Minute, "evicted", func() bool { return c.leaves("once") })
	condition := c.podCondition("once", v1.DisruptionTarget)
	if condition.Status != v1.ConditionTrue || condition.Reason != "DeletionByTaintManager" || condition.Message != "Taint manager: deleting due to NoExecute taint" {
		c.Errorf("condition: %+v", condition)
	}
	c.within(time.Minute, "event", func() bool {
		return c.hasEvent("once", "TaintManagerEviction", "Marking for deletion Pod default/once")
	})
}

func afterSeconds(c *cluster) {
	c.node("seconds", nil)
	c.pod("seconds", "seconds", tolerates("key1", 4))
	began := time.Now()
	c.kubectl("taint", "nodes", "seconds", "key1=value1:NoExecute")
	tainted := time.Now()
	c.within(time.Minute, "evicted", func() bool { return c.leaves("seconds") })
	// The taint's time is in whole seconds, so the eviction may be up to a second early.
	if early := began.Add(3 * time.Second); time.Now().Before(early) {
		c.Errorf("evicted %v too early", time.Until(early))
	}
	if late := time.Since(tainted); late > 20*time.Second {
		c.Errorf("evicted after %v", late)
	}
}

func removedInTime(c *cluster) {
	c.node("removed", nil)
	c.pod("removed", "removed", tolerates("key1", 5))
	c.kubectl("taint", "nodes", "removed", "key1=value1:NoExecute")
	c.pod("removed-marker", "removed") // its eviction shows that the controller has observed the taint
	c.within(time.Minute, "taint seen", func() bool { return c.leaves("removed-marker") })
	c.kubectl("taint", "nodes", "removed", "key1=value1:NoExecute-")
	c.within(time.Minute, "event", func() bool {
		return c.hasEvent("removed", "TaintManagerEviction", "Cancelling deletion of Pod default/removed")
	})
	<-time.After(6 * time.Second) // longer than the original tolerationSeconds
	c.stays("removed")
}

func smallestOfSeveral(c *cluster) {
	c.node("several", nil)
	c.pod("several", "several", tolerates("a", 30), tolerates("b", 2))
	c.kubectl("taint", "nodes", "several", "a=x:NoExecute", "b=x:NoExecute")
	tainted := time.Now()
	c.within(time.Minute, "evicted", func() bool { return c.leaves("several") })
	if late := time.Since(tainted); late > 20*time.Second {
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
	c.within(time.Minute, "the other is evicted", func() bool { return c.leaves("three-not") })
	c.stays("three")
}

func boundByHand(c *cluster) {
	c.node("hand", nil)
	c.kubectl("taint", "nodes", "hand", "a=x:NoSchedule")
	c.pod("hand", "hand") // NoSchedule affects only scheduling
	c.kubectl("taint", "nodes", "hand", "b=x:NoExecute")
	c.within(time.Minute, "evicted", func() bool { return c.leaves("hand") })
	c.pod("hand-2", "hand")
	c.within(time.Minute, "evicted", func() bool { return c.leaves("hand-2") })
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
	<-time.After(7 * time.Second) // longer than the previous tolerationSeconds
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
		c.within(time.Minute, "all are evicted", func() bool { return c.leaves(fmt.Sprintf("many-%d", i)) })
	}
}

// set creates a node, and a StatefulSet whose template binds its pod to the node.
func (c *cluster) set(name string, tolerations ...v1.Toleration) {
	c.Helper()
	c.node(name, nil)
	labels := map[string]string{"set": name}
	_, err := c.client.AppsV1().StatefulSets("default").Create(c.Context(), &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.StatefulSetSpec{
			Replicas: new(int32(1)),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: podSpec(name, tolerations...)},
		},
	}, metav1.CreateOptions{})
	c.must(err)
	c.Cleanup(func() {
		c.client.AppsV1().StatefulSets("default").Delete(context.Background(), name, metav1.DeleteOptions{})
	})
	c.newPod(name+"-0", "")
}

// newPod waits until a pod with the name and a UID other than before exists, and returns its UID
// and the time.
func (c *cluster) newPod(name string, before types.UID) (types.UID, time.Time) {
	c.Helper()
	var uid types.UID
	c.within(time.Minute, "new pod "+name, func() bool {
		pod, err := c.client.CoreV1().Pods("default").Get(c.Context(), name, metav1.GetOptions{})
		if err == nil {
			uid = pod.UID
		}
		return err == nil && uid != before
	})
	return uid, time.Now()
}

// setWithout verifies that a pod without a toleration, and each successor with the same name, is
// evicted until the taint is removed.
func setWithout(c *cluster) {
	c.set("set-without")
	uid, _ := c.newPod("set-without-0", "")
	c.kubectl("taint", "nodes", "set-without", "a=x:NoExecute")
	for range 3 {
		uid, _ = c.newPod("set-without-0", uid)
	}
	c.kubectl("taint", "nodes", "set-without", "a=x:NoExecute-")
	<-time.After(time.Second)
	uid, _ = c.newPod("set-without-0", "")
	<-time.After(2 * time.Second)
	if now, _ := c.newPod("set-without-0", ""); now != uid {
		c.Error("evicted after the taint was gone")
	}
}

// setForSeconds verifies that the pod leaves after its tolerationSeconds, and that they start again
// for its successor.
func setForSeconds(c *cluster) {
	c.set("set-seconds", tolerates("a", 3))
	uid, _ := c.newPod("set-seconds-0", "")
	c.kubectl("taint", "nodes", "set-seconds", "a=x:NoExecute")
	began := time.Now()
	for range 2 {
		successor, at := c.newPod("set-seconds-0", uid)
		if after := at.Sub(began); after < time.Second || after > 20*time.Second { // early by rounding to whole seconds, late on a busy machine
			c.Errorf("replaced after %v, want 3 s", after)
		}
		uid, began = successor, at
	}
}

func setForEver(c *cluster) {
	c.set("set-ever", tolerates("a"))
	uid, _ := c.newPod("set-ever-0", "")
	c.pod("set-ever-marker", "set-ever")
	c.kubectl("taint", "nodes", "set-ever", "a=x:NoExecute")
	c.within(time.Minute, "taint seen", func() bool { return c.leaves("set-ever-marker") })
	<-time.After(2 * time.Second)
	if now, _ := c.newPod("set-ever-0", ""); now != uid {
		c.Error("evicted in spite of its toleration")
	}
}
