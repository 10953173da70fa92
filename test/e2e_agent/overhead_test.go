package e2eagent

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const overheadPod = `
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: kata-fc}
handler: kata-fc
overhead: {podFixed: {memory: 120Mi, cpu: 250m}}
---
apiVersion: v1
kind: Pod
metadata: {name: test-pod}
spec:
  runtimeClassName: kata-fc
  nodeSelector: {kubernetes.io/hostname: $NODE}
  containers:
  - {name: busybox-ctr, image: $IMAGE, imagePullPolicy: IfNotPresent, command: [sleep, "10000"], resources: {limits: {cpu: 500m, memory: 100Mi}}}
  - {name: nginx-ctr, image: $IMAGE, imagePullPolicy: IfNotPresent, command: [sleep, "10000"], resources: {limits: {cpu: 1500m, memory: 100Mi}}}
`

// The documentation's example of pod overhead, down to the numbers in the pod's cgroup.
func TestPodCgroupHasOverhead(t *testing.T) {
	t.Parallel()
	n := sharedNode(t)
	ns := n.namespace(t)
	n.apply(t, ns, overheadPod)
	pod := n.awaitPod(t, ns, "test-pod", "ready", ready)

	group := filepath.Join(n.containerd.CgroupRoot, "kubepods", "pod"+string(pod.UID))
	v1 := map[string]string{
		"memory/memory.limit_in_bytes": "335544320", "cpu/cpu.cfs_quota_us": "225000", "cpu/cpu.cfs_period_us": "100000", "cpu/cpu.shares": "2304",
	}
	v2 := map[string]string{"memory.max": "335544320", "cpu.max": "225000 100000", "cpu.weight": "88"}
	want := v1
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		want = v2
	}
	for file, value := range want {
		controller, name := "", file
		if c, rest, ok := strings.Cut(file, "/"); ok {
			controller, name = c, rest
		}
		path := filepath.Join("/sys/fs/cgroup", controller, group, name)
		text, err := os.ReadFile(path)
		if got := strings.TrimSpace(string(text)); err != nil || got != value {
			t.Errorf("%s: %q (%v), want %s", path, got, err, value)
		}
	}

	// What `crictl pods` and `crictl inspectp` ask.
	r := n.runtime(t)
	ctx := context.Background()
	list, err := r.Runtime.ListPodSandbox(ctx, &runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{"io.kubernetes.pod.name": "test-pod", "io.kubernetes.pod.namespace": ns}})
	if err != nil || len(list) != 1 {
		t.Fatalf("sandboxes of test-pod: %d (%v)", len(list), err)
	}
	if list[0].RuntimeHandler != "kata-fc" {
		t.Errorf("runtime handler %q", list[0].RuntimeHandler)
	}
	status, err := r.Runtime.PodSandboxStatus(ctx, list[0].Id, true)
	if err != nil {
		t.Fatal(err)
	}
	var info struct {
		RuntimeSpec struct {
			Linux struct {
				CgroupsPath string `json:"cgroupsPath"`
			} `json:"linux"`
		} `json:"runtimeSpec"`
	}
	if err := json.Unmarshal([]byte(status.Info["info"]), &info); err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(group, list[0].Id); info.RuntimeSpec.Linux.CgroupsPath != want {
		t.Errorf("cgroupsPath %q, want %q", info.RuntimeSpec.Linux.CgroupsPath, want)
	}

	n.do(t, "-n", ns, "delete", "pod", "test-pod", "--grace-period=1")
	n.awaitGone(t, ns, "test-pod")
	eventually(t, "cgroup of test-pod gone", func() error {
		left, _ := filepath.Glob("/sys/fs/cgroup/*" + group)
		if more, _ := filepath.Glob("/sys/fs/cgroup" + group); len(left)+len(more) > 0 {
			return errNotYet
		}
		return nil
	})
}
