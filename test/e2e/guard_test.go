// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// guarded has one Deployment of one replica, which a budget protects from every eviction, one of
// two replicas, and a StatefulSet.
const guarded = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: single}
spec:
  selector: {matchLabels: {app: single}}
  template:
    metadata: {labels: {app: single}}
    spec: {containers: [{name: main, image: nginx}]}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: single}
spec: {minAvailable: 1, selector: {matchLabels: {app: single}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: double}
spec:
  replicas: 2
  selector: {matchLabels: {app: double}}
  template:
    metadata: {labels: {app: double}}
    spec: {containers: [{name: main, image: nginx}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: stateful}
spec:
  serviceName: stateful
  selector: {matchLabels: {app: stateful}}
  template:
    metadata: {labels: {app: stateful}}
    spec: {containers: [{name: main, image: nginx}]}
`

const evictionRequest = `
apiVersion: lifecycle.k8s.io/v1alpha1
kind: EvictionRequest
metadata: {name: single}
spec: {requester: example.com/test, intent: Eviction, target: {pod: {name: %s, uid: %s}}}
`

// TestEveryDrainFindsAReplacementReady drains every node with stock kubectl while the guard is on,
// and kills the controller in the first drain. Finally an EvictionRequest removes a pod.
func TestEveryDrainFindsAReplacementReady(t *testing.T) {
	t.Parallel()
	c := start(t, filepath.Join(t.TempDir(), "data"), "--guard-evictions", "--feature-gates", "EvictionRequestAPI=true", "--nodes", "4", "--ui-port", "-1")
	run := func(stdin string, arguments ...string) result {
		return execute(t, []string{"BERTH_DATA_DIR=" + c.dir}, stdin, filepath.Join(bin, "berth"), append([]string{"kubectl"}, arguments...)...)
	}
	run(guarded, "apply", "-f", "-").wants(t, 0)
	ready := func(app string) (count int) {
		list, err := c.client.CoreV1().Pods("default").List(background(), metav1.ListOptions{LabelSelector: "app=" + app})
		if err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			if isReady(&list.Items[i]) {
				count++
			}
		}
		return count
	}
	eventually(t, patience, func() error {
		for app, want := range map[string]int{"single": 1, "double": 2, "stateful": 1} {
			if got := ready(app); got != want {
				return fmt.Errorf("%d pods of %s are ready, want %d", got, app, want)
			}
		}
		return nil
	})
	fewest := followReady(t, c, map[string]int{"single": 1, "double": 2})

	killed := false
	for _, node := range []string{"node-1", "node-2", "node-3", "node-4"} {
		drained := make(chan result, 1)
		go func() { drained <- run("", "drain", node, "--ignore-daemonsets", "--timeout=3m") }()
		for over := false; !over; {
			select {
			case r := <-drained:
				r.wants(t, 0, "drained")
				over = true
			case <-time.After(20 * time.Millisecond):
				// A raised scale is the state that must not be left behind.
				d, err := c.client.AppsV1().Deployments("default").Get(background(), "single", metav1.GetOptions{})
				if err == nil && !killed && *d.Spec.Replicas == 2 {
					killed = true
					syscall.Kill(c.child(t, "controller\x00"), syscall.SIGKILL)
				}
			}
		}
		run("", "uncordon", node).wants(t, 0)
	}
	if !killed {
		t.Error("no drain raised the scale of the Deployment single")
	}
	pods := c.client.CoreV1().Pods("default")
	single, err := pods.List(background(), metav1.ListOptions{LabelSelector: "app=single"})
	if err != nil || len(single.Items) == 0 {
		t.Fatal(single, err)
	}
	p := single.Items[0]
	run(fmt.Sprintf(evictionRequest, p.Name, p.UID), "apply", "-f", "-").wants(t, 0)
	run("", "wait", "evictionrequest/single", "--for=condition=TargetEvicted", "--timeout=3m").wants(t, 0)
	if _, err := pods.Get(background(), p.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the pod of the EvictionRequest: %v, want not found", err)
	}
	for app, least := range fewest() {
		if least < 1 {
			t.Errorf("at some time no pod of %s was ready", app)
		}
	}
	// All scales and labels are restored.
	eventually(t, patience, func() error {
		list, err := c.client.AppsV1().Deployments("default").List(background(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range list.Items {
			d := &list.Items[i]
			if want := map[string]int32{"single": 1, "double": 2}[d.Name]; *d.Spec.Replicas != want || d.Labels["berth.dev/surge"] != "" {
				return fmt.Errorf("%s has %d replicas and the labels %v", d.Name, *d.Spec.Replicas, d.Labels)
			}
		}
		return nil
	})
}

func isReady(p *v1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == v1.PodReady {
			return c.Status == v1.ConditionTrue && p.DeletionTimestamp == nil
		}
	}
	return false
}

// followReady watches the pods, and returns a function that ends this and returns the fewest pods
// of each app that were ready at the same time.
func followReady(t *testing.T, c *cluster, begin map[string]int) func() map[string]int {
	t.Helper()
	list, err := c.client.CoreV1().Pods("default").List(background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	watched, err := c.client.CoreV1().Pods("default").Watch(background(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	is := map[types.UID]string{}
	for i := range list.Items {
		if p := &list.Items[i]; isReady(p) {
			is[p.UID] = p.Labels["app"]
		}
	}
	fewest, done := begin, make(chan bool)
	var stopped, broken atomic.Bool
	go func() {
		defer close(done)
		for e := range watched.ResultChan() {
			p, ok := e.Object.(*v1.Pod)
			if !ok { // Stop also ends the stream with an error
				broken.Store(!stopped.Load())
				return
			}
			if delete(is, p.UID); isReady(p) && e.Type != watch.Deleted {
				is[p.UID] = p.Labels["app"]
			}
			for app := range fewest {
				count := 0
				for _, of := range is {
					if of == app {
						count++
					}
				}
				fewest[app] = min(fewest[app], count)
			}
		}
	}()
	return func() map[string]int {
		stopped.Store(true)
		watched.Stop()
		<-done
		if broken.Load() {
			t.Error("the watch of pods ended early")
		}
		return fewest
	}
}
