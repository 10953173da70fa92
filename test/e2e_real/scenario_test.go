// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2ereal

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"text/tabwriter"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-k8s/berth/test/internal/process"
)

// scenario is something that happens to a node or to its pods.
type scenario struct {
	name     string
	promised string
	// run returns the observation. It fails the test if the promise is broken.
	run func(*cluster) string
}

// failures run with Berth instead of kube-scheduler and of the two controllers.
var failures = []scenario{
	{"link down", unreachable, (*cluster).linkDown},
	{"kubelet killed", unreachable, (*cluster).kubeletKilled},
	{"node frozen", unreachable, (*cluster).frozen},
	{"containerd killed", notReady, (*cluster).containerdKilled},
	{"preemption", "the victim has its grace period; only then the preemptor runs", (*cluster).preemption},
	{"device plugin", "the same for a device; no pod is placed on a broken device", (*cluster).devicePlugin},
	{"device taint", "the pod with a claim is evicted after its toleration; replaced with another device", (*cluster).deviceTaint},
	{"DRA example driver", "the same for a taint by a DeviceTaintRule; replaced when it is lifted; each claim prepared and released", (*cluster).exampleDriver},
	{"graceful shutdown", "taint not-ready, its pod ends in its grace period, replaced, removed after tolerationSeconds", (*cluster).gracefulShutdown},
	{"clock step", clockPromise, (*cluster).clockStep},
	{"clock step, Berth's node", clockPromise, (*cluster).berthClockStep},
	{"short pods", "200 pods of 5 s in each round, 12 at a time, all end", (*cluster).shortPods},
	{"NoExecute flood", "30 pods: evicted now, after tolerationSeconds, or never", (*cluster).flood},
	{"disk full", "taint disk-pressure, no new pod there, taint removed", (*cluster).diskFull},
	{"memory hog", "taint memory-pressure, the hog evicted, taint removed", (*cluster).memoryHog},
}

// drains run with the eviction guard in addition.
var drains = []scenario{
	{"drains, guarded", "no request fails", (*cluster).drainsGuarded},
	{"drains, unguarded", "requests fail while the only pod moves", (*cluster).drainsUnguarded},
}

const (
	unreachable  = "taint unreachable 40 s to 60 s after the failure, eviction after tolerationSeconds, replaced, recovered"
	clockPromise = "10 min ahead, and behind: no taint, no eviction, Berth keeps its Leases"
	notReady     = "taint not-ready, eviction after tolerationSeconds, replaced, recovered"
)

// row is a line of the table.
type row struct {
	scenario
	observed []string
	took     []string
}

// runScenarios runs the chosen scenarios the given number of times, and returns the rows with those
// of earlier scenarios.
func (c *cluster) runScenarios(rows []row, all []scenario) []row {
	c.Helper()
	chosen := regexp.MustCompile(*only)
	for _, s := range all {
		if !chosen.MatchString(s.name) {
			continue
		}
		r := row{scenario: s}
		for range *times {
			began, before, observed := time.Now(), cpuUsage(), "failed"
			if !c.part(s.name, func(c *cluster) {
				defer c.clear()
				observed = s.run(c)
			}) {
				observed = "**broken**: " + observed
			}
			r.observed = append(r.observed, observed)
			r.took = append(r.took, fmt.Sprintf("%.0f", time.Since(began).Seconds()))
			c.Logf("%s: %s", s.name, observed)
			c.Logf("%s: load average %s; CPU seconds: %s", s.name, process.LoadAverage(), cpuUsage().since(before))
		}
		rows = append(rows, r)
		c.must(writeTable(rows))
	}
	return rows
}

// clear removes the pods of a scenario, and waits until all nodes are as before.
func (c *cluster) clear() {
	c.Helper()
	c.kubectl("delete", "deployments,jobs,services,poddisruptionbudgets,pods", "-n", "default", "-l", "scenario", "--timeout=120s")
	c.eventually("all nodes are as before", func() error {
		nodes, err := c.client.CoreV1().Nodes().List(c.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, n := range nodes.Items {
			want := 0
			if n.Name == c.nodes[0].name {
				want = 1 // of the control plane
			}
			if !nodeReady(&n) || len(n.Spec.Taints) != want {
				return fmt.Errorf("%s: ready %v, taints %v", n.Name, nodeReady(&n), n.Spec.Taints)
			}
		}
		return nil
	})
}

// writeTable writes the rows as Markdown into the file of the flag -table.
func writeTable(rows []row) error {
	var text strings.Builder
	text.WriteString("| scenario | promised | observed | seconds |\n| --- | --- | --- | --- |\n")
	for _, r := range rows {
		fmt.Fprintf(&text, "| %s | %s | %s | %s |\n", r.name, r.promised, strings.Join(r.observed, "; "), strings.Join(r.took, ", "))
	}
	if *table == "" {
		w := tabwriter.NewWriter(os.Stdout, 0, 0, 1, ' ', 0)
		fmt.Fprint(w, text.String())
		return w.Flush()
	}
	return os.WriteFile(*table, []byte(text.String()), 0o644)
}

// pods returns the pods of the default namespace with the label scenario=value.
func (c *cluster) pods(value string) []v1.Pod {
	c.Helper()
	list, err := c.client.CoreV1().Pods("default").List(c.Context(), metav1.ListOptions{
		LabelSelector: labels.Set{"scenario": value}.String()})
	c.must(err)
	return list.Items
}

func (c *cluster) pod(name string) *v1.Pod {
	c.Helper()
	pod, err := c.client.CoreV1().Pods("default").Get(c.Context(), name, metav1.GetOptions{})
	c.must(err)
	return pod
}

// awaitRunning waits until all pods with the label are ready, and returns them.
func (c *cluster) awaitRunning(value string, count int) (pods []v1.Pod) {
	c.Helper()
	c.eventually(fmt.Sprintf("%d pods of %s are ready", count, value), func() error {
		pods = c.pods(value)
		ready := 0
		for _, pod := range pods {
			if pod.DeletionTimestamp == nil && podReady(&pod) {
				ready++
			}
		}
		if ready != count {
			return fmt.Errorf("%d pods are ready", ready)
		}
		return nil
	})
	return pods
}

func podReady(pod *v1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == v1.PodReady {
			return condition.Status == v1.ConditionTrue
		}
	}
	return false
}

// node returns the node with the name.
func (c *cluster) node(name string) *node {
	c.Helper()
	for _, n := range c.nodes {
		if n.name == name {
			return n
		}
	}
	c.Fatalf("there is no node %q", name)
	return nil
}

// awaitTaint waits until the node has a taint with the key and effect, or until it has none with
// the key, and returns the seconds since a time.
func (c *cluster) awaitTaint(n *node, key string, effect v1.TaintEffect, want bool, since time.Time) float64 {
	c.Helper()
	c.eventually(fmt.Sprintf("%s has %s:%s: %v", n.name, key, effect, want), func() error {
		got, err := c.client.CoreV1().Nodes().Get(c.Context(), n.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		has := false
		for _, taint := range got.Spec.Taints {
			has = has || taint.Key == key && taint.Effect == effect
		}
		if has != want {
			return fmt.Errorf("taints %v", got.Spec.Taints)
		}
		return nil
	})
	return time.Since(since).Seconds()
}

// between fails the test if the value is not within the limits, in seconds. On a busy machine, the
// flag -slack raises the upper limit.
func (c *cluster) between(what string, value, low, high float64) {
	c.Helper()
	if value < low || value > high+slack.Seconds() {
		c.Errorf("%s: %.1f s, want %.0f s to %.0f s", what, value, low, high)
	}
}
