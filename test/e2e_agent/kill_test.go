package e2eagent

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-k8s/berth/internal/node/agent/cri"
)

const steadyPods = `
apiVersion: v1
kind: Pod
metadata: {name: steady}
spec:
  nodeSelector: {kubernetes.io/hostname: $NODE}
  containers:
  - name: c
    image: $IMAGE
    imagePullPolicy: IfNotPresent
    command: [sleep, "10000"]
    readinessProbe: {exec: {command: ["true"]}, periodSeconds: 1}
---
apiVersion: v1
kind: Pod
metadata: {name: chain}
spec:
  nodeSelector: {kubernetes.io/hostname: $NODE}
  volumes: [{name: v, emptyDir: {}}]
  initContainers:
  - {name: one, image: $IMAGE, imagePullPolicy: IfNotPresent, command: [sh, -c, "echo one >> /v/order"], volumeMounts: [{name: v, mountPath: /v}]}
  - {name: side, image: $IMAGE, imagePullPolicy: IfNotPresent, restartPolicy: Always, command: [sleep, "10000"]}
  containers:
  - {name: c, image: $IMAGE, imagePullPolicy: IfNotPresent, command: [sleep, "10000"], volumeMounts: [{name: v, mountPath: /v}]}
`

const passingPod = `
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  nodeSelector: {kubernetes.io/hostname: $NODE}
  terminationGracePeriodSeconds: 2
  volumes: [{name: v, emptyDir: {}}]
  initContainers:
  - {name: one, image: $IMAGE, imagePullPolicy: IfNotPresent, command: ["true"]}
  containers:
  - {name: c, image: $IMAGE, imagePullPolicy: IfNotPresent, command: [sh, -c, "trap '' TERM; while :; do sleep 0.1; done"], volumeMounts: [{name: v, mountPath: /v}]}
`

// The agent is killed by SIGKILL at ten moments while pods come and go: it takes up what runs, and
// finishes what was begun. None is restarted, none doubled, none left behind.
func TestKilledAgentTakesUpItsPods(t *testing.T) {
	t.Parallel()
	n := newNode(t, "kill-agent")
	ns := n.namespace(t)
	n.staticPod(t, "fixed")
	n.apply(t, ns, steadyPods)
	before := n.steady(t, ns)
	n.throughKills(t, ns, 10, func(i int) {
		n.agent.kill()
		if i%2 == 1 { // while nobody looks, one is deleted for good, and one ends by itself
			n.do(t, "-n", ns, "delete", "pod", passing(i), "--force", "--grace-period=0", "--ignore-not-found")
		}
		if err := n.agent.start("ready node " + n.name); err != nil {
			t.Fatal(err)
		}
	})
	n.checkSteady(t, ns, before)
	for i := 0; i < 10; i += 2 {
		pod := n.awaitPod(t, ns, passing(i), "ready", ready)
		if cs := pod.Status.ContainerStatuses[0]; cs.RestartCount != 0 {
			t.Errorf("%s was restarted %d times: %+v", pod.Name, cs.RestartCount, cs.LastTerminationState)
		}
	}
	n.checkNothingElse(t, ns)
}

// The same with containerd.
func TestKilledContainerdLosesNoPod(t *testing.T) {
	t.Parallel()
	n := newNode(t, "kill-containerd")
	ns := n.namespace(t)
	n.staticPod(t, "fixed")
	n.apply(t, ns, steadyPods)
	before := n.steady(t, ns)
	kills := 3
	if *long {
		kills = 10
	}
	n.throughKills(t, ns, kills, func(i int) {
		if err := n.containerd.Kill(); err != nil {
			t.Fatal(err)
		}
		if i%2 == 1 {
			n.do(t, "-n", ns, "delete", "pod", passing(i), "--force", "--grace-period=0", "--ignore-not-found")
		}
		if err := n.containerd.Revive(); err != nil {
			t.Fatal(err)
		}
	})
	n.checkSteady(t, ns, before)
	for i := 0; i < kills; i += 2 {
		n.awaitPod(t, ns, passing(i), "ready", ready)
	}
	n.checkNothingElse(t, ns)
}

func passing(i int) string { return fmt.Sprintf("passing-%d", i) }

