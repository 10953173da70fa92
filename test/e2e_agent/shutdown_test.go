package e2eagent

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Where no systemd tells of a shutdown, SIGTERM stands for it: pods end, also those that do not
// heed their signal, the API is told, and then the agent ends.
func TestShutdownBySIGTERM(t *testing.T) {
	t.Parallel()
	n := newNode(t, "shut-down", "--shutdown-grace-period", "20s", "--shutdown-grace-period-critical-pods", "2s")
	n.agent.env = []string{"DBUS_SYSTEM_BUS_ADDRESS=unix:path=/nowhere"}
	if err := n.agent.stop(); err != nil { // SIGINT ends the agent alone
		t.Fatal(err)
	}
	if err := n.agent.start("ready node " + n.name); err != nil {
		t.Fatal(err)
	}
	ns := n.namespace(t)
	// Their own grace periods leave the runtime time to take their sandboxes down.
	n.apply(t, ns, strings.ReplaceAll(steadyPods, "\n  nodeSelector:", "\n  terminationGracePeriodSeconds: 2\n  nodeSelector:"))
	for _, name := range []string{"steady", "chain"} {
		n.awaitPod(t, ns, name, "ready", ready)
	}
	eventually(t, "the agent knows that there is no systemd", func() error {
		if strings.Contains(n.agent.out.String(), "This machine has no systemd-logind") {
			return nil
		}
		return errors.New("it has not said so")
	})
	if err := n.agent.signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"steady", "chain"} {
		if pod := n.pod(t, ns, name); pod.Status.Phase != v1.PodFailed || pod.Status.Reason != "Terminated" {
			t.Errorf("%s is %s, %s, %q", name, pod.Status.Phase, pod.Status.Reason, pod.Status.Message)
		}
	}
	node, err := n.client.CoreV1().Nodes().Get(context.Background(), n.name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range node.Status.Conditions {
		if c.Type == v1.NodeReady && (c.Status != v1.ConditionFalse || c.Message != "node is shutting down") {
			t.Errorf("ready is %s: %s", c.Status, c.Message)
		}
	}
	sandboxes, err := n.runtime(t).Runtime.ListPodSandbox(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range sandboxes {
		if s.State == runtimeapi.PodSandboxState_SANDBOX_READY {
			t.Errorf("sandbox %s still runs", s.Metadata.Name)
		}
	}
}
