package e2eagent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// Each way of asking, against servers that say yes and then no.
func TestProbesOfEachKind(t *testing.T) {
	t.Parallel()
	n := sharedNode(t)
	ns := n.namespace(t)
	n.apply(t, ns, `
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  nodeSelector: {kubernetes.io/hostname: $NODE}
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: $IMAGE
    imagePullPolicy: IfNotPresent
    command: [sh, -c, "mkdir /www; echo yes > /www/yes; trap 'exit 0' TERM; httpd -f -p 8080 -h /www & while :; do sleep 0.1; done"]
    ports: [{name: web, containerPort: 8080}]
    readinessProbe: {httpGet: {path: /yes, port: web, httpHeaders: [{name: X-Test, value: "1"}]}, periodSeconds: 1, timeoutSeconds: 30, failureThreshold: 1}
  - name: tcp
    image: $IMAGE
    imagePullPolicy: IfNotPresent
    command: [sleep, "10000"]
    readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1, timeoutSeconds: 30}
  - name: exec
    image: $IMAGE
    imagePullPolicy: IfNotPresent
    command: [sleep, "10000"]
    env: [{name: FILE, value: /tmp/ok}]
    readinessProbe: {exec: {command: [cat, $(FILE)]}, periodSeconds: 1, timeoutSeconds: 30, successThreshold: 2, failureThreshold: 1}
  - name: grpc
    image: $IMAGE
    imagePullPolicy: IfNotPresent
    command: [sleep, "10000"]
    livenessProbe: {grpc: {port: 8080}, periodSeconds: 1, initialDelaySeconds: 10000}
    readinessProbe: {grpc: {port: 8080}, periodSeconds: 1}
`)
	is := func(want map[string]bool) func(*v1.Pod) bool {
		return func(pod *v1.Pod) bool {
			for _, cs := range pod.Status.ContainerStatuses {
				if cs.Ready != want[cs.Name] || cs.State.Running == nil {
					return false
				}
			}
			return len(pod.Status.ContainerStatuses) == len(want)
		}
	}
	n.awaitPod(t, ns, "p", "two of four ready", is(map[string]bool{"c": true, "tcp": true, "exec": false, "grpc": false}))
	n.awaitEvent(t, ns, "p", "Unhealthy", "Readiness probe failed: cat: can't open '/tmp/ok': No such file or directory")
	n.awaitEvent(t, ns, "p", "Unhealthy", "Readiness probe failed: timeout: failed to connect service")
	n.do(t, "-n", ns, "exec", "p", "-c", "exec", "--", "touch", "/tmp/ok")
	n.do(t, "-n", ns, "exec", "p", "-c", "c", "--", "rm", "/www/yes")
	pod := n.awaitPod(t, ns, "p", "others ready", is(map[string]bool{"c": false, "tcp": true, "exec": true, "grpc": false}))
	n.awaitEvent(t, ns, "p", "Unhealthy", "Readiness probe failed: HTTP probe failed with statuscode: 404")
	for _, want := range []string{`container="tcp",namespace="` + ns + `",pod="p",`, `probe_type="Readiness",result="successful"`} {
		if counts := n.do(t, "get", "--raw", "/api/v1/nodes/"+n.name+"/proxy/metrics/probes"); !strings.Contains(counts, want) {
			t.Errorf("/metrics/probes has no %s:\n%s", want, counts)
		}
	}
	for _, cs := range pod.Status.ContainerStatuses {
		if cs.RestartCount > 0 {
			t.Errorf("%s was restarted because it was not ready", cs.Name)
		}
	}
	if message := conditionMessage(pod, v1.ContainersReady); message != "containers with unready status: [c grpc]" {
		t.Errorf("the pod says %q", message)
	}
}

func conditionMessage(pod *v1.Pod, kind v1.PodConditionType) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == kind {
			return c.Message
		}
	}
	return ""
}

