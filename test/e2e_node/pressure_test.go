// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2enode

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/test/internal/nightly"
)

// In this test, all pods together may use 800Mi, and the node is under memory pressure if less than
// 200Mi of it is available.
const (
	podsMemory = 800 << 20
	threshold  = "200Mi"
)

const podsUnderPressure = `
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: important}
value: 1000
---
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: overhead}
handler: kata-fc
overhead: {podFixed: {memory: 35Mi}}
`

// load is a pod that allocates memory, in MiB, when data is written to its FIFO.
type load struct {
	name, spec string
	requests   string
	memory     int
}

// manifest returns the pod's manifest. The pod's dd fills its buffer and then blocks, since its
// output is not read.
func (l load) manifest() string {
	return fmt.Sprintf(`---
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  %s
  terminationGracePeriodSeconds: 1
  automountServiceAccountToken: false
  containers:
  - name: app
    image: busybox:1
    command: [sh, -c, "mkfifo /tmp/fill; cat /tmp/fill; dd if=/dev/zero bs=%dM count=1 | sleep 100000"]
    resources: {requests: {memory: %s}}
`, l.name, l.spec, l.memory, l.requests)
}

// TestMemoryPressure verifies the order of evictions under memory pressure. Pods whose usage
// exceeds their requests are evicted first, by priority, even if they use less memory than other
// pods. Usage within requests and overhead does not count as an excess. The node's taint must
// reject a pod without requests.
func TestMemoryPressure(t *testing.T) {
	nightly.Only(t)
	t.Parallel()
	c := start(t, "--kubelet-config", littleMemory(t))
	c.apply(podsUnderPressure)
	loads := []load{
		{"covered", "runtimeClassName: overhead", "20Mi", 50},
		{"greater", "priorityClassName: important", "10Mi", 80},
		{"greedy", "", "10Mi", 30},
	}
	// The overhead counts twice, as in upstream's scheduler: the kubelet reports it as allocated,
	// and the scheduler adds it.
	hog := load{"hog", "priorityClassName: important", "490Mi", 490}
	for _, l := range append(slices.Clone(loads), hog) {
		c.apply(l.manifest())
	}
	for _, l := range loads {
		c.await(l.name, "ready", ready)
		c.fill(l)
	}
	c.await(hog.name, "ready", ready)
	for _, l := range loads {
		c.awaitMeasured(l.name, l.memory)
	}
	c.awaitMeasured(hog.name, 0) // the kubelet would evict a pod without measurements first
	r := c.record()
	c.fill(hog)
	eventually(t, "the taint", func() error {
		node, err := c.client.CoreV1().Nodes().Get(t.Context(), c.node, metav1.GetOptions{})
		if err == nil && !slices.ContainsFunc(node.Spec.Taints, func(t v1.Taint) bool { return t.Key == v1.TaintNodeMemoryPressure }) {
			err = errNotYet
		}
		return err
	})
	c.kubectl("run", "latecomer", "--image=busybox:1", "--", "sleep", "10000")
	c.await("latecomer", "kept off by the taint", func(pod *v1.Pod) bool {
		return len(pod.Status.Conditions) > 0 && strings.Contains(pod.Status.Conditions[0].Message, "untolerated taint")
	})
	eventually(t, "evictions", func() error {
		if got := r.evicted(); !slices.Equal(got, []string{"greedy", "greater"}) {
			return fmt.Errorf("evicted %v, want greedy and then greater", got)
		}
		return nil
	})
	for _, name := range []string{"greedy", "greater"} {
		checkEvicted(t, c.await(name, "failed", func(pod *v1.Pod) bool { return pod.Status.Phase == v1.PodFailed }))
	}
	c.await("latecomer", "ready when the pressure is over", ready)
	for _, name := range []string{"covered", "hog"} {
		if pod := c.await(name, "ready", ready); pod.Status.ContainerStatuses[0].RestartCount != 0 {
			t.Errorf("%s was restarted", name)
		}
	}
}

// fill makes the pod allocate its memory. If the FIFO does not exist yet, fill creates a file that
// the pod reads instead.
func (c *cluster) fill(l load) {
	c.Helper()
	c.kubectl("exec", l.name, "--", "sh", "-c", "echo > /tmp/fill")
}

// awaitMeasured waits until the kubelet has measured a pod's usage. The kubelet measures about
// every ten seconds, and ranks pods by their last measurements.
func (c *cluster) awaitMeasured(pod string, memory int) {
	c.Helper()
	eventually(c.T, pod+"'s memory in the kubelet's summary", func() error {
		text, err := c.client.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes", c.node, "proxy/stats/summary").DoRaw(c.Context())
		if err != nil {
			return err
		}
		var summary struct {
			Pods []struct {
				PodRef struct{ Name string }
				Memory struct{ WorkingSetBytes int }
			}
		}
		if err := json.Unmarshal(text, &summary); err != nil {
			return err
		}
		for _, p := range summary.Pods {
			if p.PodRef.Name == pod && p.Memory.WorkingSetBytes > memory<<20 {
				return nil
			}
		}
		return errNotYet
	})
}

// littleMemory writes a kubelet configuration that reserves all memory of the machine except
// podsMemory for the system.
func littleMemory(t *testing.T) string {
	t.Helper()
	info, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`MemTotal: +(\d+) kB`).FindSubmatch(info)
	total := resource.MustParse(string(found[1]) + "Ki")
	if total.Value() < 2*podsMemory {
		t.Skipf("the machine has %s of memory only", &total)
	}
	file := filepath.Join(t.TempDir(), "kubelet.yaml")
	text := fmt.Sprintf("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nsystemReserved: {memory: %q}\n"+
		"evictionHard: {memory.available: %s}\nevictionPressureTransitionPeriod: 20s\nnodeStatusUpdateFrequency: 2s\n", fmt.Sprint(total.Value()-podsMemory), threshold)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// record lists the failed pods in the order of their failure.
type record struct {
	mu     sync.Mutex
	failed []string
}

func (c *cluster) record() *record {
	c.Helper()
	r := &record{}
	pods, err := c.client.CoreV1().Pods("default").Watch(c.Context(), metav1.ListOptions{})
	if err != nil {
		c.Fatal(err)
	}
	var done sync.WaitGroup
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
	c.Cleanup(func() { pods.Stop(); done.Wait() })
	return r
}

func (r *record) evicted() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.failed)
}

func checkEvicted(t *testing.T, pod *v1.Pod) {
	t.Helper()
	message := regexp.MustCompile(`^The node was low on resource: memory\. Threshold quantity: 200Mi, available: \d+Ki\. ` +
		`Container app was using \d+Ki, request is 10Mi, has larger consumption of memory\. $`)
	if pod.Status.Reason != "Evicted" || !message.MatchString(pod.Status.Message) {
		t.Errorf("%s is %s, %s, %q", pod.Name, pod.Status.Phase, pod.Status.Reason, pod.Status.Message)
	}
	i := slices.IndexFunc(pod.Status.Conditions, func(c v1.PodCondition) bool { return c.Type == v1.DisruptionTarget })
	if i < 0 || pod.Status.Conditions[i].Status != v1.ConditionTrue || pod.Status.Conditions[i].Reason != "TerminationByKubelet" {
		t.Errorf("%s is not marked as disrupted by the node: %+v", pod.Name, pod.Status.Conditions)
	}
}
