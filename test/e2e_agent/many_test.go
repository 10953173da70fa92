package e2eagent

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/containerd"
)

// kubelet is what is measured beside the agent: `go build k8s.io/kubernetes/cmd/kubelet` of the
// version in go.mod.
var kubelet = flag.String("kubelet", "", "a kubelet's binary, for TestFullNodeOfTheKubelet")

// A full node, as the kubelet's --max-pods has it: how long 110 pods take from their creation until
// all are ready, what the agent uses for it, and what it uses once nothing happens. Measured, not
// judged, but for the pods being there.
func TestFullNode(t *testing.T) {
	if !*long {
		t.Skip("110 pods at once take minutes on two processors: run with -long, and -run TestFullNode for a measurement of nothing else")
	}
	newNode(t, "full").fill(t)
}

// The same with a kubelet on a containerd of its own.
func TestFullNodeOfTheKubelet(t *testing.T) {
	if *kubelet == "" {
		t.Skip("no kubelet was given: see -kubelet")
	}
	skipWithoutContainers(t)
	c := containerd.Start(t)
	cluster, err := theCluster()
	if err != nil {
		t.Fatal(err)
	}
	n := &node{cluster: cluster, name: "full-kubelet", containerd: c, dir: filepath.Join(c.Dir, "kubelet")}
	if err := os.MkdirAll(n.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	hierarchies, _ := filepath.Glob("/sys/fs/cgroup/*")
	for _, h := range hierarchies { // of cgroup v1; the kubelet wants its root in all of them, and containerd's end removes them
		if err := os.MkdirAll(filepath.Join(h, c.CgroupRoot), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	config := filepath.Join(n.dir, "config.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, kubeletConfig, c.Endpoint(), c.CgroupRoot, filepath.Join(n.dir, "logs")), 0o600); err != nil {
		t.Fatal(err)
	}
	n.agent = newProcess(*kubelet, "--config", config, "--kubeconfig", cluster.kubeconfig, "--hostname-override", n.name, "--root-dir", n.dir, "--cert-dir", filepath.Join(n.dir, "pki"))
	if err := n.agent.start("I"); err != nil { // any line of its log
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the kubelet's log:\n%s", n.agent.out.tail())
		}
		_ = n.agent.stop()
	})
	n.do(t, "wait", "--for=create", "node/"+n.name, "--timeout=1m")
	n.do(t, "wait", "--for=condition=Ready", "node/"+n.name, "--timeout=2m")
	n.fill(t)
}

// kubeletConfig makes of the machine what the agent's flags do.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: %s
cgroupRoot: %s
podLogsDir: %s
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
oomScoreAdj: 0
enforceNodeAllocatable: [none]
evictionHard: {memory.available: 1Mi}
address: 127.0.0.1
port: 10259
healthzPort: 0
readOnlyPort: 0
registerNode: true
authentication: {anonymous: {enabled: false}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
serializeImagePulls: false
`

// fill makes 110 pods, looks at them for a minute, and takes them away.
func (n *node) fill(t *testing.T) {
	t.Helper()
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
