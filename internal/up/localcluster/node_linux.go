// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package localcluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-k8s/berth/internal/cli/parse"
	"github.com/berth-k8s/berth/internal/cli/print"
	"github.com/berth-k8s/berth/internal/containerd"
	"github.com/berth-k8s/berth/internal/up/kubelet"
	"github.com/berth-k8s/berth/internal/up/supervisor"
	"github.com/berth-k8s/berth/internal/usage"
)

// OwnNode is this machine as a node of the cluster started by `berth up`: upstream's kubelet, with
// a private containerd unless the user names a runtime.
type OwnNode struct {
	wanted   bool
	endpoint string // endpoint of the user's container runtime; empty: a private containerd
	program  string // path of the kubelet
	config   string // the user's KubeletConfiguration
	private  *containerd.Containerd
	relay    *serviceRelay
	kubelet  kubelet.Kubelet
	// berth runs Berth itself as pods of this node.
	berth selfHosted
}

// AddFlags adds the flags about this machine.
func (n *OwnNode) AddFlags(flags *pflag.FlagSet) {
	flags.BoolVar(&n.wanted, "agent", false,
		"also make this machine a node, with upstream's kubelet: its pods really run; needs root, containerd and runc")
	flags.StringVar(&n.endpoint, "container-runtime-endpoint", "",
		"with --agent: socket of the container runtime (default: a containerd is started for as long as berth up runs)")
	flags.StringVar(&n.program, "kubelet", "",
		"with --agent: the kubelet to run (default: next to this executable, then in PATH; in its source tree it is built)")
	flags.StringVar(&n.config, "kubelet-config", "",
		"with --agent: KubeletConfiguration file whose fields override those of berth up")
	flags.StringVar(&n.berth.file, "from-image", "",
		"with --agent: run Berth itself as other clusters do, as pods on this machine, from this image (made by make "+
			"image) and the manifests; on a containerd of its own")
	parse.AddRemoved(flags, "cpus", "the kubelet reports the machine's CPUs; reserve some with systemReserved in --kubelet-config")
	parse.AddRemoved(flags, "memory", "the kubelet reports the machine's memory; reserve some with systemReserved in --kubelet-config")
}

// CheckFlags validates the flags.
func (n *OwnNode) CheckFlags(c *Cluster) error {
	switch {
	case !n.wanted && n.berth.wanted():
		return usage.Errorf("--from-image: needs --agent")
	case !n.wanted && (n.endpoint != "" || n.program != "" || n.config != ""):
		return usage.Errorf("--container-runtime-endpoint, --kubelet, --kubelet-config: need --agent")
	case !n.berth.wanted():
		return nil
	case n.endpoint != "":
		return usage.Errorf("--from-image: runs on a containerd of its own; leave --container-runtime-endpoint out")
	case c.Config != "":
		return usage.Errorf("--config: has no effect with --from-image; the configuration is the ConfigMap berth-scheduler " +
			"in the namespace berth-system")
	}
	return n.berth.readImage()
}

// startNode starts the node's prerequisites before the cluster.
func (n *OwnNode) startNode(ctx context.Context, c *Cluster, out *print.Progress) (err error) {
	if !n.wanted {
		return nil
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("--agent: %w", err), n.stopNode())
		}
	}()
	if reason := containerd.Impossible(); reason != "" {
		return fmt.Errorf("no containers can be run here: %s", reason)
	}
	if err := n.prepareKubelet(ctx, c, out); err != nil {
		return err
	}

	bridge := "lo" // pods in the machine's network can reach its loopback device
	if n.endpoint == "" {
		if err := n.startContainerd(ctx, out); err != nil {
			return err
		}
		bridge = n.private.Bridge()
	} else if primary, err := utilnet.ChooseHostInterface(); err == nil { // on an error, the kubelet reports it
		n.kubelet.Addresses = primary.String()
	}
	if n.relay, err = openRelay(filepath.Dir(c.kubeconfig), bridge, c.kubeconfig); err != nil {
		return err
	}
	n.kubelet.Configuration, err = n.kubeletConfig()
	return err
}

// prepareKubelet finds or builds the program, and refuses to run next to a kubelet that it would
// disturb.
func (n *OwnNode) prepareKubelet(ctx context.Context, c *Cluster, out *print.Progress) (err error) {
	if n.kubelet.Name, err = kubelet.MachineName(); err != nil {
		return err
	}
	if n.endpoint != "" && !exists(kubelet.SocketOf(n.endpoint)) {
		return fmt.Errorf("--container-runtime-endpoint: there is no %s", kubelet.SocketOf(n.endpoint))
	}
	// The node's certificate belongs to this cluster, so keep it with the cluster.
	dir := filepath.Join(filepath.Dir(c.kubeconfig), "node")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	n.kubelet.Root, n.kubelet.Certificates = filepath.Join(dir, "kubelet"), filepath.Join(dir, "pki")
	n.kubelet.Kubeconfig, n.kubelet.Bootstrap = filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "bootstrap.kubeconfig")
	if err := kubelet.Refuse(kubelet.Running("/proc"), n.endpoint, n.endpoint != ""); err != nil {
		return err
	}
	out.Final("") // building prints its own lines
	n.kubelet.Program, err = kubelet.FindOrBuild(ctx, n.program, out.Out)
	return err
}

