// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2ereal

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// tolerated is the tolerationSeconds of the pods on failing nodes.
const tolerated = 10

// workload is a Deployment of three pods that leave a failed node after some seconds.
const workload = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: failing, labels: {scenario: failing}}
spec:
  replicas: 3
  selector: {matchLabels: {scenario: failing}}
  template:
    metadata: {labels: {scenario: failing}}
    spec:
      terminationGracePeriodSeconds: 1
      tolerations:
      - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 10}
      - {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 10}
      - {key: maintenance, operator: Exists}
      containers:
      - {name: c, image: "busybox:1", command: [sleep, "100000"]}
`

// fail makes the node of a pod fail and recover, and describes what the cluster did. low and high
// limit the seconds from the failure to the taint.
func (c *cluster) fail(taint string, low, high float64, breakNode, repair func(*node) error) string {
	c.Helper()
	c.apply(workload)
	victim := c.awaitRunning("failing", 3)[0]
	n := c.node(victim.Spec.NodeName)
	failed, repaired := time.Now(), time.Time{}
	defer func() {
		if repaired.IsZero() {
			_ = repair(n) // the test has failed
		}
	}()
	c.must(breakNode(n))
	tainted := c.awaitTaint(n, taint, v1.TaintEffectNoExecute, true, failed)
	c.between("taint", tainted, low, high)
	var evicted, replaced float64
	c.eventually("the pod is evicted", func() error {
		pod, err := c.client.CoreV1().Pods("default").Get(c.Context(), victim.Name, metav1.GetOptions{})
		if err == nil && pod.DeletionTimestamp == nil {
			err = errNotYet
		}
		if !apierrors.IsNotFound(err) && err != nil {
			return err
		}
		evicted = time.Since(failed).Seconds()
		return nil
	})
	c.between("eviction after the taint", evicted-tainted, tolerated-2, tolerated+5)
	for _, pod := range c.awaitRunning("failing", 3) {
		if pod.DeletionTimestamp == nil && pod.Spec.NodeName == n.name {
			c.Errorf("%s runs on the failed %s", pod.Name, n.name)
		}
	}
	replaced = time.Since(failed).Seconds()
	c.between("replacement after the eviction", replaced-evicted, 0, 30)

	repaired = time.Now()
	c.must(repair(n))
	c.awaitReady(n, true)
	recovered := c.awaitTaint(n, taint, v1.TaintEffectNoExecute, false, repaired)
	c.gone(victim.Name)
	return fmt.Sprintf("tainted after %.0f s, evicted %.1f s later, replaced %.1f s later, recovered in %.0f s, its old pod gone after %.0f s",
		tainted, evicted-tainted, replaced-evicted, recovered, time.Since(repaired).Seconds())
}

func (c *cluster) linkDown() string {
	return c.fail(v1.TaintNodeUnreachable, 38, 62,
		func(n *node) error { return command("ip", "link", "set", n.cable, "down") },
		func(n *node) error { return command("ip", "link", "set", n.cable, "up") })
}

func (c *cluster) kubeletKilled() string {
	return c.fail(v1.TaintNodeUnreachable, 38, 62,
		func(n *node) error { n.kubelet.Kill(); return nil },
		func(n *node) error { return n.startKubelet(filepath.Join(work, "bootstrap.kubeconfig")) })
}

// frozen stops everything that acts for the node; its containers continue.
func (c *cluster) frozen() string {
	return c.fail(v1.TaintNodeUnreachable, 38, 62,
		func(n *node) error { return n.signal(syscall.SIGSTOP) },
		func(n *node) error { return n.signal(syscall.SIGCONT) })
}

// containerdKilled keeps containerd down. The kubelet then reports that its runtime is down.
func (c *cluster) containerdKilled() string {
	down := func(n *node) string { return filepath.Join(n.folder(), "down") }
	return c.fail(v1.TaintNodeNotReady, 0, 62,
		func(n *node) error {
			if err := os.WriteFile(down(n), nil, 0o644); err != nil {
				return err
			}
			pid, err := n.containerdPID()
			if err != nil {
				return err
			}
			return syscall.Kill(pid, syscall.SIGKILL)
		},
		func(n *node) error { return os.Remove(down(n)) })
}

// holder is a pod that has a resource of a node, and takes four seconds to end.
const holder = `
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: urgent}
value: 1000
---
apiVersion: v1
kind: Pod
metadata: {name: victim, labels: {scenario: preemption}}
spec:
  terminationGracePeriodSeconds: 20
  nodeSelector: {kubernetes.io/hostname: node-4}
  containers:
  - {name: c, image: "busybox:1", command: [sh, -c, "trap 'sleep 4; exit 0' TERM; while :; do sleep 0.1; done"], resources: {%s}}
