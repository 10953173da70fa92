package e2eeviction

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-k8s/berth/upstream/controlplane"
)

// cluster is a real control plane with nodes that are only objects.
type cluster struct {
	*testing.T
	client     kubernetes.Interface
	kubeconfig string
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	plane := controlplane.Start(t)
	c := &cluster{T: t, client: kubernetes.NewForConfigOrDie(plane.Config), kubeconfig: plane.Kubeconfig}
	c.within(30*time.Second, "service account", func() bool {
		_, err := c.client.CoreV1().ServiceAccounts("default").Get(t.Context(), "default", metav1.GetOptions{})
		return err == nil
	})
	return c
}

// at is the same cluster for a subtest.
func (c *cluster) at(t *testing.T) *cluster {
	return &cluster{T: t, client: c.client, kubeconfig: c.kubeconfig}
}

func (c *cluster) must(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

// within waits for a condition.
func (c *cluster) within(limit time.Duration, what string, is func() bool) {
	c.Helper()
	for end := time.Now().Add(limit); !is(); {
		if time.Now().After(end) {
			c.Fatalf("not within %v: %s", limit, what)
		}
		<-time.After(20 * time.Millisecond)
	}
}

func (c *cluster) kubectl(args ...string) string {
	c.Helper()
	binary, err := berth()
	c.must(err)
	cmd := exec.Command(binary, append([]string{"kubectl"}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig)
	out, err := cmd.CombinedOutput()
	if err != nil {
		c.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// node creates a ready node; its lease is renewed each second until silent is
// closed or the test ends.
func (c *cluster) node(name string, silent <-chan struct{}) {
	c.Helper()
	ctx := c.Context()
	_, err := c.client.CoreV1().Nodes().Create(ctx, &v1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{v1.LabelTopologyZone: "z-" + name},
	}}, metav1.CreateOptions{})
	c.must(err)
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
		if _, err = c.client.CoreV1().Nodes().UpdateStatus(c.Context(), n, metav1.UpdateOptions{}); err == nil {
			return
		}
	}
}

// taints are the node's, as kubectl writes them.
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

// pod creates a pod on the node, bound by hand.
func (c *cluster) pod(name, node string, tolerations ...v1.Toleration) {
	c.Helper()
	_, err := c.client.CoreV1().Pods("default").Create(c.Context(), &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": node}},
		Spec: v1.PodSpec{
			NodeName:                     node,
			Containers:                   []v1.Container{{Name: "c", Image: "none"}},
			Tolerations:                  tolerations,
			AutomountServiceAccountToken: new(bool),
		},
	}, metav1.CreateOptions{})
	c.must(err)
	c.Cleanup(func() {
		c.client.CoreV1().Pods("default").Delete(context.Background(), name, *metav1.NewDeleteOptions(0))
	})
}

// leaves reports whether the pod is gone, or terminating.
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

// hasEvent reports whether there is such an event on the pod.
func (c *cluster) hasEvent(pod, reason, message string) bool {
	c.Helper()
	events, err := c.client.CoreV1().Events("default").List(c.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + pod})
	c.must(err)
	return slices.ContainsFunc(events.Items, func(e v1.Event) bool { return e.Reason == reason && e.Message == message })
}

// tolerates is a NoExecute toleration of a key: for ever, or for seconds.
func tolerates(key string, seconds ...int64) v1.Toleration {
	t := v1.Toleration{Key: key, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute}
	if len(seconds) > 0 {
		t.TolerationSeconds = &seconds[0]
	}
	return t
}
