package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/berth-k8s/berth/agent"
	"github.com/berth-k8s/berth/internal/containerd"
	"github.com/berth-k8s/berth/up/supervisor"
)

// ownNode is this machine as a node of the cluster that `berth up` starts.
type ownNode struct {
	wanted   bool
	endpoint string // of the container runtime
	// private containerd, where the machine runs none; nil otherwise.
	private *containerd.Containerd
}

func (n *ownNode) addFlags(flags *pflag.FlagSet) {
	flags.BoolVar(&n.wanted, "agent", false, "make this machine a node, too: its pods really run; needs root and containerd")
	flags.StringVar(&n.endpoint, "container-runtime-endpoint", agent.DefaultConfig().RuntimeEndpoint,
		"with --agent: the container runtime's socket; if there is none at the default place, a containerd is started for as long as berth up runs")
}

// start what the node needs before the cluster is started: nothing, or a containerd of its own.
func (n *ownNode) start(ctx context.Context) error {
	if !n.wanted {
		return nil
	}
	if reason := containerd.Impossible(); reason != "" {
		return fmt.Errorf("--agent: no containers can be run here: %s", reason)
	}
	path, isPath := agent.SocketPath(n.endpoint)
	if !isPath || exists(path) {
		return nil
	}
	if n.endpoint != agent.DefaultConfig().RuntimeEndpoint {
		return fmt.Errorf("--container-runtime-endpoint: there is no %s", path)
	}
	for _, tool := range []string{"containerd", "runc", "busybox"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("--agent: no container runtime at %s, and no %s to start one with: install containerd, runc, busybox-static and containernetworking-plugins, "+
				"or name another runtime's socket with --container-runtime-endpoint", path, tool)
		}
	}
	dir, err := os.MkdirTemp("", "berth-containerd-")
	if err != nil {
		return err
	}
	if n.private, err = containerd.Run(ctx, dir); err != nil {
		return errors.Join(fmt.Errorf("--agent: %w", err), os.RemoveAll(dir))
	}
	n.endpoint = n.private.Endpoint()
	return nil
}

func (n *ownNode) stop() error {
	if n.private == nil {
		return nil
	}
	return n.private.Stop()
}

// thresholds of a machine that people work on, too: a disk that is nearly full by percent has room enough for a trial.
const thresholds = "memory.available<100Mi,nodefs.available<500Mi,imagefs.available<500Mi"

// part of the cluster; c.part gives it its command line.
func (n *ownNode) part(c *cluster) supervisor.Part {
	flags := []string{"--container-runtime-endpoint", n.endpoint, "--port", "0", "--eviction-hard", thresholds}
	if n.private != nil {
		root := filepath.Join(n.private.Dir, "agent")
		flags = append(flags, "--cgroup-root", n.private.CgroupRoot, "--root-dir", root, "--pod-log-dir", filepath.Join(root, "logs"))
	}
	return supervisor.Part{Name: "agent", Argv: c.part("agent", flags...)}
}

// line of the welcome.
func (n *ownNode) line() string {
	switch {
	case !n.wanted:
		return ""
	case n.private != nil:
		return "  node        this machine, on a containerd of its own; it has the image busybox\n"
	}
	return "  node        this machine, on " + n.endpoint + "\n"
}