`

const urgentPod = `
apiVersion: v1
kind: Pod
metadata: {name: urgent, labels: {scenario: preemption}}
spec:
  priorityClassName: urgent
  terminationGracePeriodSeconds: 0
  nodeSelector: {kubernetes.io/hostname: node-4}
  containers:
  - {name: c, image: "busybox:1", command: [sleep, "100000"], resources: {%s}}
`

func (c *cluster) preemption() string { return c.preempt("requests: {cpu: 1500m}") }

// preempt places a pod that needs the resources of another one.
func (c *cluster) preempt(resources string) string {
	c.Helper()
	c.apply(fmt.Sprintf(holder, resources))
	c.awaitRunning("preemption", 1)
	began := time.Now()
	c.apply(fmt.Sprintf(urgentPod, resources))
	var preempted time.Time
	c.eventually("the victim has ended", func() error {
		other := c.pod("urgent")
		pod, err := c.client.CoreV1().Pods("default").Get(c.Context(), "victim", metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		case pod.Status.Phase == v1.PodFailed || pod.Status.Phase == v1.PodSucceeded:
			return nil // its resources are free, although it still exists
		case pod.DeletionTimestamp != nil && preempted.IsZero():
			preempted = time.Now()
		}
		if other.Spec.NodeName != "" {
			c.Fatalf("%s is on the node of its victim", other.Name)
		}
		return errNotYet
	})
	ended := time.Now()
	if preempted.IsZero() {
		c.Fatal("the victim ended without a grace period")
	}
	c.between("the victim's end", ended.Sub(preempted).Seconds(), 3.5, 15)
	c.awaitRunning("preemption", 1)
	return fmt.Sprintf("victim marked after %.1f s, ended %.1f s later, preemptor ready %.1f s later",
		preempted.Sub(began).Seconds(), ended.Sub(preempted).Seconds(), time.Since(ended).Seconds())
}

// shortJob is a Job of pods that run for five seconds each, of which twelve run at a time.
const shortJob = `
apiVersion: batch/v1
kind: Job
metadata: {name: short, labels: {scenario: short}}
spec:
  completions: %d
  parallelism: 12
  backoffLimit: 0
  template:
    metadata: {labels: {scenario: short}}
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 1
      containers:
      - {name: c, image: "busybox:1", command: [sleep, "5"], resources: {requests: {cpu: 300m}}}
`

// shortPods runs 200 short pods, again and again for the time of the flag -churn. Twelve fit at a
// time, so each takes the place of an ended one.
func (c *cluster) shortPods() string {
	const count = 200
	began := time.Now()
	var waits []float64
	for rounds := 1; ; rounds++ {
		c.apply(fmt.Sprintf(shortJob, count))
		c.kubectl("wait", "job/short", "--for=condition=complete", "--timeout=480s")
		for _, pod := range c.pods("short") {
			if pod.Status.Phase != v1.PodSucceeded {
				c.Errorf("%s: phase %s", pod.Name, pod.Status.Phase)
			}
			for _, condition := range pod.Status.Conditions {
				if condition.Type == v1.PodScheduled && condition.Status == v1.ConditionTrue {
					waits = append(waits, condition.LastTransitionTime.Sub(pod.CreationTimestamp.Time).Seconds())
				}
			}
		}
		if len(waits) != rounds*count {
			c.Errorf("%d of %d pods were placed", len(waits), rounds*count)
		}
		if c.Failed() || time.Since(began) >= *churn {
			break
		}
		c.kubectl("delete", "job/short", "--cascade=foreground", "--timeout=240s")
		c.Logf("%d pods after %.0f s; CPU seconds in all: %s", len(waits), time.Since(began).Seconds(), cpuUsage().since(usage{}))
	}
	took := time.Since(began).Seconds()
	slices.Sort(waits)
	return fmt.Sprintf("%d pods in %.0f s; placed within %.0f s (median), %.0f s (all)", len(waits), took, waits[len(waits)/2], waits[len(waits)-1])
}

// floodPods are thirty pods on one node. A third of them tolerates the taint for five seconds, and
// a third tolerates it.
const floodPods = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: flood-%[1]s, labels: {scenario: flood-%[1]s}}
spec:
  replicas: 10
  selector: {matchLabels: {scenario: flood-%[1]s}}
  template:
    metadata: {labels: {scenario: flood-%[1]s}}
    spec:
      terminationGracePeriodSeconds: 1
      affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 100, preference: {matchExpressions: [
        {key: kubernetes.io/hostname, operator: In, values: [node-4]}]}}]}}
      tolerations: [%[2]s]
      containers:
      - {name: c, image: "busybox:1", command: [sleep, "100000"]}
`

