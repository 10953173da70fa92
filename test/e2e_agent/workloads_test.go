package e2eagent

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A Deployment goes by its probes: not ready before they say so, restarted when they say so.
func TestDeploymentWithProbes(t *testing.T) {
	t.Parallel()
	n := sharedNode(t)
	ns := n.namespace(t)
	n.apply(t, ns, `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 1
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      nodeSelector: {kubernetes.io/hostname: $NODE}
      terminationGracePeriodSeconds: 1
      containers:
      - name: web
        image: $IMAGE
        imagePullPolicy: IfNotPresent
        command: [sh, -c, "mkdir -p /www; trap 'exit 0' TERM; httpd -f -p 8080 -h /www & while :; do sleep 0.1; done"]
        readinessProbe: {httpGet: {path: /ok, port: 8080}, periodSeconds: 1}
        livenessProbe: {exec: {command: [test, "!", -e, /tmp/sick]}, periodSeconds: 1, failureThreshold: 2}
`)
	name := n.onlyPod(t, ns, "app=web")
	n.awaitPod(t, ns, name, "running, not ready", func(pod *v1.Pod) bool { return pod.Status.Phase == v1.PodRunning && !ready(pod) })
	n.do(t, "-n", ns, "exec", name, "--", "touch", "/www/ok")
	n.do(t, "-n", ns, "rollout", "status", "deployment/web", "--timeout=120s")
	n.do(t, "-n", ns, "exec", name, "--", "touch", "/tmp/sick")
	pod := n.awaitPod(t, ns, name, "restarted", func(pod *v1.Pod) bool {
		return pod.Status.ContainerStatuses[0].RestartCount == 1 && pod.Status.ContainerStatuses[0].State.Running != nil
	})
	if ready(pod) {
		t.Error("ready though its new container has not said so")
	}
}

// The second restart waits ten seconds, and says so.
func TestCrashLoopBackOff(t *testing.T) {
	t.Parallel()
	n := sharedNode(t)
	ns := n.namespace(t)
	n.apply(t, ns, `
apiVersion: v1
kind: Pod
metadata: {name: crash}
spec:
  nodeSelector: {kubernetes.io/hostname: $NODE}
  containers: [{name: c, image: $IMAGE, imagePullPolicy: IfNotPresent, command: [sh, -c, "echo run; exit 7"]}]
`)
	pod := n.awaitPod(t, ns, "crash", "CrashLoopBackOff", waits("CrashLoopBackOff"))
	cs := pod.Status.ContainerStatuses[0]
	if cs.RestartCount != 1 || !strings.HasPrefix(cs.State.Waiting.Message, "back-off 10s restarting failed container=c pod=crash_"+ns) {
		t.Errorf("restarts %d, waiting: %s", cs.RestartCount, cs.State.Waiting.Message)
	}
	if last := cs.LastTerminationState.Terminated; last == nil || last.ExitCode != 7 || last.Reason != "Error" {
		t.Errorf("last state: %+v", last)
	}
	if out := n.do(t, "-n", ns, "logs", "crash", "--previous"); out != "run\n" {
		t.Errorf("kubectl logs --previous: %q", out)
	}
	waits, steps := 10*time.Second, 1
	if *long {
		steps = 4
	}
	for restart := int32(2); restart < int32(2+steps); restart++ {
		end := pod.Status.ContainerStatuses[0].LastTerminationState.Terminated.FinishedAt
		pod = n.awaitPod(t, ns, "crash", fmt.Sprintf("restart %d", restart), func(pod *v1.Pod) bool {
			cs := pod.Status.ContainerStatuses[0]
			return cs.RestartCount == restart && cs.State.Waiting != nil
		})
		// Times in the API are cut off to seconds.
		if waited := pod.Status.ContainerStatuses[0].LastTerminationState.Terminated.StartedAt.Sub(end.Time); waited < waits-time.Second {
			t.Errorf("restart %d came after %s, not %s", restart, waited, waits)
		}
		waits *= 2
	}
}