// throughKills makes a pod before each kill, and lets it get on a little further each time. Of the
// pods with odd numbers, which are deleted, some have ended when the next one comes, some are in
// the middle of it.
func (n *node) throughKills(t *testing.T, ns string, kills int, kill func(i int)) {
	for i := range kills {
		n.apply(t, ns, fmt.Sprintf(passingPod, passing(i)))
		// Not a wait for anything: the moment of the kill.
		time.Sleep(time.Duration(i) * 70 * time.Millisecond)
		if i%4 == 3 {
			n.do(t, "-n", ns, "delete", "pod", passing(i), "--wait=false")
		}
		kill(i)
	}
}

func (n *node) staticPod(t *testing.T, name string) {
	t.Helper()
	text := fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec:\n  containers: [{name: c, image: busybox, imagePullPolicy: Never, command: [sleep, '10000']}]\n", name)
	path := filepath.Join(n.dir, "static", name+".yaml")
	if err := os.WriteFile(path+".part", []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".part", path); err != nil {
		t.Fatal(err)
	}
}

// steady are the IDs of the containers that are to run through all of it.
func (n *node) steady(t *testing.T, ns string) map[string]string {
	t.Helper()
	ids := map[string]string{}
	for _, p := range [][2]string{{ns, "steady"}, {ns, "chain"}, {"default", "fixed-" + n.name}} {
		pod := n.awaitPod(t, p[0], p[1], "ready", ready)
		for _, cs := range append(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses...) {
			ids[pod.Name+"/"+cs.Name] = fmt.Sprint(cs.ContainerID, " ", cs.RestartCount)
		}
	}
	return ids
}

func (n *node) checkSteady(t *testing.T, ns string, before map[string]string) {
	t.Helper()
	if after := n.steady(t, ns); !maps.Equal(before, after) {
		t.Errorf("before:\n%v\nafter:\n%v", before, after)
	}
	eventually(t, "its volume has what was written", func() error { // a runtime that has just begun answers that it is not ready
		out, err := n.kubectl("-n", ns, "exec", "chain", "-c", "c", "--", "cat", "/v/order")
		if err == nil && out != "one\n" {
			err = fmt.Errorf("it has %q", out)
		}
		return err
	})
}

// checkNothingElse: the runtime has one sandbox of each pod that there is, with each of its
// containers once, and nothing else; nor have the disk and the cgroups.
func (n *node) checkNothingElse(t *testing.T, ns string) {
	t.Helper()
	r := n.runtime(t)
	eventually(t, "the runtime, the disk and the cgroups have what the API has", func() error {
		ctx := context.Background()
		want := map[string]int{} // containers that run, by UID
		list, err := n.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + n.name})
		if err != nil {
			return err
		}
		for i := range list.Items {
			uid := string(list.Items[i].UID)
			if mirror := list.Items[i].Annotations[v1.MirrorPodAnnotationKey]; mirror != "" {
				uid = mirror
			}
			want[uid] = runningContainers(&list.Items[i])
		}
		return n.compare(ctx, r, want)
	})
}

func runningContainers(pod *v1.Pod) int {
	count := 0
	for _, cs := range append(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses...) {
		if cs.State.Running != nil {
			count++
		}
	}
	return count
}

func (n *node) compare(ctx context.Context, r *cri.Runtime, want map[string]int) error {
	sandboxes, err := r.Runtime.ListPodSandbox(ctx, nil)
	if err != nil {
		return err
	}
	have := map[string]int{}
	for _, s := range sandboxes {
		uid := s.Labels[cri.LabelPodUID]
		if _, twice := have[uid]; twice {
			return fmt.Errorf("two sandboxes of pod %s", s.Labels[cri.LabelPodName])
		}
		have[uid] = 0
	}
	containers, err := r.Runtime.ListContainers(ctx, &runtimeapi.ContainerFilter{State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}})
	if err != nil {
		return err
	}
	for _, c := range containers {
		have[c.Labels[cri.LabelPodUID]]++
	}
	if !maps.Equal(want, have) {
		return fmt.Errorf("API %v, runtime %v", want, have)
	}
	uids := slices.Sorted(maps.Keys(want))
	for _, pattern := range []string{filepath.Join(n.dir, "pods", "*"), "/sys/fs/cgroup/memory" + n.containerd.CgroupRoot + "/kubepods/*/pod*"} {
		found, _ := filepath.Glob(pattern)
		for _, path := range found {
			uid := filepath.Base(path)
			if len(uid) > 3 && uid[:3] == "pod" {
				uid = uid[3:]
			}
			if !slices.Contains(uids, uid) {
				return fmt.Errorf("%s is left", path)
			}
		}
	}
	return nil
}
