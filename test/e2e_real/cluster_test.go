// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2ereal

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-k8s/berth/internal/up/relay"
	"github.com/berth-k8s/berth/test/internal/process"
)

const (
	apiPort  = 6443
	registry = gateway + ":5000"
	services = "10.96.0.0/12" // the control plane's default
	// nodeCount includes node-1, which is the node of the control plane, as in a kubeadm cluster.
	nodeCount = 4
	// patience limits each wait. It is generous, because the machine may be busy.
	patience = 3 * time.Minute
)

var errNotYet = errors.New("not yet")

// cluster is the cluster of real nodes.
type cluster struct {
	*testing.T
	kubeconfig string
	client     kubernetes.Interface
	nodes      []*node
	// scheduler and manager are upstream's, as in a cluster without Berth. manager runs node health
	// and taint eviction, which the control plane leaves to Berth.
	scheduler, manager *process.Process
}

// startCluster starts a cluster without Berth. It ends with the process.
func startCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{T: t, kubeconfig: filepath.Join(work, "cp", "kubeconfig")}
	c.must(command("ip", "link", "add", bridge, "type", "bridge"), command("ip", "addr", "add", gateway+network, "dev", bridge),
		command("ip", "link", "set", bridge, "up"),
		// Before kube-proxy's rules replace the address of a Service, there must be a route to it.
		command("ip", "route", "add", services, "dev", bridge), command("sysctl", "-q", "-w", "net.ipv4.ip_forward=1"))
	c.startControlPlane()
	c.startScheduler()
	c.startManager()
	_, err := process.Start(filepath.Join(bin, "registry"), logPath("registry"), "-port", "5000")
	c.must(err)
	c.relay(registry, "127.0.0.1:5000")
	bootstrap, proxy := c.nodeKubeconfigs()
	for i := range nodeCount {
		n, err := newNode(i + 1)
		c.must(err)
		c.nodes = append(c.nodes, n)
		c.must(n.startRuntime())
		c.must(command("ip", "route", "add", n.pods, "via", n.address))
		for _, other := range c.nodes[:i] {
			there, back := n.enter("ip", "route", "add", other.pods, "via", other.address), other.enter("ip", "route", "add", n.pods, "via", n.address)
			c.must(command(there[0], there[1:]...), command(back[0], back[1:]...))
		}
		n.logind, err = n.startLogind()
		c.must(err)
		c.must(n.startKubelet(bootstrap), n.startProxy(proxy))
	}
	for _, n := range c.nodes {
		c.awaitReady(n, true)
	}
	// The API server reaches Services from the network of the control plane.
	line := proxyLine(proxy, c.nodes[0].name)
	_, err = process.Start(line[0], logPath("kube-proxy"), line[1:]...)
	c.must(err)
	c.kubectl("label", "node", c.nodes[0].name, "node-role.kubernetes.io/control-plane=")
	c.kubectl("taint", "node", c.nodes[0].name, "node-role.kubernetes.io/control-plane:NoSchedule")
	return c
}

// startControlPlane starts the API server, and makes it reachable in the network of the nodes.
func (c *cluster) startControlPlane() {
	c.Helper()
	began := time.Now()
	plane, err := process.Start(filepath.Join(bin, "berth-controlplane"), logPath("controlplane"), "--data-dir", filepath.Dir(c.kubeconfig),
		"--upstream-admission", "--node-bootstrap", "--tls-san", gateway)
	c.must(err)
	ctx, cancel := context.WithTimeout(c.Context(), patience)
	defer cancel()
	_, err = plane.WaitFor(ctx, "ready ")
	c.must(err)
	config, err := clientcmd.BuildConfigFromFlags("", c.kubeconfig)
	c.must(err)
	config.QPS = -1
	c.client = kubernetes.NewForConfigOrDie(config)
	c.relay(net.JoinHostPort(gateway, fmt.Sprint(apiPort)), strings.TrimPrefix(config.Host, "https://"))
	c.must(c.publishAPI())
	c.Logf("control plane after %.1f s", time.Since(began).Seconds())
}

// publishAPI gives the Service kubernetes the endpoint that it lacks, because the API server
// listens on loopback only.
func (c *cluster) publishAPI() error {
	name, port, ready, protocol := "https", int32(apiPort), true, v1.ProtocolTCP
	_, err := c.client.DiscoveryV1().EndpointSlices("default").Create(c.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "kubernetes-relay", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{gateway}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}},
	}, metav1.CreateOptions{})
	return err
}

