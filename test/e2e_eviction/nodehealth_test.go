// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2eeviction

import (
	"io"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestNodeHealth verifies the effects of node health with both controllers enabled, and with short
// periods.
func TestNodeHealth(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	silent := make(chan struct{})
	c.node("n1", nil)
	c.node("n2", silent)
	c.pod("waits", "n2", tolerates("node.kubernetes.io/unreachable", 2))
	c.pod("guards", "n2", tolerates("node.kubernetes.io/unreachable"), tolerates("node.kubernetes.io/not-ready"))
	c.runs("waits")
	c.runs("guards")
	p := startController(t, c.kubeconfig, alone, "--node-monitor-period=500ms", "--node-monitor-grace-period=5s", "--node-eviction-rate=10")

	t.Run("uninitialized", func(t *testing.T) { uninitialized(c.at(t)) })
	conditionsBecomeTaints(c)
	cordonBecomesTaint(c)
	aNodeThatAlternates(c)

	close(silent)
	c.within(20*time.Second, "Ready=Unknown", func() bool {
		n, err := c.client.CoreV1().Nodes().Get(t.Context(), "n2", metav1.GetOptions{})
		c.must(err)
		for _, condition := range n.Status.Conditions {
			if condition.Type == v1.NodeReady {
				return condition.Status == v1.ConditionUnknown && condition.Reason == "NodeStatusUnknown"
			}
		}
		return false
	})
	c.within(time.Minute, "taints", func() bool {
		return c.hasTaint("n2", "node.kubernetes.io/unreachable:NoSchedule") && c.hasTaint("n2", "node.kubernetes.io/unreachable:NoExecute")
	})
	c.within(time.Minute, "pods not ready", func() bool {
		return c.podCondition("guards", v1.PodReady).Status == v1.ConditionFalse
	})
	c.within(time.Minute, "evicted", func() bool { return c.leaves("waits") })
	c.stays("guards")

	c.condition("n2", v1.NodeReady, v1.ConditionTrue)
	c.within(time.Minute, "no taints", func() bool { return len(c.taints("n2")) == 0 })

	scrape(c, p, append(nodeHealthMetrics, "taint_eviction_controller_pod_deletions_total 2")...)
	p.stop()
}

func conditionsBecomeTaints(c *cluster) {
	c.Helper()
	for _, row := range []struct {
		condition v1.NodeConditionType
		on, off   v1.ConditionStatus
		taint     string
	}{
		{v1.NodeMemoryPressure, v1.ConditionTrue, v1.ConditionFalse, "node.kubernetes.io/memory-pressure:NoSchedule"},
		{v1.NodeDiskPressure, v1.ConditionTrue, v1.ConditionFalse, "node.kubernetes.io/disk-pressure:NoSchedule"},
		{v1.NodePIDPressure, v1.ConditionTrue, v1.ConditionFalse, "node.kubernetes.io/pid-pressure:NoSchedule"},
		{v1.NodeNetworkUnavailable, v1.ConditionTrue, v1.ConditionFalse, "node.kubernetes.io/network-unavailable:NoSchedule"},
		{v1.NodeReady, v1.ConditionFalse, v1.ConditionTrue, "node.kubernetes.io/not-ready:NoSchedule"},
		{v1.NodeReady, v1.ConditionFalse, v1.ConditionTrue, "node.kubernetes.io/not-ready:NoExecute"},
	} {
		c.condition("n1", row.condition, row.on)
		c.within(time.Minute, row.taint+" on", func() bool { return c.hasTaint("n1", row.taint) })
		c.condition("n1", row.condition, row.off)
		c.within(time.Minute, row.taint+" off", func() bool { return !c.hasTaint("n1", row.taint) })
	}
}

func cordonBecomesTaint(c *cluster) {
	c.Helper()
	const taint = "node.kubernetes.io/unschedulable:NoSchedule"
	c.kubectl("taint", "nodes", "n1", "mine=x:NoSchedule")
	c.kubectl("cordon", "n1")
	c.within(time.Minute, taint+" on", func() bool { return c.hasTaint("n1", taint) })
	c.kubectl("uncordon", "n1")
	c.within(time.Minute, taint+" off", func() bool { return !c.hasTaint("n1", taint) })
	if !c.hasTaint("n1", "mine=x:NoSchedule") {
		c.Error("a taint of somebody else was removed")
	}
}

// aNodeThatAlternates verifies that the pods of a node that alternates between not-ready and
// unreachable are evicted after their tolerationSeconds: a taint keeps the time of the taint that
// it replaces.
func aNodeThatAlternates(c *cluster) {
	c.Helper()
	const notReady, unreachable = "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"
	c.node("turns", nil)
	c.pod("endures", "turns", tolerates(notReady, 12), tolerates(unreachable, 12))
	turns := 0
	c.within(time.Minute, "evicted from a node that alternates", func() bool {
		status, taint := v1.ConditionFalse, notReady
		if turns%2 == 1 {
			status, taint = v1.ConditionUnknown, unreachable
		}
		turns++
		c.condition("turns", v1.NodeReady, status)
		c.within(time.Minute, taint+" on", func() bool { return c.hasTaint("turns", taint+":NoExecute") })
		return c.leaves("endures")
	})
	if turns < 3 {
		c.Errorf("the pod left after %d turns", turns)
	}
	c.condition("turns", v1.NodeReady, v1.ConditionTrue)
	c.within(time.Minute, "no taints", func() bool { return len(c.taints("turns")) == 0 })
}

var (
	evictionMetrics = []string{
		"taint_eviction_controller_pod_deletions_total ",
		"taint_eviction_controller_pod_deletion_duration_seconds_bucket{le=\"0.5\"}",
		"berth_eviction_retries_total", "berth_eviction_cancelled_total", "berth_eviction_averted_total",
	}
	nodeHealthMetrics = []string{
		"node_collector_zone_health{", "node_collector_zone_size{", "node_collector_unhealthy_nodes_in_zone{", "node_collector_evictions_total{",
		"node_collector_update_all_nodes_health_duration_seconds_count", "node_collector_update_node_health_duration_seconds_count",
		"berth_node_health_eviction_rate_nodes_per_second{", "berth_node_health_evictions_waiting{",
	}
)

// scrape verifies that the health endpoints return 200 and that the metrics contain the given
// lines.
func scrape(c *cluster, p *child, names ...string) {
	c.Helper()
	for _, path := range []string{"/healthz", "/livez", "/readyz"} {
		if status, body := get(c, p.address+path); status != http.StatusOK {
			c.Errorf("%s: %d %s", path, status, body)
		}
	}
	for _, name := range names {
		c.within(5*time.Second, "metric "+name, func() bool {
			_, body := get(c, p.address+"/metrics")
			return strings.Contains(body, name)
		})
	}
}

func get(c *cluster, url string) (int, string) {
	c.Helper()
	response, err := http.Get("http://" + url)
	c.must(err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	c.must(err)
	return response.StatusCode, string(body)
}

// uninitialized verifies that the scheduler respects the taint of a node that its cloud provider
// has not initialized yet, and that the node health controller does not remove the taint.
func uninitialized(c *cluster) {
	const taint = "node.cloudprovider.kubernetes.io/uninitialized=true:NoSchedule"
	c.node("young", nil)
	c.kubectl("taint", "nodes", "young", taint)
	newChild(c, exec.Command(program(c, "berth"), "scheduler", "--kubeconfig", c.kubeconfig)).start()
	spec := podSpec("")
	spec.NodeSelector = map[string]string{v1.LabelTopologyZone: "z-young"}
	_, err := c.client.CoreV1().Pods("default").Create(c.Context(), &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "homeless"}, Spec: spec}, metav1.CreateOptions{})
	c.must(err)
	c.condition("young", v1.NodeMemoryPressure, v1.ConditionTrue) // makes the controller write the node's taints
	c.within(time.Minute, "taint of the condition", func() bool { return c.hasTaint("young", "node.kubernetes.io/memory-pressure:NoSchedule") })
	c.condition("young", v1.NodeMemoryPressure, v1.ConditionFalse)
	c.within(time.Minute, "only the provider's taint", func() bool { return len(c.taints("young")) == 1 && c.hasTaint("young", taint) })
	c.within(20*time.Second, "the scheduler says why", func() bool {
		return strings.Contains(c.podCondition("homeless", v1.PodScheduled).Message, "untolerated taint")
	})
	c.kubectl("taint", "nodes", "young", taint+"-")
	c.within(20*time.Second, "placed", func() bool {
		pod, err := c.client.CoreV1().Pods("default").Get(c.Context(), "homeless", metav1.GetOptions{})
		return err == nil && pod.Spec.NodeName == "young"
	})
}