func (c *cluster) flood() string {
	const seconds = 5
	for name, toleration := range map[string]string{
		"none": "", "some": fmt.Sprintf("{key: maintenance, operator: Exists, effect: NoExecute, tolerationSeconds: %d}", seconds),
		"all": "{key: maintenance, operator: Exists}",
	} {
		c.apply(fmt.Sprintf(floodPods, name, toleration))
	}
	there := map[string][]v1.Pod{}
	for _, name := range []string{"none", "some", "all"} {
		for _, pod := range c.awaitRunning("flood-"+name, 10) {
			if pod.Spec.NodeName == "node-4" {
				there[name] = append(there[name], pod)
			}
		}
	}
	began := time.Now()
	c.kubectl("taint", "node", "node-4", "maintenance=now:NoExecute")
	defer c.kubectl("taint", "node", "node-4", "maintenance-")
	// Pods that tolerate the taint for some seconds are placed there again, and evicted again.
	immediately, later := c.awaitEvicted(there["none"], began), c.awaitEvicted(there["some"], began)
	c.between("evictions with tolerationSeconds", later, seconds, seconds+5)
	c.awaitRunning("flood-none", 10)
	replaced := time.Since(began).Seconds()
	for _, pod := range there["all"] {
		if now := c.pod(pod.Name); now.UID != pod.UID || now.DeletionTimestamp != nil {
			c.Errorf("%s tolerates the taint, and has left", pod.Name)
		}
	}
	return fmt.Sprintf("%d evicted within %.1f s, %d within %.1f s, the first replaced within %.0f s, %d stayed",
		len(there["none"]), immediately, len(there["some"]), later, replaced, len(there["all"]))
}

// awaitEvicted waits until all of the pods are evicted, and returns the seconds since a time.
func (c *cluster) awaitEvicted(pods []v1.Pod, since time.Time) float64 {
	c.Helper()
	for _, pod := range pods {
		c.eventually(pod.Name+" is evicted", func() error {
			now, err := c.client.CoreV1().Pods("default").Get(c.Context(), pod.Name, metav1.GetOptions{})
			if err == nil && now.UID == pod.UID && now.DeletionTimestamp == nil {
				return errNotYet
			}
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		})
	}
	return time.Since(since).Seconds()
}

// diskFull fills a node's disk except for a tenth.
func (c *cluster) diskFull() string {
	n := c.nodes[2]
	var disk syscall.Statfs_t
	c.must(syscall.Statfs(n.dir, &disk))
	file := filepath.Join(n.dir, "full")
	keep := int64(disk.Blocks) * disk.Bsize / 10
	began := time.Now()
	c.must(command("fallocate", "-l", fmt.Sprint(int64(disk.Bavail)*disk.Bsize-keep), file))
	tainted := c.awaitTaint(n, v1.TaintNodeDiskPressure, v1.TaintEffectNoSchedule, true, began)
	c.between("taint", tainted, 0, 60)
	c.kubectl("create", "deployment", "elsewhere", "--image=busybox:1", "--replicas=6", "--", "sleep", "100000")
	c.kubectl("label", "deployment", "elsewhere", "scenario=disk")
	c.kubectl("rollout", "status", "deployment/elsewhere", "--timeout=120s")
	if out := c.kubectl("get", "pods", "-l", "app=elsewhere", "-o", "jsonpath={.items[?(@.spec.nodeName=='"+n.name+"')].metadata.name}"); out != "" {
		c.Errorf("on the full node: %s", out)
	}
	freed := time.Now()
	c.must(os.Remove(file))
	recovered := c.awaitTaint(n, v1.TaintNodeDiskPressure, v1.TaintEffectNoSchedule, false, freed)
	return fmt.Sprintf("tainted after %.0f s, 6 of 6 new pods on other nodes, taint removed %.0f s after the disk was freed", tainted, recovered)
}

// hog allocates more memory than pods may use.
const hog = `
apiVersion: v1
kind: Pod
metadata: {name: hog, labels: {scenario: memory}}
spec:
  terminationGracePeriodSeconds: 1
  nodeSelector: {kubernetes.io/hostname: node-3}
  containers:
  - {name: c, image: "busybox:1", command: [sh, -c, "sleep 15; dd if=/dev/zero bs=1430M count=1 | sleep 100000"], resources: {requests: {memory: 10Mi}}}
`

func (c *cluster) memoryHog() string {
	n := c.nodes[2]
	c.apply(hog)
	c.awaitRunning("memory", 1)
	began := time.Now()
	tainted := c.awaitTaint(n, v1.TaintNodeMemoryPressure, v1.TaintEffectNoSchedule, true, began)
	var pod *v1.Pod
	c.eventually("the hog is evicted", func() error {
		if pod = c.pod("hog"); pod.Status.Phase != v1.PodFailed {
			return errNotYet
		}
		return nil
	})
	evicted := time.Since(began).Seconds()
	if pod.Status.Reason != "Evicted" {
		c.Errorf("the hog failed as %s: %s", pod.Status.Reason, pod.Status.Message)
	}
	removed := c.awaitTaint(n, v1.TaintNodeMemoryPressure, v1.TaintEffectNoSchedule, false, began)
	return fmt.Sprintf("tainted after %.0f s, evicted after %.0f s, taint removed after %.0f s", tainted, evicted, removed)
}