// relay forwards connections to an address in the network of the nodes to a loopback address.
func (c *cluster) relay(address, to string) {
	c.Helper()
	listener, err := net.Listen("tcp", address)
	c.must(err)
	go relay.Serve(listener, func() (string, error) { return to, nil })
}

func (c *cluster) startScheduler() {
	c.Helper()
	var err error
	c.scheduler, err = process.Start(filepath.Join(bin, "kube-scheduler"), logPath("kube-scheduler"), "--kubeconfig", c.kubeconfig)
	c.must(err)
}

func (c *cluster) startManager() {
	c.Helper()
	var err error
	c.manager, err = process.Start(filepath.Join(bin, "kube-controller-manager"), logPath("kube-controller-manager"), "--kubeconfig", c.kubeconfig,
		"--controllers=node-lifecycle-controller,taint-eviction-controller,device-taint-eviction-controller")
	c.must(err)
}

// nodeKubeconfigs writes the kubeconfigs of the kubelets and of kube-proxy, with the address of the
// API server in the network of the nodes.
func (c *cluster) nodeKubeconfigs() (bootstrap, proxy string) {
	c.Helper()
	write := func(from, to string) string {
		config, err := clientcmd.LoadFromFile(filepath.Join(filepath.Dir(c.kubeconfig), from))
		c.must(err)
		for _, cluster := range config.Clusters {
			cluster.Server = fmt.Sprintf("https://%s:%d", gateway, apiPort)
		}
		path := filepath.Join(work, to)
		c.must(clientcmd.WriteToFile(*config, path))
		return path
	}
	return write("node-bootstrap.kubeconfig", "bootstrap.kubeconfig"), write("kubeconfig", "proxy.kubeconfig")
}

// config returns the administrator's configuration.
func (c *cluster) config() *rest.Config {
	c.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", c.kubeconfig)
	c.must(err)
	return config
}

func (c *cluster) must(errs ...error) {
	c.Helper()
	if err := errors.Join(errs...); err != nil {
		c.Fatal(err)
	}
}

// awaitReady waits until a node is ready, or until it is not.
func (c *cluster) awaitReady(n *node, want bool) {
	c.Helper()
	c.eventually(fmt.Sprintf("%s ready: %v", n.name, want), func() error {
		select {
		case <-n.kubelet.Ended:
			if want {
				c.Fatal(n.kubelet.Gone())
			}
		default:
		}
		got, err := c.client.CoreV1().Nodes().Get(c.Context(), n.name, metav1.GetOptions{})
		if err == nil && nodeReady(got) != want {
			err = errNotYet
		}
		return err
	})
}

func nodeReady(n *v1.Node) bool {
	for _, condition := range n.Status.Conditions {
		if condition.Type == v1.NodeReady {
			return condition.Status == v1.ConditionTrue
		}
	}
	return false
}

// kubectl runs the built-in kubectl and returns its output.
func (c *cluster) kubectl(args ...string) string {
	c.Helper()
	out, err := c.try("", args...)
	if err != nil {
		c.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// apply applies manifests.
func (c *cluster) apply(manifests string) {
	c.Helper()
	if _, err := c.try(manifests, "apply", "-f", "-"); err != nil {
		c.Fatal(err)
	}
}

func (c *cluster) try(stdin string, args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(bin, "berth"), append([]string{"kubectl", "--kubeconfig", c.kubeconfig}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, wrong strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &wrong
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("kubectl %s: %w: %s%s", strings.Join(args, " "), err, out.String(), wrong.String())
	}
	return out.String(), nil
}

// gone waits until a pod does not exist.
func (c *cluster) gone(name string) {
	c.Helper()
	c.eventually(name+" is gone", func() error {
		if _, err := c.client.CoreV1().Pods("default").Get(c.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return errors.Join(err, errNotYet)
		}
		return nil
	})
}

// eventually calls f until it returns nil, and fails the test after a timeout.
func (c *cluster) eventually(what string, f func() error) {
	c.Helper()
	if err := poll(f); err != nil {
		c.Fatalf("%s: not within %s: %v", what, patience, err)
	}
}

func poll(f func() error) (err error) {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if err = f(); err == nil {
			return nil
		}
	}
	return err
}

// logPath returns the path of a process's log.
func logPath(name string) string {
	folder := *logs
	if folder == "" {
		folder = filepath.Join(work, "logs")
	}
	_ = os.MkdirAll(folder, 0o755) // the process that writes the log reports the error
	return filepath.Join(folder, name+".log")
}
