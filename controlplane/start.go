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

// TB is what Start needs of testing.TB. A testing.TB is one. It is an interface of its own, so that
// this package need not import testing.
type TB interface {
	Helper()
	TempDir() string
	Cleanup(func())
	Logf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Cluster is a control plane that runs for a test. Its methods fail the test where they cannot do
// what they say.
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
// Start can then go on with. Several may run side by side: each has its own port, etcd and
// controllers. If it cannot be started, the test fails at once, with the end of the log.
func Start(t TB, options ...func(*Options)) *Cluster {
	t.Helper()
	var o Options
	for _, option := range options {
		option(&o)
	}

	if o.DataDir == "" {
		o.DataDir = t.TempDir()
	}
	// For the start only; the control plane outlives it.
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	running, err := launchPlane(ctx, o, io.Discard)
	if err != nil {
		// The data directory is gone when the test has ended: its log has to be in the message.
		t.Fatalf("control plane: %v%s", err, logTail(o.DataDir))
		return nil
	}

	c := &Cluster{t: t, running: running, Kubeconfig: running.kubeconfigPath()}
	t.Cleanup(c.Stop)
	// system:masters may do everything, whatever RBAC says.
	c.Config = c.ConfigFor(adminUser, mastersGroup)
	return c
}

// Stop ends the control plane. The state stays; calling it again does nothing. It is called at the
// end of the test by itself.
func (c *Cluster) Stop() { c.running.stop() }

// ConfigFor is a client configuration for a user of that name in those groups, who may do what RBAC
// says. Nothing has to exist by that name: users and groups are what the certificate says.
func (c *Cluster) ConfigFor(user string, groups ...string) *rest.Config {
	c.t.Helper()
	config, err := c.running.clientConfig(user, groups...)
	if err != nil {
		c.t.Fatalf("client configuration for %s: %v", user, err)
		return nil
	}
	// As a test's client should not be slowed down.
	config.QPS = -1
	return config
}

// KubeconfigFor is the path of a new kubeconfig for a user of that name in those groups. The file
// is gone with the test.
func (c *Cluster) KubeconfigFor(user string, groups ...string) string {
	c.t.Helper()
	config, err := c.running.pki.newKubeconfig(c.running.server, user, groups...)
	if err != nil {
		c.t.Fatalf("%v", err)
		return ""
	}
	// Several may be made in one test.
	path := filepath.Join(c.t.TempDir(), fmt.Sprintf("kubeconfig-%d", c.files.Add(1)))
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		c.t.Fatalf("kubeconfig for %s: %v", user, err)
		return ""
	}
	return path
}

// logTail is what the log says last, for a failure's message. It is empty if there is no log.
func logTail(dataDir string) string {
	const lines = 20
	content, err := os.ReadFile(filepath.Join(dataDir, "controlplane.log"))
	if err != nil || len(content) == 0 {
		return ""
	}
	all := strings.Split(string(bytes.TrimSpace(content)), "\n")
	return "\nlast lines of its log:\n" + strings.Join(all[max(0, len(all)-lines):], "\n")
}
