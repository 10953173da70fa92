// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package localcluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/cli/print"
	"github.com/berth-k8s/berth/internal/kube/connect"
	"github.com/berth-k8s/berth/internal/ui"
	"github.com/berth-k8s/berth/internal/up/datadir"
	"github.com/berth-k8s/berth/internal/up/supervisor"
)

// Run starts the cluster, prints its progress and a welcome to out, and stops it when the context
// ends.
func (c *Cluster) Run(ctx context.Context, stdout io.Writer) error {
	began := time.Now()
	if err := c.findExecutables(); err != nil {
		return err
	}

	dir, err := datadir.Open(c.DataDir)
	if err != nil {
		return err
	}

	defer dir.Close()
	if err := c.checkPorts(); err != nil {
		return err
	}

	if c.Fresh {
		if err := dir.Clear(); err != nil {
			return err
		}
	}

	c.kubeconfig = dir.Join("kubeconfig")
	if c.UIPort != NoPage {
		if err := ui.KeepToken(c.pageToken()); err != nil {
			return fmt.Errorf("the dashboard's token: %w", err)
		}
	}

	out := print.NewProgress(stdout)
	if err := c.Own.startNode(ctx, c, out); err != nil {
		return err
	}

	s := &supervisor.Supervisor{Dir: dir.Path, Progress: out.Step, Trouble: out.Trouble}
	running, end := context.WithCancel(ctx)
	defer end()
	var installed error
	err = s.Run(running, c.listParts(), func() {
		if c.Own.berth.wanted() {
			if installed = c.Own.berth.installManifests(ctx, c, out); installed != nil || ctx.Err() != nil {
				end()
				return
			}
		}
		out.Final(c.welcomeText(time.Since(began)))
	})

	err = errors.Join(err, installed, c.Own.stopNode())
	if err == nil {
		out.Final("stopped; berth up continues from here\n")
	}
	return err
}

// checkPorts verifies that user-specified ports are free before anything is started or deleted: a
// component would fail only seconds later, after the other parts have started.
func (c *Cluster) checkPorts() error {
	for _, named := range []struct {
		flag string
		port int
	}{{"--port", c.Port}, {"--ui-port", c.UIPort}} {
		if named.port <= 0 {
			continue // disabled, or any free port
		}
		listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(named.port)))
		if err != nil {
			return fmt.Errorf("%s %d: %w: name another, or leave it out for a free one", named.flag, named.port, errors.Unwrap(err))
		}
		_ = listener.Close()
	}
	return nil
}

// findExecutables finds this executable, whose subcommands are parts of the cluster, and the
// control plane's executable, which is built separately.
func (c *Cluster) findExecutables() error {
	var err error
	if c.berth, err = os.Executable(); err != nil {
		return fmt.Errorf("find this executable: %w", err)
	}
	if c.Controlplane != "" {
		if _, err := exec.LookPath(c.Controlplane); err != nil {
			return fmt.Errorf("--controlplane: %w", err)
		}
		return nil
	}

	const name = "berth-controlplane"
	for _, candidate := range []string{filepath.Join(filepath.Dir(c.berth), name), name} {
		if path, err := exec.LookPath(candidate); err == nil {
			c.Controlplane = path
			return nil
		}
	}
	return fmt.Errorf("%s is neither beside %s nor in PATH: run `make build`, or name it with --controlplane", name, c.berth)
}

func (c *Cluster) welcomeText(took time.Duration) string {
	berth := "berth"
	if filepath.Base(os.Args[0]) != os.Args[0] {
		berth = print.ShellWord(os.Args[0])
	}
	if c.DataDir != connect.DefaultDataDir {
		berth = connect.EnvDataDir + "=" + print.ShellWord(c.DataDir) + " " + berth
	}
	try := []string{"kubectl get nodes -L topology.kubernetes.io/zone",
		"kubectl create deployment web --image=nginx --replicas=3", "nodes fail --node node-1 --for 2m"}
	if c.Nodes == 0 && c.Own.private != nil { // the private containerd cannot pull images
		try = []string{"kubectl get nodes,pods -A", "kubectl run hello --image=busybox:1 -- sleep 1000", "kubectl exec hello -- hostname"}
	} else if c.Nodes == 0 { // no simulated node can fail
		try[2] = "pending -A"
	}
	return fmt.Sprintf(`
Berth is up: Kubernetes %s, %s (%.1fs)

  kubeconfig  %s
  logs        %s
%s
Try:
  %s %s
  %[7]s %[9]s
  %[7]s %[10]s

Ctrl-C stops it; the next berth up continues from there.
`, c.Version, DescribeNodes(c.Nodes, c.Zones), took.Seconds(),
		c.kubeconfig, filepath.Join(filepath.Dir(c.kubeconfig), "*.log"), c.Own.welcomeLine(c)+c.pageLine(), berth, try[0], try[1], try[2])
}

// DescribeNodes describes the number of simulated nodes.
func DescribeNodes(nodes, zones int) string {
	if nodes == 0 {
		return "no simulated nodes"
	}
	s := answer.Count(nodes, "simulated node")
	if zones > 0 {
		s += " in " + answer.Count(min(zones, nodes), "zone")
	}
	return s
}
