// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2eeviction

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// disturbance is a change by another client while a surge waits for its new pod.
type disturbance struct {
	// before is a manifest that is applied before the drain. The function do is called after the
	// successor, next, has been created.
	before string
	do     func(c *cluster, name string, next *v1.Pod)
	flags  []string
	says   []string // patterns in the output of the drain, in this order
	leaves bool     // whether the pod finally leaves by another surge
	scale  string   // expected scale at the end
}

var disturbances = map[string]disturbance{
	"image": {
		do: func(c *cluster, _ string, next *v1.Pod) {
			c.kubectl("set", "image", "pod/"+next.Name, "main=non-existent")
		},
		says: []string{
			`surging: Deployment/image has 2 replicas for the time being`,
			`waiting: its successor image-\S+ does not start: ImagePullBackOff`,
			`not replaced: its successor image-\S+ does not start: ImagePullBackOff`,
			`not drained: default/image-\S+ stays: its successor image-\S+ does not start: ImagePullBackOff`,
		},
		scale: "1",
	},
	"unready": {
		do: func(c *cluster, _ string, next *v1.Pod) {
			c.kubectl("annotate", "pod", next.Name, "berth.dev/ready=false")
		},
		flags: []string{"--timeout=30s"},
		says: []string{
			`waiting: its successor unready-\S+ is not ready`,
			`not replaced: not done within 30s: its successor unready-\S+ is not ready`,
			`not drained: not done within 30s`,
		},
		scale: "1",
	},
	"budget": {
		do: func(c *cluster, name string, _ *v1.Pod) {
			c.kubectl("create", "poddisruptionbudget", name, "--selector=app="+name, "--min-available=2")
		},
		flags: []string{"--timeout=30s"},
		says: []string{
			`waiting: the disruption budget budget needs 2 healthy pods, and would have 1`,
			`not replaced: not done within 30s: the disruption budget budget needs 2 healthy pods, and would have 1`,
		},
		scale: "1",
	},
	"rollout": { // a rollout that never completes
		do: func(c *cluster, name string, _ *v1.Pod) {
			c.kubectl("patch", "deployment", name, "-p", `{"spec": {"template": {"metadata": {"annotations": {"berth.dev/ready": "false"}}}}}`)
		},
		flags: []string{"--timeout=30s"},
		says: []string{
			`not replaced: a rollout of Deployment/rollout has begun`,
			`held back: default/rollout-\S+: its Deployment is being rolled out`,
			`not drained: not done within 30s`,
		},
		scale: "1",
	},
	"autoscaler": { // the next surge is not disturbed
		before: `
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: autoscaler}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: autoscaler}
  maxReplicas: 4
  behavior: {scaleDown: {selectPolicy: Disabled}}
`,
		do: func(c *cluster, name string, _ *v1.Pod) { // acts like the autoscaler
			c.kubectl("scale", "deployment", name, "--replicas=3")
		},
		says: []string{
			`not replaced: Deployment/autoscaler was scaled to 3 meanwhile`,
			`surging: Deployment/autoscaler has 4 replicas for the time being`,
			`its successor is ready, and the scale is restored`,
			`node/\S+ drained`,
		},
		leaves: true, scale: "3",
	},
}

// aloneScheduler is a scheduler configuration with the defaults, except that leader election is
// off.
const aloneScheduler = `
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
`

