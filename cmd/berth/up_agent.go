//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-k8s/berth/internal/containerd"
	"github.com/berth-k8s/berth/internal/node/agent"
	"github.com/berth-k8s/berth/internal/up/door"
	"github.com/berth-k8s/berth/internal/up/supervisor"
)

// ownNode is this machine as a node of the cluster that `berth up` starts.
type ownNode struct {
	wanted   bool
	endpoint string // of the container runtime
	// cpus and memory that the node says it has; zero: the machine's.
	cpus   int
	memory string
	// private containerd, where the machine runs none, or none is to be touched; nil otherwise.
	private *containerd.Containerd
	// door is where pods on the private one find the API server.
	door net.Listener
	// berth is Berth itself as pods of this node.
	berth selfHosted
}

func (n *ownNode) addFlags(flags *pflag.FlagSet) {
	flags.BoolVar(&n.wanted, "agent", false, "make this machine a node, too: its pods really run; needs root and containerd")
	flags.StringVar(&n.endpoint, "container-runtime-endpoint", agent.DefaultConfig().RuntimeEndpoint,
		"with --agent: socket of the container runtime; if there is none at the default place, a containerd is started for as long as berth up runs")
	flags.IntVar(&n.cpus, "cpus", 0, "with --agent: number of CPUs that the node reports, to overcommit this machine")
	flags.StringVar(&n.memory, "memory", "", "with --agent: amount of memory that the node reports, such as 8Gi (default: the machine's)")
	flags.StringVar(&n.berth.file, "from-image", "",
		"with --agent: run Berth itself as other clusters do, as pods on this machine, from this image (made by make image) and the manifests; on a containerd of its own")
}

// check what was asked for.
func (n *ownNode) check(c *cluster) error {
	if _, err := memorySize(n.memory); err != nil {
		return err
	}
	switch {
	case n.cpus < 0:
		return usagef("--cpus %d: must be 0 or more", n.cpus)
	case !n.wanted && (n.cpus > 0 || n.memory != ""):
		return usagef("--cpus, --memory: need --agent; the size of simulated nodes is set by `berth nodes`")
	case !n.berth.wanted():
		return nil
	case !n.wanted:
		return usagef("--from-image: needs --agent")
	case n.endpoint != agent.DefaultConfig().RuntimeEndpoint:
		return usagef("--from-image: runs on a containerd of its own; leave --container-runtime-endpoint out")
	case c.config != "":
		return usagef("--config: has no effect with --from-image; the configuration is the ConfigMap berth-scheduler in the namespace berth-system")
	}
	return n.berth.read()
}

// start what the node needs before the cluster is started: nothing, or a containerd of its own.
func (n *ownNode) start(ctx context.Context, c *cluster, out *progress) error {
	if !n.wanted {
		return nil
	}
	if reason := containerd.Impossible(); reason != "" {
		return fmt.Errorf("--agent: no containers can be run here: %s", reason)
	}
	if path, isPath := agent.SocketPath(n.endpoint); !n.berth.wanted() {
		if !isPath || exists(path) {
			return nil
		}
		if n.endpoint != agent.DefaultConfig().RuntimeEndpoint {
			return fmt.Errorf("--container-runtime-endpoint: there is no %s", path)
		}
	}
	for _, tool := range []string{"containerd", "runc", "busybox"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("--agent: no %s to start a container runtime with: install containerd, runc, busybox-static and containernetworking-plugins, "+
				"or name a runtime's socket with --container-runtime-endpoint", tool)
		}
	}
	dir, err := os.MkdirTemp("", "berth-containerd-")
	if err != nil {
		return err
	}
	out.step("agent", "starting a containerd of its own")
	if n.private, err = containerd.Run(ctx, dir); err != nil {
		return errors.Join(fmt.Errorf("--agent: %w", err), os.RemoveAll(dir))
	}
	n.endpoint = n.private.Endpoint()
	if n.berth.wanted() {
		out.step("berth", "importing "+n.berth.image)
		if err := n.private.Import(ctx, n.berth.file); err != nil {
			return errors.Join(fmt.Errorf("--from-image: %w", err), n.stop())
		}
	}
	if err := n.openDoor(c); err != nil {
		return errors.Join(fmt.Errorf("--agent: %w", err), n.stop())
	}
	return nil
}

// openDoor lets the pods in to the API server, which listens on loopback only: at the machine's
// address in their network.
func (n *ownNode) openDoor(c *cluster) error {
	gateway, err := n.private.Gateway()
	if err != nil {
		return err
	}
	if n.door, err = net.Listen("tcp", net.JoinHostPort(gateway.String(), "0")); err != nil {
		return err
	}
	go door.Serve(n.door, func() (string, error) { // the API server may be at another port after it was started again
		config, err := clientcmd.BuildConfigFromFlags("", c.kubeconfig)
		if err != nil {
			return "", err
		}
		address, err := url.Parse(config.Host)
		if err != nil {
			return "", err
		}
		return address.Host, nil
	})
	return nil
}

func (n *ownNode) stop() error {
	if n.door != nil {
		n.door.Close()
	}
	if n.private == nil {
		return nil
	}
	return n.private.Stop()
}

// thresholds of a machine that people work on, too: a disk that is nearly full by percent has room
// enough for a trial.
const thresholds = "memory.available<100Mi,nodefs.available<500Mi,imagefs.available<500Mi"

// part of the cluster; c.part gives it its command line.
func (n *ownNode) part(c *cluster) supervisor.Part {
	flags := []string{"--container-runtime-endpoint", n.endpoint, "--port", "0", "--eviction-hard", thresholds}
	if n.private != nil {
		root := filepath.Join(n.private.Dir, "agent")
		flags = append(flags, "--cgroup-root", n.private.CgroupRoot, "--root-dir", root, "--pod-log-dir", filepath.Join(root, "logs"),
			"--pod-api-server", n.door.Addr().String())
	}
	if n.cpus > 0 {
		flags = append(flags, "--cpus", strconv.Itoa(n.cpus))
	}
	if n.memory != "" {
		flags = append(flags, "--memory", n.memory)
	}
	// The node's certificate is of this cluster: it is kept where the cluster is.
	dir := filepath.Dir(c.kubeconfig)
	flags = append(flags, "--bootstrap-kubeconfig", filepath.Join(dir, "node-bootstrap.kubeconfig"), "--cert-dir", filepath.Join(dir, "node"))
	return supervisor.Part{Name: "agent", Argv: func() []string { return append([]string{c.berth, "agent"}, flags...) }}
}

// controlplaneFlags are what the API server has to know of this node.
func (n *ownNode) controlplaneFlags() (flags []string) {
	if n.door != nil {
		host, _, _ := strings.Cut(n.door.Addr().String(), ":")
		flags = append(flags, "--tls-san", host)
	}
	if n.berth.wanted() { // the webhook is what admits
		flags = append(flags, "--upstream-admission")
	}
	return flags
}

// line of the welcome.
func (n *ownNode) line(c *cluster) string {
	switch {
	case !n.wanted:
		return ""
	case n.private != nil:
		return "  node        this machine, on a containerd of its own, " + n.endpoint + "; it has the image busybox:1\n" + n.berth.line(c)
	}
	return "  node        this machine, on " + n.endpoint + "\n"
}
