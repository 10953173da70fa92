// Package connect finds the cluster that a command talks to: the same way for
// all commands, most explicit first.
package connect

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// DefaultDataDir is where `berth up` keeps its cluster.
	DefaultDataDir = ".berth"
	// EnvDataDir names the data directory of the cluster that commands talk to
	// when nothing else says which.
	EnvDataDir = "BERTH_DATA_DIR"
)

// Flags are how a user names a cluster. The zero Flags finds the usual one.
type Flags struct {
	Kubeconfig string
	Context    string
	Master     string // the API server's address, whatever the kubeconfig says
}

// AddFlags adds --kubeconfig and --context.
func (f *Flags) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&f.Kubeconfig, "kubeconfig", f.Kubeconfig,
		"kubeconfig file (default $KUBECONFIG, then the cluster of berth up, in-cluster, ~/.kube/config)")
	flags.StringVar(&f.Context, "context", f.Context, "the kubeconfig's context to use")
}

// Config resolves the cluster: --kubeconfig, KUBECONFIG, the cluster that berth
// up made here, the cluster this process runs in, and the user's own kubeconfig.
func (f *Flags) Config(userAgent string) (*rest.Config, error) {
	cfg, err := f.find()
	if err != nil {
		return nil, err
	}
	cfg.UserAgent = rest.DefaultKubernetesUserAgent() + "/" + userAgent
	return cfg, nil
}

func (f *Flags) find() (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.WarnIfAllMissing = false
	switch own := filepath.Join(DataDirFromEnv(), "kubeconfig"); {
	case f.Kubeconfig != "":
		rules.ExplicitPath = f.Kubeconfig
	case os.Getenv("KUBECONFIG") != "":
	case exists(own):
		rules.ExplicitPath = own
	case f.Context == "" && f.Master == "":
		if cfg, err := rest.InClusterConfig(); !errors.Is(err, rest.ErrNotInCluster) {
			return cfg, err
		}
	}
	overrides := &clientcmd.ConfigOverrides{CurrentContext: f.Context}
	overrides.ClusterInfo.Server = f.Master
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
	switch {
	case clientcmd.IsEmptyConfig(err):
		return nil, fmt.Errorf("no cluster: run `berth up`, or name one with --kubeconfig or KUBECONFIG")
	case err != nil:
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return cfg, nil
}

// DataDirFromEnv is the data directory that commands take when none is named.
func DataDirFromEnv() string {
	if dir := os.Getenv(EnvDataDir); dir != "" {
		return dir
	}
	return DefaultDataDir
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
