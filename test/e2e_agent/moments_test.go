package e2eagent

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
)

var moments = flag.Int("moments", 6, "at how many moments agent and containerd are killed and stopped")

// halted is how long a process is stopped: less than it takes for the node to be called unready.
const halted = 300 * time.Millisecond

// troubles come in turn, each between two of the others' pods.
var troubles = []struct {
	name string
	do   func(*node) error
}{
	{"kill -9 of the agent", func(n *node) error { n.agent.kill(); return n.agent.start("ready node " + n.name) }},
	{"SIGSTOP of containerd", func(n *node) error {
		err := n.containerd.Hang()
		time.Sleep(halted) // how long it is stopped, not a wait for anything
		return errors.Join(err, n.containerd.GoOn())
	}},
	{"kill -9 of both", func(n *node) error {
		n.agent.kill()
		return errors.Join(n.containerd.Kill(), n.containerd.Revive(), n.agent.start("ready node "+n.name))
	}},
	{"SIGSTOP of the agent", func(n *node) error {
		err := n.agent.cmd.Process.Signal(syscall.SIGSTOP)
		time.Sleep(halted) // how long it is stopped, not a wait for anything
		return errors.Join(err, n.agent.cmd.Process.Signal(syscall.SIGCONT))
	}},
	{"kill -9 of containerd", func(n *node) error { return errors.Join(n.containerd.Kill(), n.containerd.Revive()) }},
	{"SIGSTOP of both", func(n *node) error {
		err := errors.Join(n.agent.cmd.Process.Signal(syscall.SIGSTOP), n.containerd.Hang())
		time.Sleep(halted) // how long it is stopped, not a wait for anything
		return errors.Join(err, n.containerd.GoOn(), n.agent.cmd.Process.Signal(syscall.SIGCONT))
	}},
}

// Whatever is killed or stopped, at whichever moment: nothing restarts that ran, nothing is
// doubled, nothing is left behind, and a node that is away for moments is not called unready.
func TestTroubleAtManyMoments(t *testing.T) {
	t.Parallel()
	n := newNode(t, "moments")
	ns := n.namespace(t)
	n.staticPod(t, "fixed")
	n.apply(t, ns, steadyPods)
	before := n.steady(t, ns)
	unready := n.watchReadiness(t)
	for i := range *moments {
		n.apply(t, ns, fmt.Sprintf(passingPod, passing(i)))
		// Not a wait for anything: the moment of the trouble.
		time.Sleep(time.Duration(i%16) * 50 * time.Millisecond)
		trouble := troubles[i%len(troubles)]
		if i >= len(troubles) { // so many pods at once are another test's subject
			n.do(t, "-n", ns, "delete", "pod", passing(i-len(troubles)), "--wait=false", "--ignore-not-found")
		}
		if err := trouble.do(n); err != nil {
			t.Fatalf("moment %d, %s: %v", i, trouble.name, err)
		}
	}
	n.checkSteady(t, ns, before)
	for i := max(0, *moments-len(troubles)); i < *moments; i++ {
		pod := n.awaitPod(t, ns, passing(i), "ready", ready)
		if cs := pod.Status.ContainerStatuses[0]; cs.RestartCount != 0 {
			t.Errorf("%s, made before %s, was restarted %d times: %+v", pod.Name, troubles[i%len(troubles)].name, cs.RestartCount, cs.LastTerminationState)
		}
	}
	n.checkNothingElse(t, ns)
	if seen := unready(); len(seen) > 0 {
		t.Errorf("the node was called unready: %q", seen)
	}
}

// watchReadiness from now on; the result tells what the node said when it was not ready.
func (n *node) watchReadiness(t *testing.T) (unready func() []string) {
	t.Helper()
	nodes, err := n.client.CoreV1().Nodes().Watch(context.Background(), metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", n.name).String()})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var seen []string
	var done sync.WaitGroup
	done.Go(func() {
		for event := range nodes.ResultChan() {
			node, is := event.Object.(*v1.Node)
			if !is {
				continue
			}
			for _, c := range node.Status.Conditions {
				if c.Type == v1.NodeReady && c.Status != v1.ConditionTrue {
					mu.Lock()
					seen = append(seen, fmt.Sprintf("%s: %s", c.Status, c.Message))
					mu.Unlock()
				}
			}
		}
	})
	t.Cleanup(func() { nodes.Stop(); done.Wait() })
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(seen)
	}
}
