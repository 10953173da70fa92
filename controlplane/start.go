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

// TB is what Start needs of testing.TB.
type TB interface {
	Helper()
	TempDir() string
	Cleanup(func())
	Logf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Cluster is a control plane that runs for a test.
type Cluster struct {
	// Config is an administrator's. Its client-side rate limit is off; copy it before changing it.
	Config *rest.Config
	// Kubeconfig is the path of the same for kubectl and other processes.
	Kubeconfig string

	t       TB
	running *controlPlane
	files   atomic.Int32
}

// startLimit is generous: a machine that runs many tests at once is slow, not broken.
const startLimit = 2 * time.Minute

// Start starts a control plane in this process and returns when it is ready. It ends with the test,
// or at Stop. Its state is in t.TempDir() unless an option names another DataDir, which a later
// Start can then go on with.
func Start(t TB, options ...func(*Options)) *Cluster {
	t.Helper()
	var o Options
	for _, option := range options {
		option(&o)
	}

	if o.DataDir == "" {
		o.DataDir = t.TempDir()
	}
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	running, err := launchPlane(ctx, o, io.Discard)
	if err != nil {
		t.Fatalf("control plane: %v%s", err, logTail(o.DataDir))
		return nil
	}

	c := &Cluster{t: t, running: running, Kubeconfig: running.kubeconfigPath()}
	t.Cleanup(c.Stop)
	c.Config = c.ConfigFor(adminUser, mastersGroup)
	return c
}

// Stop ends the control plane. The state stays; calling it again does nothing.
func (c *Cluster) Stop() { c.running.stop() }

// ConfigFor is a client configuration for a user of that name in those groups, who may do what RBAC
// says.
func (c *Cluster) ConfigFor(user string, groups ...string) *rest.Config {
	c.t.Helper()
	config, err := c.running.clientConfig(user, groups...)
	if err != nil {
		c.t.Fatalf("client configuration for %s: %v", user, err)
		return nil
	}
	config.QPS = -1
	return config
}

// KubeconfigFor is the path of a new kubeconfig for a user of that name in those groups.
func (c *Cluster) KubeconfigFor(user string, groups ...string) string {
	c.t.Helper()
	config, err := c.running.pki.newKubeconfig(c.running.server, user, groups...)
	if err != nil {
		c.t.Fatalf("%v", err)
		return ""
	}
	path := filepath.Join(c.t.TempDir(), fmt.Sprintf("kubeconfig-%d", c.files.Add(1)))
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		c.t.Fatalf("kubeconfig for %s: %v", user, err)
		return ""
	}
	return path
}

// logTail is what the log says last, for a failure's message.
func logTail(dataDir string) string {
	const lines = 20
	content, err := os.ReadFile(filepath.Join(dataDir, "controlplane.log"))
	if err != nil || len(content) == 0 {
		return ""
	}
	all := strings.Split(string(bytes.TrimSpace(content)), "\n")
	return "\nlast lines of its log:\n" + strings.Join(all[max(0, len(all)-lines):], "\n")
}
