package e2eagent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-k8s/berth/internal/containerd"
	"github.com/berth-k8s/berth/internal/node/agent/cri"
)

// node is a `berth agent` on a containerd of its own.
type node struct {
	*cluster
	name       string
	containerd *containerd.Containerd
	agent      *process
	// dir is the agent's folder; static pods are in dir/static, logs in dir/logs.
	dir string
}

// skipWithoutContainers where the machine cannot run any.
func skipWithoutContainers(t testing.TB) {
	t.Helper()
	if reason := containerd.Impossible(); reason != "" {
		t.Skipf("no containers here: %s", reason)
	}
	if err := install(); err != nil {
		t.Skipf("no containers here: %v", err)
	}
}

var install = sync.OnceValue(func() error { return containerd.Install(context.Background()) })

// sharedNode is one node for all tests that do not break it. Its name is "shared".
func sharedNode(t testing.TB) *node {
	t.Helper()
	skipWithoutContainers(t)
	n, err := theSharedNode()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

var theSharedNode = sync.OnceValues(func() (*node, error) {
	dir, err := os.MkdirTemp("", "berth-containerd-")
	if err != nil {
		return nil, err
	}
	c, err := containerd.Run(context.Background(), dir)
	if err != nil {
		return nil, err
	}
	cluster, err := theCluster()
	if err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	n, err := makeNode(cluster, "shared", c)
	atEnd = append(atEnd, func() {
		if n != nil {
			_ = n.agent.stop()
		}
		if err := c.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	})
	return n, err
})

// newNode is a node of the test's own, that it may break. Flags are added to the agent's.
func newNode(t testing.TB, name string, flags ...string) *node {
	t.Helper()
	skipWithoutContainers(t)
	c := containerd.Start(t)
	cluster, err := theCluster()
	if err != nil {
		t.Fatal(err)
	}
	n, err := makeNode(cluster, name, c, flags...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the agent's log:\n%s", n.agent.out.tail())
		}
		_ = n.agent.stop()
		err := n.client.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	return n
}

func makeNode(cluster *cluster, name string, c *containerd.Containerd, flags ...string) (*node, error) {
	n := &node{cluster: cluster, name: name, containerd: c, dir: filepath.Join(c.Dir, "agent")}
	if err := os.MkdirAll(filepath.Join(n.dir, "static"), 0o755); err != nil {
		return nil, err
	}
	n.agent = newProcess(append([]string{
		filepath.Join(bin, "berth"), "agent", "--bootstrap-kubeconfig", filepath.Join(cluster.dir, "node-bootstrap.kubeconfig"), "--hostname-override", name, "--port", "0", "--healthz-port", "0",
		"--container-runtime-endpoint", c.Endpoint(), "--cgroup-root", c.CgroupRoot, "--root-dir", n.dir,
		"--pod-log-dir", filepath.Join(n.dir, "logs"), "--pod-manifest-path", filepath.Join(n.dir, "static"),
		// A busy machine's disk may be nearly full; that is another test's subject.
		"--eviction-hard", "memory.available<1Mi",
		// More than the machine may have, so that pods of the documentation's size fit on any.
		"--cpus", "8",
	}, flags...)...)
	return n, n.agent.start("ready node " + name)
}

// runtime is a connection to the node's containerd, as crictl has one.
func (n *node) runtime(t testing.TB) *cri.Runtime {
	t.Helper()
	r, err := cri.Connect(context.Background(), n.containerd.Endpoint(), n.name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(context.Background()) })
	return r
}

// namespaces so far.
var namespaces atomic.Int64

// namespace of the test's own.
func (n *node) namespace(t testing.TB) string {
	t.Helper()
	name := strings.Trim(strings.ToLower(strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, t.Name())), "-")
	// The same test may run again while its last namespace is on its way out.
	name = fmt.Sprintf("%s-%d", name[:min(len(name), 50)], namespaces.Add(1))
	ctx := context.Background()
	if _, err := n.client.CoreV1().Namespaces().Create(ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := n.kubectl("-n", name, "get", "pods,events", "-o", "wide")
			t.Logf("namespace %s:\n%s", name, out)
		}
		_ = n.client.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{})
	})
	eventually(t, "service account of "+name, func() error {
		_, err := n.client.CoreV1().ServiceAccounts(name).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	return name
}

// kubectl is berth's own.
func (n *node) kubectl(args ...string) (string, error) { return n.kubectlIn("", args...) }

func (n *node) kubectlIn(stdin string, args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(bin, "berth"), append([]string{"kubectl"}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+n.kubeconfig)
	cmd.Stdin = strings.NewReader(stdin)
	var out, wrong bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &wrong
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, wrong.String())
	}
	return out.String(), nil
}

// do is kubectl that has to succeed.
func (n *node) do(t testing.TB, args ...string) string {
	t.Helper()
	out, err := n.kubectl(args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// apply manifests in which $NODE is this node, and $IMAGE the image that every containerd of the
// tests has.
func (n *node) apply(t testing.TB, namespace, manifests string) {
	t.Helper()
	text := strings.NewReplacer("$NODE", n.name, "$IMAGE", containerd.Busybox).Replace(manifests)
	if _, err := n.kubectlIn(text, "-n", namespace, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
}

func (n *node) pod(t testing.TB, namespace, name string) *v1.Pod {
	t.Helper()
	pod, err := n.client.CoreV1().Pods(namespace).Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// awaitPod until the pod is as the function wants it.
func (n *node) awaitPod(t testing.TB, namespace, name, what string, is func(*v1.Pod) bool) *v1.Pod {
	t.Helper()
	var pod *v1.Pod
	eventually(t, name+" "+what, func() (err error) {
		if pod, err = n.client.CoreV1().Pods(namespace).Get(context.Background(), name, metav1.GetOptions{}); err != nil {
			return err
		}
		if !is(pod) {
			return fmt.Errorf("it is %s %+v", pod.Status.Phase, pod.Status.ContainerStatuses)
		}
		return nil
	})
	return pod
}

func ready(pod *v1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == v1.PodReady {
			return c.Status == v1.ConditionTrue
		}
	}
	return false
}

// awaitGone until the API has the pod no more.
func (n *node) awaitGone(t testing.TB, namespace, name string) {
	t.Helper()
	eventually(t, name+" gone", func() error {
		_, err := n.client.CoreV1().Pods(namespace).Get(context.Background(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err == nil {
			err = errNotYet
		}
		return err
	})
}

// awaitOnly until the runtime has nothing of this name but one sandbox of this UID.
func (n *node) awaitOnly(t testing.TB, namespace, name, uid string) {
	t.Helper()
	r := n.runtime(t)
	eventually(t, name+" once in the runtime", func() error {
		list, err := r.Runtime.ListPodSandbox(context.Background(), &runtimeapi.PodSandboxFilter{
			LabelSelector: map[string]string{cri.LabelPodName: name, cri.LabelPodNamespace: namespace},
		})
		if err != nil {
			return err
		}
		if len(list) != 1 || list[0].Labels[cri.LabelPodUID] != uid {
			return fmt.Errorf("there are %d", len(list))
		}
		return nil
	})
}