func (n *OwnNode) startContainerd(ctx context.Context, out *print.Progress) error {
	for _, tool := range []string{"containerd", "runc", "busybox"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("no %s to start a container runtime with: install containerd, runc, busybox-static and "+
				"containernetworking-plugins, "+
				"or name a runtime's socket with --container-runtime-endpoint", tool)
		}
	}
	dir, err := os.MkdirTemp("", kubelet.OwnRuntime)
	if err != nil {
		return err
	}
	out.Step("kubelet", "starting a containerd of its own")
	if n.private, err = containerd.Run(ctx, dir); err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	gateway, err := n.private.Gateway()
	if err != nil {
		return err
	}
	// The pods end with the private containerd, and the kubelet's state about them is deleted with
	// it.
	n.kubelet.Root, n.kubelet.Addresses = filepath.Join(n.private.Dir, "kubelet"), gateway.String()
	if !n.berth.wanted() {
		return nil
	}
	out.Step("berth", "importing "+n.berth.image)
	if err := n.private.Import(ctx, n.berth.file); err != nil {
		return fmt.Errorf("--from-image: %w", err)
	}
	return nil
}

// kubeletConfig returns the kubelet's configuration: Berth's fields, overridden by the user's.
func (n *OwnNode) kubeletConfig() (map[string]any, error) {
	fields := kubelet.Defaults(n.kubelet.ClientCA())
	maps.Copy(fields, map[string]any{
		"containerRuntimeEndpoint": n.endpoint,
		// A developer's disk that is nearly full by percentage still has enough free space for a
		// trial.
		"evictionHard": map[string]any{"memory.available": "100Mi", "nodefs.available": "500Mi", "imagefs.available": "500Mi"},
		// Leave no persistent changes on the machine, and take no port also needed by a second
		// cluster.
		"makeIPTablesUtilChains": false,
		"volumePluginDir":        n.kubelet.Path("volumeplugins"),
		"healthzPort":            0,
		"address":                n.kubelet.Addresses,
		"port":                   kubeletPort(n.kubelet.Addresses),
	})
	if n.private != nil {
		maps.Copy(fields, map[string]any{
			"containerRuntimeEndpoint": n.private.Endpoint(),
			"cgroupRoot":               n.private.CgroupRoot,
			"podLogsDir":               n.kubelet.Path("logs"),
		})
	}
	if n.config == "" {
		return fields, nil
	}
	users, err := kubelet.ReadConfiguration(n.config)
	if err != nil {
		return nil, fmt.Errorf("--kubelet-config: %w", err)
	}
	maps.Copy(fields, users)
	return fields, nil
}

func (n *OwnNode) stopNode() error {
	var failed []error
	if n.relay != nil {
		failed = append(failed, n.relay.close())
	}
	if n.private != nil {
		failed = append(failed, n.private.Stop())
	}
	return errors.Join(failed...)
}

// supervisorPart returns the kubelet as a part. Every start rewrites its files, since the bootstrap
// token changes.
func (n *OwnNode) supervisorPart(c *Cluster) supervisor.Part {
	return supervisor.Part{
		Name:    "kubelet",
		Prepare: func() error { return errors.Join(n.writeBootstrap(c), n.kubelet.Write()) },
		Argv:    n.kubelet.Argv,
		Await:   func(ctx context.Context) error { return n.awaitReady(ctx, c) },
	}
}

// writeBootstrap writes a bootstrap kubeconfig with the API server's service address, which stays
// the same while ports may change.
func (n *OwnNode) writeBootstrap(c *Cluster) error {
	config, err := clientcmd.LoadFromFile(filepath.Join(filepath.Dir(c.kubeconfig), "node-bootstrap.kubeconfig"))
	if err != nil {
		return err
	}
	for _, cluster := range config.Clusters {
		cluster.Server = "https://" + n.relay.address()
	}
	return clientcmd.WriteToFile(*config, n.kubelet.Bootstrap)
}

// awaitReady returns when a heartbeat sent since this start reports the node as ready.
func (n *OwnNode) awaitReady(ctx context.Context, c *Cluster) error {
	client, err := newClient(c)
	if err != nil {
		return err
	}
	began := metav1.Now().Rfc3339Copy() // heartbeats have a resolution of seconds
	return wait.PollUntilContextCancel(ctx, 200*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		node, err := client.CoreV1().Nodes().Get(ctx, n.kubelet.Name, metav1.GetOptions{})
		return err == nil && slices.ContainsFunc(node.Status.Conditions, func(c v1.NodeCondition) bool {
			return c.Type == v1.NodeReady && c.Status == v1.ConditionTrue && !c.LastHeartbeatTime.Before(&began)
		}), nil
	})
}

// controlplaneFlags returns the API server's flags for this node.
func (n *OwnNode) controlplaneFlags() (flags []string) {
	if n.berth.wanted() { // the webhook performs admission instead
		flags = append(flags, "--upstream-admission")
	}
	return flags
}

// welcomeLine returns the node's line in the welcome.
func (n *OwnNode) welcomeLine(c *Cluster) string {
	switch {
	case !n.wanted:
		return ""
	case n.private != nil:
		return "  node        this machine, on a containerd of its own, " + n.private.Endpoint() +
			"; it has the image busybox:1\n" + n.berth.welcomeLine(c)
	}
	return "  node        this machine, on " + n.endpoint + "\n"
}