// A slow starter has its time; a container that does not live is killed, with the grace that the
// probe gives. Timeouts are long: that the machine is busy is not to make a container look ill.
func TestStartupAndLiveness(t *testing.T) {
	t.Parallel()
	n := sharedNode(t)
	ns := n.namespace(t)
	n.apply(t, ns, `
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  nodeSelector: {kubernetes.io/hostname: $NODE}
  terminationGracePeriodSeconds: 600
  containers:
  - name: c
    image: $IMAGE
    imagePullPolicy: IfNotPresent
    command: [sh, -c, "trap '' TERM; while :; do sleep 0.1; done"]
    startupProbe: {exec: {command: [test, -e, /tmp/started]}, periodSeconds: 1, timeoutSeconds: 30, failureThreshold: 1000}
    livenessProbe: {exec: {command: [sh, -c, "test -e /tmp/alive || { echo no pulse; exit 1; }"]}, periodSeconds: 1, timeoutSeconds: 30, failureThreshold: 2, terminationGracePeriodSeconds: 2}
---
apiVersion: v1
kind: Pod
metadata: {name: never}
spec:
  nodeSelector: {kubernetes.io/hostname: $NODE}
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: $IMAGE
    imagePullPolicy: IfNotPresent
    command: [sleep, "10000"]
    startupProbe: {exec: {command: ["false"]}, periodSeconds: 1, failureThreshold: 2}
`)
	started := func(want bool) func(*v1.Pod) bool {
		return func(pod *v1.Pod) bool {
			cs := pod.Status.ContainerStatuses
			return len(cs) == 1 && cs[0].State.Running != nil && cs[0].Started != nil && *cs[0].Started == want
		}
	}
	n.awaitPod(t, ns, "p", "running, not started", started(false))
	n.awaitEvent(t, ns, "p", "Unhealthy", "Startup probe failed")
	if pod := n.pod(t, ns, "p"); ready(pod) || pod.Status.ContainerStatuses[0].RestartCount > 0 {
		t.Errorf("before it has started: %+v", pod.Status.ContainerStatuses)
	}
	n.do(t, "-n", ns, "exec", "p", "--", "touch", "/tmp/alive", "/tmp/started")
	n.awaitPod(t, ns, "p", "started", func(pod *v1.Pod) bool { return started(true)(pod) && ready(pod) })

	n.do(t, "-n", ns, "exec", "p", "--", "rm", "/tmp/alive")
	n.awaitEvent(t, ns, "p", "Unhealthy", "Liveness probe failed: no pulse")
	n.awaitEvent(t, ns, "p", "Killing", "Container c failed liveness probe, will be restarted")
	// By the pod's grace of ten minutes it would not be restarted within the patience of this test.
	pod := n.awaitPod(t, ns, "p", "restarted", func(pod *v1.Pod) bool {
		return pod.Status.ContainerStatuses[0].RestartCount == 1 && started(false)(pod)
	})
	if end := pod.Status.ContainerStatuses[0].LastTerminationState.Terminated; end == nil || end.ExitCode != 137 {
		t.Errorf("it ended %+v", end)
	}
	n.do(t, "-n", ns, "delete", "pod", "p", "--grace-period=1")

	n.awaitEvent(t, ns, "never", "Killing", "Container c failed startup probe, will be restarted")
	n.awaitPod(t, ns, "never", "restarted", func(pod *v1.Pod) bool { return pod.Status.ContainerStatuses[0].RestartCount >= 1 })
}

// A hook after the start that fails kills its container; one before the end has its part of the
// grace period.
func TestHooks(t *testing.T) {
	t.Parallel()
	n := sharedNode(t)
	ns := n.namespace(t)
	host := t.TempDir()
	n.apply(t, ns, strings.ReplaceAll(`
apiVersion: v1
kind: Pod
metadata: {name: bad}
spec:
  nodeSelector: {kubernetes.io/hostname: $NODE}
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: $IMAGE
    imagePullPolicy: IfNotPresent
    command: [sleep, "10000"]
    lifecycle: {postStart: {exec: {command: [sh, -c, "echo not today; exit 3"]}}}
---
apiVersion: v1
kind: Pod
metadata: {name: good}
spec:
  nodeSelector: {kubernetes.io/hostname: $NODE}
  terminationGracePeriodSeconds: 60
  volumes: [{name: host, hostPath: {path: $HOST}}]
  containers:
  - name: c
    image: $IMAGE
    imagePullPolicy: IfNotPresent
    command: [sh, -c, "trap 'echo term >> /host/order; exit 0' TERM; while :; do sleep 0.1; done"]
    volumeMounts: [{name: host, mountPath: /host}]
    lifecycle:
      postStart: {exec: {command: [sh, -c, "echo start >> /host/order"]}}
      preStop: {exec: {command: [sh, -c, "echo stop >> /host/order; sleep 1; echo stopped >> /host/order"]}}
---
apiVersion: v1
kind: Pod
metadata: {name: slow}
spec:
  nodeSelector: {kubernetes.io/hostname: $NODE}
  terminationGracePeriodSeconds: 2
  containers:
  - name: c
    image: $IMAGE
    imagePullPolicy: IfNotPresent
    command: [sh, -c, "trap 'exit 0' TERM; while :; do sleep 0.1; done"]
    lifecycle: {preStop: {exec: {command: [sleep, "1000"]}}}
`, "$HOST", host))
	n.awaitEvent(t, ns, "bad", "FailedPostStartHook", "PostStartHook failed")
	n.awaitPod(t, ns, "bad", "restarted", func(pod *v1.Pod) bool {
		return len(pod.Status.ContainerStatuses) == 1 && pod.Status.ContainerStatuses[0].RestartCount >= 1 && !ready(pod)
	})

	n.awaitPod(t, ns, "good", "ready", ready)
	n.do(t, "-n", ns, "delete", "pod", "good", "--wait=false")
	n.awaitGone(t, ns, "good")
	if order, err := os.ReadFile(filepath.Join(host, "order")); err != nil || string(order) != "start\nstop\nstopped\nterm\n" {
		t.Errorf("order: %q (%v)", order, err)
	}

	n.awaitPod(t, ns, "slow", "ready", ready)
	began := time.Now()
	n.do(t, "-n", ns, "delete", "pod", "slow", "--wait=false")
	n.awaitEvent(t, ns, "slow", "FailedPreStopHook", "PreStopHook failed")
	n.awaitGone(t, ns, "slow")
	if took := time.Since(began); took < 2*time.Second {
		t.Errorf("it was gone after %s", took)
	}
}
