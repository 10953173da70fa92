package e2eagent

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// sizesIn reads a cgroup's memory limit and CPU quota, whatever the version: "104857600 20000".
func sizesIn(group string) string {
	read := func(path string) string {
		text, _ := os.ReadFile(filepath.Join("/sys/fs/cgroup", path))
		return strings.TrimSpace(string(text))
	}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		quota, _, _ := strings.Cut(read(filepath.Join(group, "cpu.max")), " ")
		return read(filepath.Join(group, "memory.max")) + " " + quota
	}
	return read(filepath.Join("memory", group, "memory.limit_in_bytes")) + " " + read(filepath.Join("cpu", group, "cpu.cfs_quota_us"))
}

// A pod is resized while it runs: its cgroup and its containers', up and down, and a container
// starts anew where its policy says so. What does not fit waits until there is room.
func TestResizeWhileRunning(t *testing.T) {
	t.Parallel()
	n := newNode(t, "resize", "--cpus", "2")
	ns := n.namespace(t)
	n.apply(t, ns, `
apiVersion: v1
kind: Pod
metadata: {name: grows}
spec:
  nodeSelector: {kubernetes.io/hostname: $NODE}
  terminationGracePeriodSeconds: 1
  containers:
  - {name: a, image: $IMAGE, imagePullPolicy: IfNotPresent, command: [sleep, "10000"], resources: {limits: {cpu: 100m, memory: 50Mi}}}
  - name: b
    image: $IMAGE
    imagePullPolicy: IfNotPresent
    command: [sleep, "10000"]
    resources: {limits: {cpu: 100m, memory: 50Mi}}
    resizePolicy: [{resourceName: memory, restartPolicy: RestartContainer}]
`)
	pod := n.awaitPod(t, ns, "grows", "ready", ready)
	group := filepath.Join(n.containerd.CgroupRoot, "kubepods", "pod"+string(pod.UID))
	ids := func(pod *v1.Pod) (out [2]string) {
		for i := range out {
			_, out[i], _ = strings.Cut(pod.Status.ContainerStatuses[i].ContainerID, "://")
		}
		return out
	}
	resize := func(a, b string) {
		t.Helper()
		list := func(text string) string {
			cpu, memory, _ := strings.Cut(text, " ")
			return fmt.Sprintf(`{"cpu":%q,"memory":%q}`, cpu, memory)
		}
		n.do(t, "-n", ns, "patch", "pod", "grows", "--subresource=resize", "-p", fmt.Sprintf(
			`{"spec":{"containers":[{"name":"a","resources":{"limits":%[1]s,"requests":%[1]s}},{"name":"b","resources":{"limits":%[2]s,"requests":%[2]s}}]}}`,
			list(a), list(b)))
	}
	has := func(wanted string) func(*v1.Pod) bool {
		return func(pod *v1.Pod) bool {
			text := ""
			for _, cs := range pod.Status.ContainerStatuses {
				text += fmt.Sprintf("%s %s/%d ", cs.Resources.Limits.Cpu(), cs.Resources.Limits.Memory(), cs.RestartCount)
			}
			for _, c := range pod.Status.Conditions {
				if c.Type == v1.PodResizeInProgress || c.Type == v1.PodResizePending {
					text += c.Reason
				}
			}
			return ready(pod) && strings.TrimSpace(text) == wanted
		}
	}
	check := func(what string, pod *v1.Pod, want ...string) {
		t.Helper()
		id := ids(pod)
		for i, group := range []string{group, filepath.Join(group, id[0]), filepath.Join(group, id[1])} {
			if got := sizesIn(group); got != want[i] {
				t.Errorf("%s: %s has %s, want %s", what, group, got, want[i])
			}
		}
		whole, allocated := pod.Status.Resources, pod.Status.AllocatedResources
		if whole == nil {
			t.Fatalf("%s: the status has no resources of the pod as a whole", what)
		}
		if got := fmt.Sprint(whole.Limits.Memory().Value(), whole.Limits.Cpu().MilliValue()*100); got != want[0] {
			t.Errorf("%s: the pod as a whole has %s, want %s", what, got, want[0])
		}
		if !whole.Requests.Cpu().Equal(*allocated.Cpu()) || !whole.Requests.Memory().Equal(*allocated.Memory()) {
			t.Errorf("%s: the pod as a whole has %v of %v allocated", what, whole.Requests, allocated)
		}
	}
	check("as made", pod, "104857600 20000", "52428800 10000", "52428800 10000")
	before := ids(pod)

	resize("300m 80Mi", "50m 50Mi")
	pod = n.awaitPod(t, ns, "grows", "bigger", has("300m 80Mi/0 50m 50Mi/0"))
	check("bigger", pod, "136314880 35000", "83886080 30000", "52428800 5000")

	resize("50m 40Mi", "200m 70Mi")
	pod = n.awaitPod(t, ns, "grows", "a smaller, b anew", has("50m 40Mi/0 200m 70Mi/1"))
	check("a smaller, b anew", pod, "115343360 25000", "41943040 5000", "73400320 20000")
	if after := ids(pod); after[0] != before[0] || after[1] == before[1] {
		t.Errorf("containers before %v, after %v", before, after)
	}

	n.apply(t, ns, `
apiVersion: v1
kind: Pod
metadata: {name: stout}
spec:
  nodeSelector: {kubernetes.io/hostname: $NODE}
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: $IMAGE, imagePullPolicy: IfNotPresent, command: [sleep, "10000"], resources: {requests: {cpu: 1500m}}}]
`)
	n.awaitPod(t, ns, "stout", "ready", ready)
	resize("500m 40Mi", "200m 70Mi")
	pod = n.awaitPod(t, ns, "grows", "deferred", has("50m 40Mi/0 200m 70Mi/1 Deferred"))
	check("deferred", pod, "115343360 25000", "41943040 5000", "73400320 20000")

	// An agent that is killed meanwhile does not make it so by forgetting what it granted.
	n.agent.kill()
	if err := n.agent.start("ready node resize"); err != nil {
		t.Fatal(err)
	}
	n.do(t, "-n", ns, "label", "pod", "grows", "seen=again")
	pod = n.awaitPod(t, ns, "grows", "deferred", has("50m 40Mi/0 200m 70Mi/1 Deferred"))
	check("after kill -9", pod, "115343360 25000", "41943040 5000", "73400320 20000")

	n.do(t, "-n", ns, "delete", "pod", "stout", "--wait=false")
	pod = n.awaitPod(t, ns, "grows", "granted", has("500m 40Mi/0 200m 70Mi/1"))
	check("granted", pod, "115343360 70000", "41943040 50000", "73400320 20000")
}
