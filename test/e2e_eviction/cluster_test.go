// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2eeviction

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-k8s/berth/test/internal/process"
)

// cluster is a real control plane with nodes that exist only as objects.
type cluster struct {
	*testing.T
	client     kubernetes.Interface
	config     *rest.Config
	kubeconfig string
}

// Control planes start one after the other, because a start takes a second of both processors. Up
// to six run at a time, because they are mostly idle afterwards.
var (
	starting sync.Mutex
	running  = make(chan struct{}, 6)
)

// newCluster starts a control plane without Berth's admission rules, as usual, so that kubectl's
// taints have no timeAdded.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	return newClusterWith(t, "--upstream-admission")
}

func newClusterWith(t *testing.T, flags ...string) *cluster {
	t.Helper()
	c, _ := newClusterIn(t, t.TempDir(), flags...)
	return c
}

// newClusterIn starts a control plane with its state in a folder.
func newClusterIn(t *testing.T, dir string, flags ...string) (*cluster, *process.Process) {
	t.Helper()
	running <- struct{}{}
	t.Cleanup(func() { <-running })
	starting.Lock()
	defer starting.Unlock()
	plane := startControlPlane(t, dir, flags...)
	kubeconfig := filepath.Join(dir, "kubeconfig")
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.ContentType, config.QPS = runtime.ContentTypeProtobuf, -1
	c := &cluster{T: t, client: kubernetes.NewForConfigOrDie(config), config: config, kubeconfig: kubeconfig}
	c.hasServiceAccount()
	return c, plane
}

// startControlPlane runs a control plane as a separate process. It has the port of an earlier
// control plane with the same folder.
func startControlPlane(t *testing.T, dir string, flags ...string) *process.Process {
	t.Helper()
	plane, err := process.Start(program(t, "berth-controlplane"), filepath.Join(t.TempDir(), "log"), append([]string{"--data-dir", dir}, flags...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(plane.Kill)
	ctx, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	if _, err := plane.WaitFor(ctx, "ready "); err != nil {
		t.Fatalf("control plane: %v: %s", err, plane.LastLines(10))
	}
	return plane
}

// startLimit is generous, because a machine that runs many tests concurrently is slow.
const startLimit = 2 * time.Minute

// hasServiceAccount waits until pods can be created.
func (c *cluster) hasServiceAccount() {
	c.Helper()
	c.within(time.Minute, "service account", func() bool {
		_, err := c.client.CoreV1().ServiceAccounts("default").Get(c.Context(), "default", metav1.GetOptions{})
		return err == nil
	})
}

// at returns the same cluster for a subtest.
func (c *cluster) at(t *testing.T) *cluster {
	return &cluster{T: t, client: c.client, config: c.config, kubeconfig: c.kubeconfig}
}

func (c *cluster) must(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

// within waits until is returns true, and fails the test after the limit.
func (c *cluster) within(limit time.Duration, what string, is func() bool) {
	c.Helper()
	for end := time.Now().Add(limit); !is(); {
		if time.Now().After(end) {
			c.Fatalf("not within %v: %s", limit, what)
		}
		<-time.After(20 * time.Millisecond)
	}
}

// kubectl runs stock kubectl if it is installed, and Berth's built-in kubectl otherwise.
func (c *cluster) kubectl(args ...string) string {
	c.Helper()
	out, err := c.tryKubectl(args...)
	if err != nil {
		c.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func (c *cluster) tryKubectl(args ...string) (string, error) {
	c.Helper()
	binary, err := exec.LookPath("kubectl")
	if err != nil {
		binary = program(c.T, "berth")
		args = append([]string{"kubectl"}, args...)
	}
	cmd := exec.CommandContext(c.Context(), binary, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// node creates a ready node in a separate zone. Its Lease is renewed every second until silent is
// closed or the test ends.
func (c *cluster) node(name string, silent <-chan struct{}) { c.nodeIn("z-"+name, name, silent) }

func (c *cluster) nodeIn(zone, name string, silent <-chan struct{}) {
	c.Helper()
	ctx := c.Context()
	c.must(c.createNode(name, zone))
	c.condition(name, v1.NodeReady, v1.ConditionTrue)
	lease, err := c.client.CoordinationV1().Leases(v1.NamespaceNodeLease).Create(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name},
	}, metav1.CreateOptions{})
	c.must(err)
	go func() {
		for {
			now := metav1.NowMicro()
			lease.Spec.RenewTime = &now
			if renewed, err := c.client.CoordinationV1().Leases(v1.NamespaceNodeLease).Update(ctx, lease, metav1.UpdateOptions{}); err == nil {
				lease = renewed
			}
			select {
			case <-ctx.Done():
				return
			case <-silent:
				return
			case <-time.After(time.Second):
			}
		}
	}()
	c.Cleanup(func() {
		c.client.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{})
	})
}

func (c *cluster) condition(node string, t v1.NodeConditionType, status v1.ConditionStatus) {
	c.Helper()
	for {
		n, err := c.client.CoreV1().Nodes().Get(c.Context(), node, metav1.GetOptions{})
		c.must(err)
		n.Status.Conditions = slices.DeleteFunc(n.Status.Conditions, func(x v1.NodeCondition) bool { return x.Type == t })
		n.Status.Conditions = append(n.Status.Conditions, v1.NodeCondition{Type: t, Status: status, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()})
		n.Status.Allocatable = v1.ResourceList{v1.ResourcePods: resource.MustParse("110"), v1.ResourceCPU: resource.MustParse("4"), v1.ResourceMemory: resource.MustParse("8Gi")}
		if _, err = c.client.CoreV1().Nodes().UpdateStatus(c.Context(), n, metav1.UpdateOptions{}); err == nil {
			return
		}
	}
}

// taints returns the node's taints in kubectl's format.
func (c *cluster) taints(node string) []string {
	c.Helper()
	n, err := c.client.CoreV1().Nodes().Get(c.Context(), node, metav1.GetOptions{})
	c.must(err)
	var taints []string
	for i := range n.Spec.Taints {
		taints = append(taints, n.Spec.Taints[i].ToString())
	}
	return taints
}

func (c *cluster) hasTaint(node, taint string) bool { return slices.Contains(c.taints(node), taint) }

// pod creates a pod bound to the node. The pod has a grace period, so after its deletion it keeps
// terminating, because there is no kubelet.
func (c *cluster) pod(name, node string, tolerations ...v1.Toleration) *v1.Pod {
	c.Helper()
	spec := podSpec(node, tolerations...)
	spec.TerminationGracePeriodSeconds = nil
	pod, err := c.client.CoreV1().Pods("default").Create(c.Context(), &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": node}}, Spec: spec,
	}, metav1.CreateOptions{})
	c.must(err)
	c.Cleanup(func() {
		c.client.CoreV1().Pods("default").Delete(context.Background(), name, *metav1.NewDeleteOptions(0))
	})
	return pod
}

// createPod creates a pod bound to the node. The pod has no grace period, so it disappears when it
// is deleted.
func (c *cluster) createPod(name, node string, tolerations ...v1.Toleration) (*v1.Pod, error) {
	return c.client.CoreV1().Pods("default").Create(c.Context(), &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": node}},
		Spec:       podSpec(node, tolerations...),
	}, metav1.CreateOptions{})
}

func podSpec(node string, tolerations ...v1.Toleration) v1.PodSpec {
	return v1.PodSpec{
		NodeName:                      node,
		Containers:                    []v1.Container{{Name: "c", Image: "none"}},
		Tolerations:                   tolerations,
		TerminationGracePeriodSeconds: new(int64),
		AutomountServiceAccountToken:  new(bool),
	}
}

// createNode creates a node that exists only as an object.
func (c *cluster) createNode(name, zone string) error {
	_, err := c.client.CoreV1().Nodes().Create(c.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{v1.LabelTopologyZone: zone},
	}}, metav1.CreateOptions{})
	return err
}

