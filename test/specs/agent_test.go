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

// runOnAgent starts a cluster with only this machine as a node, and has processes of this binary
// run the specs on it: with a --kubeconfig they start nothing themselves. Ginkgo's own command
// distributes the specs and merges the results.
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
	// A signal ends the specs, and after them the cluster.
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

// argv returns the arguments of ginkgo's command. Ginkgo's own flags lose the prefix used with a
// test binary; all remaining flags are for the processes.
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

// upWithAgent starts the cluster, and a registry that serves its containerd the images named by the
// specs, under any registry name.
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

// mirror makes containerd pull the registry's images from an address of this machine, and from
// nowhere else.
func mirror(dir, registry, address string) error {
	dir = filepath.Join(dir, registry)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "hosts.toml"), fmt.Appendf(nil, "server = %[1]q\n[host.%[1]q]\n  capabilities = [\"pull\", \"resolve\"]\n", "http://"+address), 0o644)
}
