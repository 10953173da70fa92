package e2eagent

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A full node, as the kubelet's --max-pods has it: how long 110 pods take from their creation until all are ready, what the agent
// uses for it, and what it uses once nothing happens. Measured, not judged, but for the pods being there.
func TestFullNode(t *testing.T) {
	if !*long {
		t.Skip("110 pods at once take minutes on two processors: run with -long, and -run TestFullNode for a measurement of nothing else")
	}
	n := newNode(t, "full")
	ns := n.namespace(t)
	before := usageOf(t, n.agent.cmd.Process.Pid)
	began := time.Now()
	n.apply(t, ns, `
apiVersion: apps/v1
kind: Deployment
metadata: {name: many}
spec:
  replicas: 110
  progressDeadlineSeconds: 1800
  selector: {matchLabels: {app: many}}
  template:
    metadata: {labels: {app: many}}
    spec:
      nodeSelector: {kubernetes.io/hostname: $NODE}
      terminationGracePeriodSeconds: 0
      containers: [{name: c, image: $IMAGE, imagePullPolicy: IfNotPresent, command: [sleep, "100000"]}]
`)
	n.do(t, "-n", ns, "rollout", "status", "deployment/many", "--timeout=30m")
	took, all := time.Since(began), usageOf(t, n.agent.cmd.Process.Pid)
	t.Logf("110 pods ready after %.1fs; the agent used %.1fs of CPU for it (%.0f ms a pod) and has %d MiB",
		took.Seconds(), (all.cpu - before.cpu).Seconds(), (all.cpu-before.cpu).Seconds()*1000/110, all.memory>>20)
	// Not a wait for anything: the length of the measurement.
	time.Sleep(time.Minute)
	idle := usageOf(t, n.agent.cmd.Process.Pid)
	t.Logf("idle with 110 pods: %.2f %% of a CPU, %d MiB", (idle.cpu-all.cpu).Seconds()/60*100, idle.memory>>20)

	began = time.Now()
	n.do(t, "-n", ns, "delete", "deployment", "many", "--wait=false")
	for {
		list, err := n.client.CoreV1().Pods(ns).List(context.Background(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(list.Items) == 0 {
			break
		}
		if time.Since(began) > 10*time.Minute {
			t.Fatalf("%d pods are left", len(list.Items))
		}
		time.Sleep(200 * time.Millisecond)
	}
	t.Logf("110 pods gone after %.1fs", time.Since(began).Seconds())
}

type usage struct {
	cpu    time.Duration
	memory int64
}

// usageOf a process: its CPU time, and what it has in memory.
func usageOf(t *testing.T, pid int) usage {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	var ticks int64
	for _, f := range fields[11:13] { // user and system time, in hundredths of a second
		n, _ := strconv.ParseInt(f, 10, 64)
		ticks += n
	}
	pages, _ := strconv.ParseInt(fields[21], 10, 64)
	return usage{time.Duration(ticks) * 10 * time.Millisecond, pages * int64(os.Getpagesize())}
}