func TestJobs(t *testing.T) {
	t.Parallel()
	n := sharedNode(t)
	ns := n.namespace(t)
	n.apply(t, ns, `
apiVersion: batch/v1
kind: Job
metadata: {name: good}
spec:
  completions: 3
  parallelism: 2
  template:
    spec:
      restartPolicy: Never
      nodeSelector: {kubernetes.io/hostname: $NODE}
      containers: [{name: c, image: $IMAGE, imagePullPolicy: IfNotPresent, command: [echo, done]}]
---
apiVersion: batch/v1
kind: Job
metadata: {name: bad}
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      nodeSelector: {kubernetes.io/hostname: $NODE}
      containers: [{name: c, image: $IMAGE, imagePullPolicy: IfNotPresent, command: [sh, -c, "echo last words > /dev/termination-log; exit 9"]}]
`)
	n.do(t, "-n", ns, "wait", "--for=condition=Complete", "job/good", "--timeout=120s")
	n.do(t, "-n", ns, "wait", "--for=condition=Failed", "job/bad", "--timeout=120s")
	pod := n.pod(t, ns, n.onlyPod(t, ns, "job-name=bad"))
	if end := pod.Status.ContainerStatuses[0].State.Terminated; end == nil || end.ExitCode != 9 || end.Message != "last words\n" {
		t.Errorf("end of the failed pod: %+v", end)
	}
	if out := n.do(t, "-n", ns, "logs", "job/good"); out != "done\n" {
		t.Errorf("logs of a pod that has ended: %q", out)
	}
}

// A DaemonSet, whose pods have an init chain and a sidecar that outlives the main container.
func TestDaemonSetWithInitChainAndSidecar(t *testing.T) {
	t.Parallel()
	n := sharedNode(t)
	ns := n.namespace(t)
	n.apply(t, ns, `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: ds}
spec:
  selector: {matchLabels: {app: ds}}
  template:
    metadata: {labels: {app: ds}}
    spec:
      nodeSelector: {kubernetes.io/hostname: $NODE}
      terminationGracePeriodSeconds: 20
      volumes: [{name: v, emptyDir: {}}]
      initContainers:
      - {name: one, image: $IMAGE, imagePullPolicy: IfNotPresent, command: [sh, -c, "echo one >> /v/order"], volumeMounts: [{name: v, mountPath: /v}]}
      - name: side
        image: $IMAGE
        imagePullPolicy: IfNotPresent
        restartPolicy: Always
        command: [sh, -c, "echo side >> /v/order; trap 'echo side ends; exit 0' TERM; while :; do sleep 0.1; done"]
        volumeMounts: [{name: v, mountPath: /v}]
        startupProbe: {exec: {command: [grep, side, /v/order]}, periodSeconds: 1}
      - {name: two, image: $IMAGE, imagePullPolicy: IfNotPresent, command: [sh, -c, "echo two >> /v/order"], volumeMounts: [{name: v, mountPath: /v}]}
      containers:
      - name: main
        image: $IMAGE
        imagePullPolicy: IfNotPresent
        command: [sh, -c, "echo main >> /v/order; trap 'sleep 1; exit 0' TERM; while :; do sleep 0.1; done"]
        volumeMounts: [{name: v, mountPath: /v}]
`)
	n.do(t, "-n", ns, "rollout", "status", "daemonset/ds", "--timeout=120s")
	name := n.onlyPod(t, ns, "app=ds")
	if out := n.do(t, "-n", ns, "exec", name, "-c", "main", "--", "cat", "/v/order"); out != "one\nside\ntwo\nmain\n" {
		t.Errorf("order: %q", out)
	}
	n.do(t, "-n", ns, "patch", "pod", name, "--type=merge", "-p", `{"metadata":{"finalizers":["berth.dev/test"]}}`)
	n.do(t, "-n", ns, "delete", "pod", name, "--wait=false")
	pod := n.awaitPod(t, ns, name, "ended", func(pod *v1.Pod) bool {
		return pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed
	})
	main, side := pod.Status.ContainerStatuses[0].State.Terminated, pod.Status.InitContainerStatuses[1].State.Terminated
	if main == nil || side == nil || side.FinishedAt.Before(&main.FinishedAt) || side.ExitCode != 0 {
		t.Errorf("main ended %+v, sidecar %+v", main, side)
	}
	n.do(t, "-n", ns, "patch", "pod", name, "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
}

// onlyPod waits for the one pod that has the labels and is not on its way out.
func (n *node) onlyPod(t testing.TB, namespace, selector string) string {
	t.Helper()
	var name string
	eventually(t, "one pod with "+selector, func() error {
		list, err := n.client.CoreV1().Pods(namespace).List(context.Background(), metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			return err
		}
		if len(list.Items) != 1 {
			return fmt.Errorf("there are %d", len(list.Items))
		}
		name = list.Items[0].Name
		return nil
	})
	return name
}