// clear deletes all pods and nodes.
func (c *cluster) clear() {
	c.Helper()
	c.must(c.client.CoreV1().Pods("default").DeleteCollection(c.Context(), *metav1.NewDeleteOptions(0), metav1.ListOptions{}))
	c.must(c.client.CoreV1().Nodes().DeleteCollection(c.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
}

// leaves reports whether the pod has disappeared or is terminating.
func (c *cluster) leaves(name string) bool {
	pod, err := c.client.CoreV1().Pods("default").Get(c.Context(), name, metav1.GetOptions{})
	return err != nil || pod.DeletionTimestamp != nil
}

func (c *cluster) stays(name string) {
	c.Helper()
	if c.leaves(name) {
		c.Errorf("pod %s left", name)
	}
}

func (c *cluster) podCondition(name string, t v1.PodConditionType) v1.PodCondition {
	c.Helper()
	pod, err := c.client.CoreV1().Pods("default").Get(c.Context(), name, metav1.GetOptions{})
	c.must(err)
	for _, condition := range pod.Status.Conditions {
		if condition.Type == t {
			return condition
		}
	}
	return v1.PodCondition{}
}

// hasEvent reports whether the pod has an event with the reason and the message.
func (c *cluster) hasEvent(pod, reason, message string) bool {
	c.Helper()
	events, err := c.client.CoreV1().Events("default").List(c.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + pod})
	c.must(err)
	return slices.ContainsFunc(events.Items, func(e v1.Event) bool { return e.Reason == reason && e.Message == message })
}

// tolerates returns a NoExecute toleration of a key, unlimited or for the given seconds.
func tolerates(key string, seconds ...int64) v1.Toleration {
	t := v1.Toleration{Key: key, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute}
	if len(seconds) > 0 {
		t.TolerationSeconds = &seconds[0]
	}
	return t
}

const mergePatch = types.MergePatchType

var kubectlTaint = metav1.PatchOptions{FieldManager: "kubectl-taint"}

// taintPatch returns a patch that sets a node's taints to NoExecute taints with exactly these keys,
// without timeAdded, as kubectl does.
func taintPatch(keys ...string) []byte {
	taints := []map[string]string{}
	for _, key := range keys {
		taints = append(taints, map[string]string{"key": key, "value": "x", "effect": string(v1.TaintEffectNoExecute)})
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"taints": taints}})
	if err != nil {
		panic(err) // cannot happen: the patch contains only strings
	}
	return patch
}
