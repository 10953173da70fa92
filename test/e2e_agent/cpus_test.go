package e2eagent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// cpusIn reads which CPUs the processes of a cgroup may run on, whatever the version.
func cpusIn(group string) string {
	folder := filepath.Join("/sys/fs/cgroup/cpuset", group)
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		folder = filepath.Join("/sys/fs/cgroup", group)
	}
	text, _ := os.ReadFile(filepath.Join(folder, "cpuset.cpus"))
	return strings.TrimSpace(string(text))
}

// On a machine of two CPUs a container has one to itself; the other containers leave it, and come
// back when its pod has gone. An agent that is killed does not lose it.
func TestContainerHasItsOwnCPU(t *testing.T) {
	t.Parallel()
	online, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil || strings.TrimSpace(string(online)) != "0-1" {
		t.Skipf("the test counts on two CPUs; online: %s", online)
	}
	n := newNode(t, "cpus", "--cpus", "0", "--cpu-manager-policy", "static", "--reserved-cpus", "0")
	ns := n.namespace(t)
	const shares = `
apiVersion: v1
kind: Pod
metadata: {name: shares}
spec:
  nodeSelector: {kubernetes.io/hostname: $NODE}
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: $IMAGE, imagePullPolicy: IfNotPresent, command: [sleep, "10000"]}]
`
	owns := strings.NewReplacer("shares", "owns", `"10000"]}`, `"10000"], resources: {limits: {cpu: "1", memory: 50Mi}}}`).Replace(shares)
	n.apply(t, ns, shares)
	sharing := n.awaitPod(t, ns, "shares", "ready", ready)
	group := func(pod *v1.Pod) string {
		_, id, _ := strings.Cut(pod.Status.ContainerStatuses[0].ContainerID, "://")
		class := ""
		if pod.Status.QOSClass != v1.PodQOSGuaranteed {
			class = strings.ToLower(string(pod.Status.QOSClass))
		}
		return filepath.Join(n.containerd.CgroupRoot, "kubepods", class, "pod"+string(pod.UID), id)
	}
	runsOn := func(pod *v1.Pod, on string) {
		t.Helper()
		eventually(t, pod.Name+" runs on "+on, func() error {
			if cpusIn(group(pod)) != on {
				return errNotYet
			}
			return nil
		})
	}
	runsOn(sharing, "0-1")
	n.apply(t, ns, owns)
	owning := n.awaitPod(t, ns, "owns", "ready", ready)
	runsOn(owning, "1")
	runsOn(sharing, "0")
	if out := n.do(t, "-n", ns, "exec", "owns", "--", "grep", "Cpus_allowed_list", "/proc/self/status"); !strings.HasSuffix(strings.TrimSpace(out), "\t1") {
		t.Errorf("in the container: %s", out)
	}
	if limit := sizesIn(group(owning)); limit != "52428800 -1" && limit != "52428800 max" {
		t.Errorf("limits of the container: %s", limit)
	}

	n.agent.kill()
	if err := n.agent.start("ready node cpus"); err != nil {
		t.Fatal(err)
	}
	n.apply(t, ns, strings.ReplaceAll(shares, "name: shares", "name: later"))
	runsOn(n.awaitPod(t, ns, "later", "ready", ready), "0")
	runsOn(owning, "1")
	if after := n.awaitPod(t, ns, "owns", "ready", ready); after.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("after kill -9: %+v", after.Status.ContainerStatuses[0])
	}
	n.do(t, "-n", ns, "delete", "pod", "owns")
	runsOn(sharing, "0-1")
}