// TestADisturbedSurgeIsGivenUp verifies that a disturbed surge of a drain is abandoned: the pod
// stays, the scale is restored or keeps the value set by another client, and the drain's output and
// events report the reason.
func TestADisturbedSurgeIsGivenUp(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	startController(t, c.kubeconfig, alone)
	scheduler := filepath.Join(t.TempDir(), "scheduler.yaml")
	c.must(os.WriteFile(scheduler, []byte(aloneScheduler), 0o600))
	newChild(t, exec.Command(program(t, "berth"), "scheduler", "--kubeconfig", c.kubeconfig, "--config", scheduler, "--secure-port=0")).start()
	newChild(t, exec.Command(program(t, "berth"), "nodes", "--kubeconfig", c.kubeconfig, "--count", fmt.Sprint(2*len(disturbances)))).start()

	t.Run("all", func(t *testing.T) {
		node := 0
		for name, d := range disturbances {
			nodes := []string{fmt.Sprintf("node-%d", node+1), fmt.Sprintf("node-%d", node+2)}
			node += 2
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				c.at(t).disturbSurge(name, d, nodes, scheduler)
			})
		}
	})
}

func (c *cluster) disturbSurge(name string, d disturbance, nodes []string, scheduler string) {
	for _, node := range nodes {
		c.within(time.Minute, node+" is there", func() bool {
			_, err := c.tryKubectl("label", "node", node, "for="+name)
			return err == nil
		})
	}
	manifests := filepath.Join(c.TempDir(), "manifests.yaml")
	c.must(os.WriteFile(manifests, []byte(surging(name)+d.before), 0o600))
	c.kubectl("apply", "-f", manifests)
	c.kubectl("rollout", "status", "deployment", name, "--timeout=60s")
	victim := c.podsOf(name)[0]

	args := []string{"drain", victim.Spec.NodeName, "--surge", "--kubeconfig", c.kubeconfig, "--config", scheduler}
	cmd := exec.CommandContext(c.Context(), program(c, "berth"), append(args, d.flags...)...)
	drained := make(chan string, 1)
	go func() {
		out, _ := cmd.CombinedOutput() // the error is also in the output
		drained <- string(out)
	}()
	c.within(time.Minute, "a successor is made", func() bool {
		for _, p := range c.podsOf(name) {
			if p.UID != victim.UID {
				d.do(c, name, &p)
				return true
			}
		}
		return false
	})

	text := <-drained
	rest := text
	for _, pattern := range d.says {
		found := regexp.MustCompile(pattern).FindStringIndex(rest)
		if found == nil {
			c.Fatalf("%q is not said after what was to be said before:\n%s", pattern, text)
		}
		rest = rest[found[1]:]
	}
	if scale := c.kubectl("get", "deployment", name, "-o", "jsonpath={.spec.replicas} {.metadata.labels}"); scale != d.scale+" " {
		c.Errorf("the scale and the labels are %q in the end:\n%s", scale, text)
	}
	pod, err := c.client.CoreV1().Pods("default").Get(c.Context(), victim.Name, metav1.GetOptions{})
	switch left := err != nil || pod.DeletionTimestamp != nil; {
	case left != d.leaves:
		c.Errorf("the pod has left: %t\n%s", left, text)
	case !left && len(pod.Annotations) > 0:
		c.Errorf("the pod is left with %v", pod.Annotations)
	}
	c.within(time.Minute, "the event of the surge", func() bool { return c.isGivenUp(victim.UID) })
}

// surging returns a manifest of a Deployment on dedicated nodes, whose pods are ready after ten
// seconds: a disturbance must come before its successor is ready.
func surging(name string) string {
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      terminationGracePeriodSeconds: 1
      nodeSelector: {for: %[1]s}
      containers: [{name: main, image: app, readinessProbe: {exec: {command: ["true"]}, initialDelaySeconds: 10}}]
---
`, name)
}

func (c *cluster) podsOf(app string) []v1.Pod {
	c.Helper()
	list, err := c.client.CoreV1().Pods("default").List(c.Context(), metav1.ListOptions{LabelSelector: "app=" + app})
	c.must(err)
	return list.Items
}

func (c *cluster) isGivenUp(pod types.UID) bool {
	events, err := c.client.CoreV1().Events("default").List(context.Background(), metav1.ListOptions{FieldSelector: "reason=SurgeGivenUp,involvedObject.uid=" + string(pod)})
	return err == nil && len(events.Items) > 0
}
