package main

import (
	"os"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"github.com/berth-k8s/berth/internal/kube/connect"
)

const (
	defaultDataDir = connect.DefaultDataDir
	envDataDir     = connect.EnvDataDir
)

// connection is how a command finds its cluster.
type connection struct{ to connect.Flags }

func (c *connection) addFlags(flags *pflag.FlagSet) { c.to.AddFlags(flags) }

func (c *connection) restConfig(userAgent string) (*rest.Config, error) {
	return c.to.Config(userAgent)
}

// withTimeout bounds the time of a request, for commands that answer a question: with a kubeconfig
// that points nowhere they must not hang.
func withTimeout(cfg *rest.Config) *rest.Config {
	short := rest.CopyConfig(cfg)
	if short.Timeout == 0 { // no --request-timeout
		short.Timeout = 5 * time.Second
	}
	return short
}

func dataDirFromEnv() string { return connect.DataDirFromEnv() }

func pathExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
