package e2eagent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// kubectl run, and what a person sees of it until it is deleted.
func TestRunAndDelete(t *testing.T) {
	t.Parallel()
	n := sharedNode(t)
	ns := n.namespace(t)
	n.do(t, "-n", ns, "run", "a", "--image=busybox", "--image-pull-policy=Never", `--overrides={"spec":{"nodeSelector":{"kubernetes.io/hostname":"shared"}}}`,
		"--", "sh", "-c", `trap "echo got TERM; sleep 1; echo bye; exit 3" TERM; echo up; while :; do sleep 0.1; done`)
	pod := n.awaitPod(t, ns, "a", "ready", ready)
	if pod.Status.PodIP == "" || pod.Status.HostIP == "" || pod.Status.StartTime == nil || pod.Status.QOSClass != v1.PodQOSBestEffort {
		t.Errorf("status: %+v", pod.Status)
	}
	if out := n.do(t, "-n", ns, "describe", "pod", "a"); !strings.Contains(out, "Container started") {
		t.Errorf("kubectl describe:\n%s", out)
	}
	logs := filepath.Join(n.dir, "logs", ns+"_a_"+string(pod.UID))
	text, err := os.ReadFile(filepath.Join(logs, "a", "0.log"))
	if err != nil || !strings.Contains(string(text), " stdout F up\n") {
		t.Errorf("log file: %q (%v)", text, err)
	}
	n.do(t, "-n", ns, "patch", "pod", "a", "--type=merge", "-p", `{"metadata":{"finalizers":["berth.dev/test"]}}`)
	n.do(t, "-n", ns, "delete", "pod", "a", "--wait=false")
	pod = n.awaitPod(t, ns, "a", "failed", func(pod *v1.Pod) bool { return pod.Status.Phase == v1.PodFailed })
	if end := pod.Status.ContainerStatuses[0].State.Terminated; end == nil || end.ExitCode != 3 {
		t.Errorf("the trap was not given its time: %+v", pod.Status.ContainerStatuses[0].State)
	}
	n.do(t, "-n", ns, "patch", "pod", "a", "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
	n.awaitGone(t, ns, "a")
	eventually(t, "logs of a gone", func() error {
		if _, err := os.Stat(logs); err == nil {
			return errNotYet
		}
		return nil
	})
}

// A process that does not listen to SIGTERM is killed when the grace period is over, not before.
func TestGraceIsGivenAndEnds(t *testing.T) {
	t.Parallel()
	n := sharedNode(t)
	ns := n.namespace(t)
	n.apply(t, ns, `
apiVersion: v1
kind: Pod
metadata: {name: deaf, finalizers: [berth.dev/test]}
spec:
  nodeSelector: {kubernetes.io/hostname: $NODE}
  terminationGracePeriodSeconds: 4
  containers: [{name: c, image: $IMAGE, imagePullPolicy: IfNotPresent, command: [sh, -c, "trap '' TERM; while :; do sleep 0.1; done"]}]
`)
	n.awaitPod(t, ns, "deaf", "ready", ready)
	began := time.Now()
	n.do(t, "-n", ns, "delete", "pod", "deaf", "--wait=false")
	pod := n.awaitPod(t, ns, "deaf", "failed", func(pod *v1.Pod) bool { return pod.Status.Phase == v1.PodFailed })
	if took := time.Since(began); took < 3500*time.Millisecond {
		t.Errorf("it was given %s, not 4s", took)
	}
	if end := pod.Status.ContainerStatuses[0].State.Terminated; end == nil || end.ExitCode != 137 {
		t.Errorf("state: %+v", pod.Status.ContainerStatuses[0].State)
	}
	n.do(t, "-n", ns, "patch", "pod", "deaf", "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
	n.awaitGone(t, ns, "deaf")
}

// A pod that takes the name of one that is deleted is another pod.
func TestSameNameIsAnotherPod(t *testing.T) {
	t.Parallel()
	n := sharedNode(t)
	ns := n.namespace(t)
	const manifest = `
apiVersion: v1
kind: Pod
metadata: {name: twin}
spec:
  nodeSelector: {kubernetes.io/hostname: $NODE}
  containers: [{name: c, image: $IMAGE, imagePullPolicy: IfNotPresent, command: [sleep, "10000"]}]
`
	n.apply(t, ns, manifest)
	first := n.awaitPod(t, ns, "twin", "ready", ready)
	n.do(t, "-n", ns, "delete", "pod", "twin", "--force", "--grace-period=0")
	n.apply(t, ns, manifest)
	second := n.awaitPod(t, ns, "twin", "ready", ready)
	if first.UID == second.UID || first.Status.ContainerStatuses[0].ContainerID == second.Status.ContainerStatuses[0].ContainerID {
		t.Errorf("the second is the first")
	}
	n.awaitOnly(t, ns, "twin", string(second.UID))
}

// What is wrong with an image is told in the kubelet's words.
func TestMissingImages(t *testing.T) {
	t.Parallel()
	n := sharedNode(t)
	ns := n.namespace(t)
	n.apply(t, ns, `
apiVersion: v1
kind: Pod
metadata: {name: never}
spec:
  nodeSelector: {kubernetes.io/hostname: $NODE}
  containers: [{name: c, image: nothere, imagePullPolicy: Never}]
---
apiVersion: v1
kind: Pod
metadata: {name: pull}
spec:
  nodeSelector: {kubernetes.io/hostname: $NODE}
  containers: [{name: c, image: "127.0.0.1:9/nothere:1", imagePullPolicy: IfNotPresent}]
---
apiVersion: v1
kind: Pod
metadata: {name: name}
spec:
  nodeSelector: {kubernetes.io/hostname: $NODE}
  containers: [{name: c, image: "No/Such:Name", imagePullPolicy: IfNotPresent}]
`)
	for name, reason := range map[string]string{"never": "ErrImageNeverPull", "pull": "ErrImagePull", "name": "InvalidImageName"} {
		n.awaitPod(t, ns, name, reason, waits(reason))
	}
	n.awaitPod(t, ns, "pull", "ImagePullBackOff", waits("ImagePullBackOff"))
	for _, name := range []string{"never", "pull", "name"} {
		n.do(t, "-n", ns, "delete", "pod", name)
	}
}

func waits(reason string) func(*v1.Pod) bool {
	return func(pod *v1.Pod) bool {
		for _, cs := range pod.Status.ContainerStatuses {
			if cs.State.Waiting != nil && cs.State.Waiting.Reason == reason {
				return true
			}
		}
		return false
	}
}
