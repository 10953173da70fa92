package e2eeviction

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestNodeHealth is a controller with both parts, and periods short enough to
// watch.
func TestNodeHealth(t *testing.T) {
	c := newCluster(t)
	silent := make(chan struct{})
	c.node("n1", nil)
	c.node("n2", silent)
	c.pod("waits", "n2", tolerates("node.kubernetes.io/unreachable", 2))
	c.pod("guards", "n2", tolerates("node.kubernetes.io/unreachable"), tolerates("node.kubernetes.io/not-ready"))
	ready(c, "waits")
	ready(c, "guards")
	p := startController(t, c.kubeconfig, alone, "--node-monitor-period=500ms", "--node-monitor-grace-period=5s", "--node-eviction-rate=10")

	conditionsBecomeTaints(c)
	cordonBecomesTaint(c)

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
	c.within(10*time.Second, "taints", func() bool {
		return c.hasTaint("n2", "node.kubernetes.io/unreachable:NoSchedule") && c.hasTaint("n2", "node.kubernetes.io/unreachable:NoExecute")
	})
	c.within(10*time.Second, "pods not ready", func() bool {
		return c.podCondition("guards", v1.PodReady).Status == v1.ConditionFalse
	})
	c.within(10*time.Second, "evicted", func() bool { return c.leaves("waits") })
	c.stays("guards")

	c.condition("n2", v1.NodeReady, v1.ConditionTrue)
	c.within(10*time.Second, "no taints", func() bool { return len(c.taints("n2")) == 0 })

	scrape(c, p)
	p.stop()
}

func ready(c *cluster, name string) {
	c.Helper()
	pod, err := c.client.CoreV1().Pods("default").Get(c.Context(), name, metav1.GetOptions{})
	c.must(err)
	pod.Status.Conditions = append(pod.Status.Conditions, v1.PodCondition{Type: v1.PodReady, Status: v1.ConditionTrue})
	_, err = c.client.CoreV1().Pods("default").UpdateStatus(c.Context(), pod, metav1.UpdateOptions{})
	c.must(err)
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
		c.within(10*time.Second, row.taint+" on", func() bool { return c.hasTaint("n1", row.taint) })
		c.condition("n1", row.condition, row.off)
		c.within(10*time.Second, row.taint+" off", func() bool { return !c.hasTaint("n1", row.taint) })
	}
}

func cordonBecomesTaint(c *cluster) {
	c.Helper()
	const taint = "node.kubernetes.io/unschedulable:NoSchedule"
	c.kubectl("taint", "nodes", "n1", "mine=x:NoSchedule")
	c.kubectl("cordon", "n1")
	c.within(10*time.Second, taint+" on", func() bool { return c.hasTaint("n1", taint) })
	c.kubectl("uncordon", "n1")
	c.within(10*time.Second, taint+" off", func() bool { return !c.hasTaint("n1", taint) })
	if !c.hasTaint("n1", "mine=x:NoSchedule") {
		c.Error("a taint of somebody else was removed")
	}
}

func scrape(c *cluster, p *process) {
	c.Helper()
	for _, path := range []string{"/healthz", "/livez", "/readyz"} {
		if status, body := get(c, p.address+path); status != http.StatusOK {
			c.Errorf("%s: %d %s", path, status, body)
		}
	}
	var body string
	c.within(5*time.Second, "metrics", func() bool {
		_, body = get(c, p.address+"/metrics")
		return strings.Contains(body, "taint_eviction_controller_pod_deletions_total 1")
	})
	for _, name := range []string{
		"taint_eviction_controller_pod_deletion_duration_seconds_count 1",
		"berth_eviction_retries_total", "berth_eviction_cancelled_total", "berth_eviction_averted_total",
		"node_collector_zone_health", "node_collector_zone_size", "node_collector_unhealthy_nodes_in_zone", "node_collector_evictions_total",
		"berth_node_health_eviction_rate_nodes_per_second",
	} {
		if !strings.Contains(body, name) {
			c.Errorf("no metric %s", name)
		}
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
