package e2eagent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/berth-k8s/berth/internal/containerd"
)

// The machine of these tests is a limited cgroup, and its disk a small filesystem in memory.
const (
	machineMemory = 800 << 20
	machinePIDs   = 150
	machineDisk   = "size=64m"
)

// smallNode is a node that soon runs short. The cgroup is limited and the filesystem mounted before
// the agent looks at them.
func smallNode(t *testing.T, name string, flags ...string) *node {
	t.Helper()
	skipWithoutContainers(t)
	c := containerd.Start(t)
	dir := filepath.Join(c.Dir, "agent")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, machineDisk); err != nil {
		t.Skipf("no containers here: cannot mount: %v", err)
	}
	return littleMemory(t, name, c, flags...)
}

// littleMemory is a node whose machine is a limited cgroup.
func littleMemory(t *testing.T, name string, c *containerd.Containerd, flags ...string) *node {
	t.Helper()
	limit(t, c.CgroupRoot)
	cluster, err := theCluster()
	if err != nil {
		t.Fatal(err)
	}
	n, err := makeNode(cluster, name, c, append([]string{"--eviction-pressure-transition-period", "15s"}, flags...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the agent's log:\n%s", n.agent.out.tail())
		}
		_ = n.agent.stop()
		_ = n.client.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{})
	})
	return n
}

func limit(t *testing.T, group string) {
	t.Helper()
	set := func(folder, file string, value int) {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, file), []byte(strconv.Itoa(value)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		folder := filepath.Join("/sys/fs/cgroup", group)
		set(folder, "memory.max", machineMemory)
		set(folder, "pids.max", machinePIDs)
		return
	}
	set(filepath.Join("/sys/fs/cgroup/memory", group), "memory.limit_in_bytes", machineMemory)
	set(filepath.Join("/sys/fs/cgroup/pids", group), "pids.max", machinePIDs)
}

// pods of the tests hold what they were told to hold, from the time at which they are ready.
type load struct {
	name, priorityClass, runtimeClass string
	requests                          string // YAML
	// memory in MiB, processes, MiB on an emptyDir
	memory, processes, disk int
}

func (l load) manifest() string {
	script := []string{"set -e"}
	if l.disk > 0 {
		script = append(script, fmt.Sprintf("dd if=/dev/zero of=/scratch/file bs=1M count=%d", l.disk))
	}
	if l.processes > 0 {
		script = append(script, fmt.Sprintf("for i in $(seq %d); do sleep 100000 & done", l.processes))
	}
	script = append(script, "touch /tmp/loaded")
	hold := "sleep 100000"
	if l.memory > 0 {
		// dd fills its buffer and then stays, as nobody reads what it writes.
		hold = fmt.Sprintf("dd if=/dev/zero bs=%dM count=1 | sleep 100000", l.memory)
	}
	script = append(script, hold)
	return strings.NewReplacer("NAME", l.name, "PRIORITY", l.priorityClass, "CLASS", l.runtimeClass, "REQUESTS", l.requests,
		"SCRIPT", strings.Join(script, "; ")).Replace(`
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  priorityClassName: "PRIORITY"
  CLASS
  terminationGracePeriodSeconds: 1
  automountServiceAccountToken: false
  nodeSelector: {kubernetes.io/hostname: $NODE}
  volumes: [{name: scratch, emptyDir: {}}]
  containers:
  - name: app
    image: $IMAGE
    imagePullPolicy: IfNotPresent
    command: [sh, -c, "SCRIPT"]
    volumeMounts: [{name: scratch, mountPath: /scratch}]
    resources: {requests: REQUESTS}
    readinessProbe: {exec: {command: [test, -e, /tmp/loaded]}, periodSeconds: 1, timeoutSeconds: 30}
---
`)
}

// run the pods, and wait until all are ready.
func (n *node) run(t *testing.T, namespace string, loads ...load) {
	t.Helper()
	var manifests strings.Builder
	for _, l := range loads {
		manifests.WriteString(l.manifest())
	}
	n.apply(t, namespace, manifests.String())
	for _, l := range loads {
		n.awaitPod(t, namespace, l.name, "ready", ready)
	}
}

func (n *node) priorityClass(t *testing.T, name string, value int) {
	t.Helper()
	n.do(t, "create", "priorityclass", name, fmt.Sprintf("--value=%d", value))
	t.Cleanup(func() { _, _ = n.kubectl("delete", "priorityclass", name) })
}

