// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// TB is the part of testing.TB used by Start. A separate interface avoids an import of testing.
type TB interface {
	Helper()
	TempDir() string
	Cleanup(func())
	Logf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Cluster is a control plane running for a test. Its methods fail the test on error.
type Cluster struct {
	// Config is an administrator's configuration, without a client-side rate limit. Copy it before
	// changing it.
	Config *rest.Config
	// Kubeconfig is the path of the equivalent file for kubectl and other processes.
	Kubeconfig string

	t       TB
	running *controlPlane
	files   atomic.Int32
}

// startLimit is generous: a machine running many tests concurrently is slow, not broken.
const startLimit = 2 * time.Minute

// Start starts a control plane in this process and returns when it is ready. The control plane ends
// with the test, or at Stop. Its state is in t.TempDir() unless an option sets DataDir; a later
// Start with the same DataDir continues from that state. Several control planes may run
// concurrently, each with a separate port, etcd and controllers. If the control plane cannot be
// started, the test fails immediately, with the end of the log.
func Start(t TB, options ...func(*Options)) *Cluster {
	t.Helper()
	var o Options
	for _, option := range options {
		option(&o)
	}

	if o.DataDir == "" {
		o.DataDir = t.TempDir()
	}
	// The context covers the start only; the control plane outlives it.
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	running, err := launchPlane(ctx, o, io.Discard)
	if err != nil {
		// The test removes the data directory, so include the log in the message.
		t.Fatalf("control plane: %v%s", err, logTail(o.DataDir))
		return nil
	}

	c := &Cluster{t: t, running: running, Kubeconfig: running.kubeconfigPath()}
	t.Cleanup(c.Stop)
	// system:masters may do everything, regardless of RBAC.
	c.Config = c.ConfigFor(adminUser, mastersGroup)
	return c
}

// Stop ends the control plane and keeps its state. It runs automatically at the end of the test;
// further calls are no-ops.
func (c *Cluster) Stop() { c.running.stop() }

// ConfigFor returns a client configuration for a user with the given name and groups, subject to
// RBAC. Users and groups exist only in the certificate and need no API objects.
func (c *Cluster) ConfigFor(user string, groups ...string) *rest.Config {
	c.t.Helper()
	config, err := c.running.clientConfig(user, groups...)
	if err != nil {
		c.t.Fatalf("client configuration for %s: %v", user, err)
		return nil
	}
	// Do not throttle tests' clients.
	config.QPS = -1
	return config
}

// KubeconfigFor returns the path of a new kubeconfig for a user with the given name and groups. The
// test removes the file at its end.
func (c *Cluster) KubeconfigFor(user string, groups ...string) string {
	c.t.Helper()
	config, err := c.running.pki.newKubeconfig(c.running.server, user, groups...)
	if err != nil {
		c.t.Fatalf("%v", err)
		return ""
	}
	// A test may create several kubeconfigs.
	path := filepath.Join(c.t.TempDir(), fmt.Sprintf("kubeconfig-%d", c.files.Add(1)))
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		c.t.Fatalf("kubeconfig for %s: %v", user, err)
		return ""
	}
	return path
}

// logTail returns the last log lines for a failure message. It is empty if the log is missing.
func logTail(dataDir string) string {
	const lines = 20
	content, err := os.ReadFile(filepath.Join(dataDir, "controlplane.log"))
	if err != nil || len(content) == 0 {
		return ""
	}
	all := strings.Split(string(bytes.TrimSpace(content)), "\n")
	return "\nlast lines of its log:\n" + strings.Join(all[max(0, len(all)-lines):], "\n")
}
