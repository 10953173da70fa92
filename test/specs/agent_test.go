// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// runOnAgent starts a cluster whose only node is this machine, and runs the specs on it with
// Ginkgo's command. The command starts processes of this binary, distributes the specs and merges
// the results. The processes get a --kubeconfig and therefore start no cluster themselves.
func runOnAgent(binaries string, procs int) int {
	c, err := upWithAgent(binaries)
	if err != nil {
		return fail(err)
	}
	defer c.stop()
	self, err := os.Executable()
	if err != nil {
		return fail(err)
	}
	// A signal first ends the specs and then the cluster.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cmd := exec.CommandContext(ctx, filepath.Join(binaries, "ginkgo"), argv(self, procs, c.kubeconfig, os.Args[1:])...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fail(fmt.Errorf("the specs: %w", err))
	}
	return 0
}

// argv returns the arguments of Ginkgo's command. Ginkgo's own flags lose the prefix that they have
// in a test binary. All other flags are passed to the processes.
func argv(self string, procs int, kubeconfig string, args []string) []string {
	own := []string{"--procs", strconv.Itoa(procs), "--timeout", "4h"}
	others := []string{self, "--", "--kubeconfig", kubeconfig}
	for _, arg := range args {
		if flag, ok := strings.CutPrefix(strings.TrimLeft(arg, "-"), "ginkgo."); ok {
			own = append(own, "--"+flag)
		} else {
			others = append(others, arg)
		}
	}
	return append(own, others...)
}

// upWithAgent starts the cluster, and a registry from which containerd pulls the images named by
// the specs.
func upWithAgent(binaries string) (*cluster, error) {
	images, err := upstreamImages(binaries)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	go func() { _ = http.Serve(listener, images) }()
	c, err := up(binaries, `a containerd of its own, unix://(\S+)/containerd\.sock`, "--agent", "--nodes", "0", "--ui-port", "-1")
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	if err := mirror(filepath.Join(c.said[1], "certs.d"), "registry.k8s.io", listener.Addr().String()); err != nil {
		c.stop()
		return nil, errors.Join(err, listener.Close())
	}
	return c, nil
}

// mirror configures containerd to pull the registry's images only from the given address.
func mirror(dir, registry, address string) error {
	dir = filepath.Join(dir, registry)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "hosts.toml"), fmt.Appendf(nil, "server = %[1]q\n[host.%[1]q]\n  capabilities = [\"pull\", \"resolve\"]\n", "http://"+address), 0o644)
}