// record what the API tells of a namespace's pods and of the node, in order and without gaps: a
// condition may come and go between two looks.
type record struct {
	mu     sync.Mutex
	failed []string
	seen   map[string]bool // conditions that were True and keys of taints
}

func (n *node) record(t *testing.T, namespace string) *record {
	t.Helper()
	r := &record{seen: map[string]bool{}}
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	t.Cleanup(func() { cancel(); done.Wait() })
	pods, err := n.client.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := n.client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", n.name).String()})
	if err != nil {
		t.Fatal(err)
	}
	done.Go(func() {
		for event := range pods.ResultChan() {
			if pod, is := event.Object.(*v1.Pod); is && pod.Status.Phase == v1.PodFailed {
				r.mu.Lock()
				if !slices.Contains(r.failed, pod.Name) {
					r.failed = append(r.failed, pod.Name)
				}
				r.mu.Unlock()
			}
		}
	})
	done.Go(func() {
		for event := range nodes.ResultChan() {
			node, is := event.Object.(*v1.Node)
			if !is {
				continue
			}
			r.mu.Lock()
			for _, c := range node.Status.Conditions {
				r.seen[string(c.Type)] = r.seen[string(c.Type)] || c.Status == v1.ConditionTrue
			}
			for _, taint := range node.Spec.Taints {
				r.seen[taint.Key+":"+string(taint.Effect)] = true
			}
			r.mu.Unlock()
		}
	})
	return r
}

func (r *record) evicted() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.failed)
}

func (r *record) has(what string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.seen[what] {
		return fmt.Errorf("%s was not seen", what)
	}
	return nil
}

