package e2eagent

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What the flags say of the node is what the API has, and what it takes pods by.
func TestFlagsShapeTheNode(t *testing.T) {
	t.Parallel()
	n := newNode(t, "shaped", "--cpus=4", "--kube-reserved=cpu=500m,memory=100Mi", "--system-reserved=cpu=500m", "--max-pods=5",
		"--node-labels=disk=ssd,zone=z1", "--register-with-taints=dedicated=lab:NoSchedule", "--eviction-hard=memory.available<200Mi")
	node, err := n.client.CoreV1().Nodes().Get(context.Background(), n.name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	capacity, allocatable := node.Status.Capacity, node.Status.Allocatable
	if cpu := allocatable[v1.ResourceCPU]; cpu.String() != "3" {
		t.Errorf("allocatable cpu %s, want 3", cpu.String())
	}
	if kept := capacity.Memory().Value() - allocatable.Memory().Value(); kept < 300<<20 {
		t.Errorf("%d bytes of memory kept from pods, want 300Mi", kept)
	}
	if pods := allocatable[v1.ResourcePods]; pods.Value() != 5 {
		t.Errorf("allocatable pods %s", pods.String())
	}
	if node.Labels["disk"] != "ssd" || node.Labels[v1.LabelHostname] != n.name {
		t.Errorf("labels %v", node.Labels)
	}
	tainted := false
	for _, taint := range node.Spec.Taints {
		tainted = tainted || taint.Key == "dedicated" && taint.Value == "lab" && taint.Effect == v1.TaintEffectNoSchedule
	}
	if !tainted {
		t.Errorf("taints %v", node.Spec.Taints)
	}
	eventually(t, "lease", func() error {
		_, err := n.client.CoordinationV1().Leases(v1.NamespaceNodeLease).Get(context.Background(), n.name, metav1.GetOptions{})
		return err
	})

	// Bound past the scheduler: the node itself says no. Its room is 3 CPUs.
	ns := n.namespace(t)
	n.apply(t, ns, `
apiVersion: v1
kind: Pod
metadata: {name: large}
spec:
  nodeName: $NODE
  containers: [{name: c, image: $IMAGE, imagePullPolicy: IfNotPresent, command: [sleep, "10000"], resources: {requests: {cpu: 3500m}}}]
---
apiVersion: v1
kind: Pod
metadata: {name: elsewhere}
spec:
  nodeName: $NODE
  nodeSelector: {disk: hdd}
  containers: [{name: c, image: $IMAGE, imagePullPolicy: IfNotPresent, command: [sleep, "10000"]}]
---
apiVersion: v1
kind: Pod
metadata: {name: victim}
spec:
  nodeName: $NODE
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: $IMAGE, imagePullPolicy: IfNotPresent, command: [sleep, "10000"], resources: {requests: {cpu: "2"}}}]
`)
	for name, reason := range map[string]string{"large": "OutOfcpu", "elsewhere": "NodeAffinity"} {
		pod := n.awaitPod(t, ns, name, "rejected", func(pod *v1.Pod) bool { return pod.Status.Phase == v1.PodFailed })
		if pod.Status.Reason != reason || !strings.HasPrefix(pod.Status.Message, "Pod was rejected: ") {
			t.Errorf("%s: %s: %s", name, pod.Status.Reason, pod.Status.Message)
		}
		n.do(t, "-n", ns, "delete", "pod", name)
	}
	n.awaitPod(t, ns, "victim", "ready", ready)
	// A critical pod gets the room of one that is not.
	n.apply(t, "kube-system", `
apiVersion: v1
kind: Pod
metadata: {name: critical}
spec:
  nodeName: $NODE
  priorityClassName: system-node-critical
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: $IMAGE, imagePullPolicy: IfNotPresent, command: [sleep, "10000"], resources: {requests: {cpu: "2"}}}]
`)
	n.awaitPod(t, "kube-system", "critical", "ready", ready)
	victim := n.pod(t, ns, "victim")
	if victim.Status.Phase != v1.PodFailed || victim.Status.Reason != "Preempting" || victim.Status.Message != "Preempted in order to admit critical pod" {
		t.Errorf("the victim: %s %s: %s", victim.Status.Phase, victim.Status.Reason, victim.Status.Message)
	}
	told := false
	for _, c := range victim.Status.Conditions {
		told = told || c.Type == v1.DisruptionTarget && c.Status == v1.ConditionTrue && c.Reason == v1.PodReasonTerminationByKubelet
	}
	if !told {
		t.Errorf("conditions of the victim: %v", victim.Status.Conditions)
	}
	n.do(t, "-n", "kube-system", "delete", "pod", "critical")
}

// A pod in the folder runs and shows as a mirror; a changed file is another pod; a mirror that is
// deleted comes back; without the file both are gone.
func TestStaticPod(t *testing.T) {
	t.Parallel()
	n := sharedNode(t)
	n.staticPod(t, "stat")
	const name = "stat-shared"
	pod := n.awaitPod(t, "default", name, "ready", ready)
	if out := n.do(t, "exec", name, "--", "hostname"); out != name+"\n" {
		t.Errorf("hostname %q", out)
	}
	first := pod.Status.ContainerStatuses[0].ContainerID
	n.do(t, "delete", "pod", name, "--force", "--grace-period=0")
	pod = n.awaitPod(t, "default", name, "back", func(p *v1.Pod) bool { return ready(p) && p.UID != pod.UID })
	if again := pod.Status.ContainerStatuses[0].ContainerID; again != first {
		t.Errorf("deleting the mirror restarted the pod: %s, then %s", first, again)
	}
	path := filepath.Join(n.dir, "static", "stat.yaml")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(text), "'10000'", "'9999'", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	n.awaitPod(t, "default", name, "replaced", func(p *v1.Pod) bool {
		return ready(p) && p.Status.ContainerStatuses[0].ContainerID != first
	})
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	n.awaitGone(t, "default", name)
}
