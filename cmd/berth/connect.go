package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	defaultDataDir = ".berth"
	// envDataDir names the data directory of the cluster that commands talk to
	// when nothing else says which.
	envDataDir = "BERTH_DATA_DIR"
)

// connection is how a command that talks to a cluster finds it.
type connection struct {
	kubeconfig string
	context    string
}

func (c *connection) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&c.kubeconfig, "kubeconfig", "",
		"kubeconfig file (default $KUBECONFIG, then the cluster of berth up, in-cluster, ~/.kube/config)")
	flags.StringVar(&c.context, "context", "", "the kubeconfig's context to use")
}

// config resolves the cluster, most explicit first: --kubeconfig, KUBECONFIG,
// the cluster that berth up made here, the cluster this process runs in, and
// the user's own kubeconfig.
func (c *connection) config(userAgent string) (*rest.Config, error) {
	cfg, err := c.find()
	if err != nil {
		return nil, err
	}
	cfg.UserAgent = rest.DefaultKubernetesUserAgent() + "/" + userAgent
	return cfg, nil
}

func (c *connection) find() (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.WarnIfAllMissing = false
	switch own := filepath.Join(dataDirFromEnv(), "kubeconfig"); {
	case c.kubeconfig != "":
		rules.ExplicitPath = c.kubeconfig
	case os.Getenv("KUBECONFIG") != "":
	case exists(own):
		rules.ExplicitPath = own
	case c.context == "":
		if cfg, err := rest.InClusterConfig(); !errors.Is(err, rest.ErrNotInCluster) {
			return cfg, err
		}
	}
	overrides := &clientcmd.ConfigOverrides{CurrentContext: c.context}
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
	switch {
	case clientcmd.IsEmptyConfig(err):
		return nil, fmt.Errorf("no cluster: run `berth up`, or name one with --kubeconfig or KUBECONFIG")
	case err != nil:
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return cfg, nil
}

// reachable bounds how long one request may take, for commands that ask a
// question and end; a kubeconfig that points nowhere must not hang.
func reachable(cfg *rest.Config) *rest.Config {
	short := rest.CopyConfig(cfg)
	short.Timeout = 5 * time.Second
	return short
}

func dataDirFromEnv() string {
	if dir := os.Getenv(envDataDir); dir != "" {
		return dir
	}
	return defaultDataDir
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