// awaitEvictions until these have been evicted, in this order, and the node has recovered:
// condition and taint came and went. Those that were not to be evicted still run then.
func (n *node) awaitEvictions(t *testing.T, r *record, namespace string, condition v1.NodeConditionType, taint string, order, stay []string) {
	t.Helper()
	eventually(t, "evictions", func() error {
		if got := r.evicted(); !slices.Equal(got, order) {
			return fmt.Errorf("evicted %v, want %v", got, order)
		}
		return nil
	})
	eventually(t, "condition", func() error { return r.has(string(condition)) })
	eventually(t, "taint", func() error { return r.has(taint + ":NoSchedule") })
	eventually(t, "recovery", func() error {
		node, err := n.client.CoreV1().Nodes().Get(context.Background(), n.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range node.Status.Conditions {
			if c.Type == condition && c.Status != v1.ConditionFalse {
				return fmt.Errorf("%s is still %s", condition, c.Status)
			}
		}
		if slices.ContainsFunc(node.Spec.Taints, func(t v1.Taint) bool { return t.Key == taint }) {
			return fmt.Errorf("still tainted: %v", node.Spec.Taints)
		}
		return nil
	})
	if got := r.evicted(); !slices.Equal(got, order) {
		t.Errorf("evicted in the end: %v, want %v", got, order)
	}
	for _, name := range stay {
		if pod := n.pod(t, namespace, name); !ready(pod) || pod.Status.ContainerStatuses[0].RestartCount != 0 {
			t.Errorf("%s was not to be evicted, and is %s, %+v", name, pod.Status.Phase, pod.Status.ContainerStatuses)
		}
	}
}

func checkEvicted(t *testing.T, pod *v1.Pod, message string) {
	t.Helper()
	if pod.Status.Phase != v1.PodFailed || pod.Status.Reason != "Evicted" || !regexp.MustCompile(message).MatchString(pod.Status.Message) {
		t.Errorf("%s is %s, %s, %q; want it Evicted, %s", pod.Name, pod.Status.Phase, pod.Status.Reason, pod.Status.Message, message)
	}
	i := slices.IndexFunc(pod.Status.Conditions, func(c v1.PodCondition) bool { return c.Type == v1.DisruptionTarget })
	if i < 0 || pod.Status.Conditions[i].Status != v1.ConditionTrue || pod.Status.Conditions[i].Reason != "TerminationByKubelet" {
		t.Errorf("%s is not marked as disrupted by the node: %+v", pod.Name, pod.Status.Conditions)
	}
}

// Who uses more than requested goes first, though it is the smallest; of two of these the less
// important one; then there is enough. What overhead covers is no excess.
func TestMemoryPressure(t *testing.T) {
	t.Parallel()
	n := smallNode(t, "short-of-memory", "--eviction-hard", "memory.available<200Mi")
	ns := n.namespace(t)
	n.priorityClass(t, "memory-important", 1000)
	n.apply(t, ns, `{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: memory-overhead}, handler: kata-fc, overhead: {podFixed: {memory: 60Mi}}}`)
	t.Cleanup(func() { _, _ = n.kubectl("delete", "runtimeclass", "memory-overhead") })
	n.run(t, ns,
		load{name: "covered", runtimeClass: "runtimeClassName: memory-overhead", requests: "{memory: 20Mi}", memory: 50},
		load{name: "important", priorityClass: "memory-important", requests: "{memory: 10Mi}", memory: 80},
		load{name: "greedy", requests: "{memory: 10Mi}", memory: 30})
	r := n.record(t, ns)
	if got := r.evicted(); len(got) > 0 {
		t.Fatalf("evicted while there is memory enough: %v", got)
	}
	began := time.Now()
	n.apply(t, ns, load{name: "hog", priorityClass: "memory-important", requests: "{memory: 500Mi}", memory: 490}.manifest())
	n.awaitEvictions(t, r, ns, v1.NodeMemoryPressure, v1.TaintNodeMemoryPressure, []string{"greedy", "important"}, []string{"covered", "hog"})
	t.Logf("from the hog to recovery: %s, of which 15s transition period", time.Since(began).Round(time.Second))
	for _, name := range []string{"greedy", "important"} {
		checkEvicted(t, n.pod(t, ns, name), `^The node was low on resource: memory\. Threshold quantity: 200Mi, available: \d+Ki\. `+
			`Container app was using \d+Ki, request is 10Mi, has larger consumption of memory\. $`)
	}
	eventually(t, "events", func() error {
		out := n.do(t, "get", "events", "-A", "-o", "custom-columns=R:.reason,O:.involvedObject.name,M:.message", "--no-headers")
		for _, want := range []string{`EvictionThresholdMet +short-of-memory +Attempting to reclaim memory`, `NodeHasInsufficientMemory +short-of-memory`, `Evicted +greedy +The node was low`} {
			if !regexp.MustCompile(want).MatchString(out) {
				return fmt.Errorf("no event %s in\n%s", want, out)
			}
		}
		return nil
	})
}

// On a full disk, too: above the request first, then the less important.
func TestDiskPressure(t *testing.T) {
	t.Parallel()
	n := smallNode(t, "short-of-disk", "--eviction-hard", "nodefs.available<30Mi")
	ns := n.namespace(t)
	n.priorityClass(t, "disk-important", 1000)
	n.run(t, ns,
		load{name: "important", priorityClass: "disk-important", requests: "{ephemeral-storage: 1Mi}", disk: 14},
		load{name: "writer", requests: "{ephemeral-storage: 1Mi}", disk: 11})
	r := n.record(t, ns)
	n.apply(t, ns, load{name: "within", requests: "{ephemeral-storage: 20Mi}", disk: 15}.manifest())
	n.awaitEvictions(t, r, ns, v1.NodeDiskPressure, v1.TaintNodeDiskPressure, []string{"writer"}, []string{"important", "within"})
	checkEvicted(t, n.pod(t, ns, "writer"), `^The node was low on resource: ephemeral-storage\. Threshold quantity: 30Mi, available: \d+Ki\. `)
}

// PIDs cannot be requested: of the least important, the one that has most.
func TestPIDPressure(t *testing.T) {
	t.Parallel()
	n := smallNode(t, "short-of-pids", "--eviction-hard", "pid.available<60")
	ns := n.namespace(t)
	n.priorityClass(t, "pids-important", 1000)
	n.run(t, ns,
		load{name: "important", priorityClass: "pids-important", requests: "{}", processes: 40},
		load{name: "few", requests: "{}", processes: 5})
	r := n.record(t, ns)
	n.apply(t, ns, load{name: "bomb", requests: "{memory: 10Mi}", processes: 45}.manifest())
	n.awaitEvictions(t, r, ns, v1.NodePIDPressure, v1.TaintNodePIDPressure, []string{"bomb"}, []string{"important", "few"})
	checkEvicted(t, n.pod(t, ns, "bomb"), `^The node was low on resource: pids\. Threshold quantity: 60, available: \d+\. $`)
}
