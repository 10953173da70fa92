package e2eagent

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-k8s/berth/internal/containerd"
	"github.com/berth-k8s/berth/internal/node/agent/cri"
)

// While the API server is away the node goes on: what runs runs, what ends is restarted, static
// pods start, and an agent that is killed then leaves its pods alone. When it is back, it learns
// what happened.
func TestAPIServerAway(t *testing.T) {
	t.Parallel()
	skipWithoutContainers(t)
	c := containerd.Start(t)
	cluster, err := startCluster("away")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cluster.process.stop() })
	n, err := makeNode(cluster, "alone", c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the agent's log:\n%s", n.agent.out.tail())
		}
		_ = n.agent.stop()
	})
	ns := n.namespace(t)
	n.apply(t, ns, steadyPods)
	n.awaitPod(t, ns, "steady", "ready", ready)
	chain := n.awaitPod(t, ns, "chain", "ready", ready)
	if err := cluster.process.stop(); err != nil {
		t.Fatal(err)
	}

	r := n.runtime(t)
	ctx := context.Background()
	steady := n.runningOf(t, r, "steady")
	// Nobody but the node is there to see that this one ends.
	if err := r.Runtime.StopContainer(ctx, n.runningOf(t, r, "chain")["c"], 0); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the container is restarted", func() error {
		list, err := r.Runtime.ListContainers(ctx, &runtimeapi.ContainerFilter{LabelSelector: map[string]string{
			cri.LabelPodName: "chain", cri.LabelContainerName: "c"}})
		if err != nil {
			return err
		}
		for _, c := range list {
			if c.Metadata.Attempt == 1 && c.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
				return nil
			}
		}
		return errNotYet
	})
	n.agent.kill()
	n.staticPod(t, "late")
	started := make(chan error, 1)
	go func() { started <- n.agent.start("ready node " + n.name) }()
	eventually(t, "the static pod runs", func() error {
		if len(n.runningOf(t, r, "late-"+n.name)) == 0 {
			return errNotYet
		}
		return nil
	})
	if now := n.runningOf(t, r, "steady"); fmt.Sprint(now) != fmt.Sprint(steady) {
		t.Errorf("steady: %v, then %v", steady, now)
	}

	if err := cluster.process.start("Berth is up"); err != nil {
		t.Fatal(err)
	}
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	n.awaitPod(t, ns, "chain", "known to have been restarted", func(pod *v1.Pod) bool {
		return ready(pod) && pod.UID == chain.UID && pod.Status.ContainerStatuses[0].RestartCount == 1
	})
	n.awaitPod(t, "default", "late-"+n.name, "ready", ready)
	if _, err := n.client.CoreV1().Nodes().Get(ctx, n.name, metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	n.checkNothingElse(t, ns)
}

// A containerd that hangs with its socket open is told of by the node within a minute; what runs
// goes on, and all is well again when it is.
func TestHungContainerd(t *testing.T) {
	t.Parallel()
	n := newNode(t, "hangs")
	ns := n.namespace(t)
	n.apply(t, ns, steadyPods)
	n.awaitPod(t, ns, "steady", "ready", ready)
	steady := n.runningOf(t, n.runtime(t), "steady")
	condition := func() (c v1.NodeCondition) {
		node, err := n.client.CoreV1().Nodes().Get(context.Background(), n.name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, c = range node.Status.Conditions {
			if c.Type == v1.NodeReady {
				break
			}
		}
		return c
	}
	if err := n.containerd.Hang(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.containerd.GoOn() })
	hung := time.Now()
	eventually(t, "the node is not ready", func() error {
		if c := condition(); c.Status == v1.ConditionTrue {
			return errNotYet
		}
		return nil
	})
	if c, took := condition(), time.Since(hung); took < 20*time.Second || took > time.Minute || c.Reason != "KubeletNotReady" ||
		!strings.HasPrefix(c.Message, "container runtime is down: it has not answered since ") {
		t.Errorf("after %s: %+v", took, c)
	} else {
		t.Logf("not ready after %s: %s", took.Round(100*time.Millisecond), c.Message)
	}
	if err := n.containerd.GoOn(); err != nil {
		t.Fatal(err)
	}
	well := time.Now()
	eventually(t, "the node is ready again", func() error {
		if c := condition(); c.Status != v1.ConditionTrue {
			return errNotYet
		}
		return nil
	})
	t.Logf("ready again after %s", time.Since(well).Round(100*time.Millisecond))
	if now := n.runningOf(t, n.runtime(t), "steady"); fmt.Sprint(now) != fmt.Sprint(steady) {
		t.Errorf("steady: %v, then %v", steady, now)
	}
}

// runningOf a pod: the IDs of its containers by name.
func (n *node) runningOf(t testing.TB, r *cri.Runtime, pod string) map[string]string {
	t.Helper()
	list, err := r.Runtime.ListContainers(context.Background(), &runtimeapi.ContainerFilter{
		LabelSelector: map[string]string{cri.LabelPodName: pod},
		State:         &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
	})
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, c := range list {
		out[c.Labels[cri.LabelContainerName]] = c.Id
	}
	return out
}
