// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package connect finds the cluster that a command acts on. All commands search in the same order,
// beginning with the most explicit choice.
package connect

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// DefaultDataDir is the default data directory of `berth up`.
	DefaultDataDir = ".berth"
	// EnvDataDir is the environment variable with the data directory of the cluster to use, if no
	// cluster is chosen more explicitly.
	EnvDataDir = "BERTH_DATA_DIR"
)

// Flags identifies a cluster on the command line. The zero Flags identifies the default cluster;
// see Config. A command adds flags by either AddFlags or AddKubectlFlags.
type Flags struct {
	Kubeconfig string // a file; "": see Config
	Context    string // a context of the kubeconfig; "": the current context
	Master     string // the API server's address, which overrides the kubeconfig

	// These fields correspond to the flags of kubectl with the same names.
	Server         string // takes precedence over Master
	Token          string // takes precedence over the credentials of the kubeconfig
	As             string // impersonated user; requires the permission to impersonate
	Insecure       bool
	RequestTimeout time.Duration // of each request; 0: unbounded
}

// AddKubectlFlags adds the flags of AddFlags and further connection flags of kubectl.
func (f *Flags) AddKubectlFlags(flags *pflag.FlagSet) {
	f.AddFlags(flags)
	flags.StringVarP(&f.Server, "server", "s", f.Server, "the API server's address, which overrides the kubeconfig")
	flags.StringVar(&f.Token, "token", f.Token, "bearer token for the API server")
	flags.StringVar(&f.As, "as", f.As, "user to impersonate")
	flags.BoolVar(&f.Insecure, "insecure-skip-tls-verify", f.Insecure,
		"do not verify the API server's certificate: the connection is not safe")
	flags.Var((*timeout)(&f.RequestTimeout), "request-timeout", "how long one request may take, such as 10s or, in seconds, 10; 0: no "+
		"limit")
}

// timeout is a duration in kubectl's format: a number without a unit is in seconds.
type timeout time.Duration

// String and Type implement [pflag.Value].
func (t *timeout) String() string { return time.Duration(*t).String() }
func (t *timeout) Type() string   { return "duration" }

// Set implements [pflag.Value].
func (t *timeout) Set(text string) error {
	d, err := clientcmd.ParseTimeout(text)
	if err != nil {
		return errors.New("must be a duration, such as 10s, or a number of seconds")
	}
	if d < 0 {
		return errors.New("must not be negative")
	}
	*t = timeout(d)
	return nil
}

// AddFlags adds --kubeconfig and --context.
func (f *Flags) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&f.Kubeconfig, "kubeconfig", f.Kubeconfig,
		"kubeconfig file (default $KUBECONFIG, then the cluster of berth up, in-cluster, ~/.kube/config)")
	flags.StringVar(&f.Context, "context", f.Context, "the kubeconfig's context to use")
}

// Config returns the configuration of a client for the cluster. The candidates are, in this order:
// --kubeconfig, KUBECONFIG, the cluster of berth up in the data directory, the cluster in which the
// process runs, and ~/.kube/config. The first candidate that exists is used, even if it does not
// work. Config sends no requests. The user agent ends with the given name.
func (f *Flags) Config(userAgent string) (*rest.Config, error) {
	cfg, err := f.find()
	if err != nil {
		return nil, err
	}
	cfg.Timeout = f.RequestTimeout
	if f.As != "" {
		cfg.Impersonate = rest.ImpersonationConfig{UserName: f.As}
	}
	if f.Token != "" {
		// Without this, other credentials of the kubeconfig would be sent with the token, or
		// instead of it.
		cfg.BearerToken, cfg.BearerTokenFile = f.Token, ""
		cfg.Username, cfg.Password, cfg.ExecProvider, cfg.AuthProvider = "", "", nil, nil
	}
	cfg.UserAgent = rest.DefaultKubernetesUserAgent() + "/" + userAgent
	return cfg, nil
}

// find returns the configuration of the cluster, or an error that explains how to choose a cluster.
func (f *Flags) find() (*rest.Config, error) {
	file, within, err := f.kubeconfig()
	if err != nil || within != nil {
		return within, err
	}

	cfg, err := file.ClientConfig()
	switch {
	case clientcmd.IsEmptyConfig(err) && len(f.Contexts()) > 0:
		return nil, fmt.Errorf("kubeconfig: no context is the current one: name one with --context: %s", strings.Join(f.Contexts(), ", "))
	case clientcmd.IsEmptyConfig(err) && f.named() != "":
		return nil, fmt.Errorf("no cluster: run `berth up`, or name one with --kubeconfig or KUBECONFIG (%s does not "+
			"exist, or names none)", f.named())
	case clientcmd.IsEmptyConfig(err):
		return nil, fmt.Errorf("no cluster: run `berth up`, or name one with --kubeconfig or KUBECONFIG")
	case err != nil:
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}

	return cfg, nil
}

// named returns the kubeconfig named by the user, or "".
func (f *Flags) named() string { return cmp.Or(f.Kubeconfig, os.Getenv("KUBECONFIG")) }

// Namespace returns the namespace of the context in use, or "default". The namespace need not
// exist.
func (f *Flags) Namespace() string {
	file, _, err := f.kubeconfig()
	if err != nil {
		return metav1.NamespaceDefault // Config reports the error
	}
	namespace, _, err := file.Namespace()
	if err != nil {
		return metav1.NamespaceDefault
	}
	return namespace
}

// Contexts returns the sorted names of the kubeconfig's contexts; nil if it cannot be read.
func (f *Flags) Contexts() []string {
	file, _, err := f.kubeconfig()
	if err != nil {
		return nil
	}
	config, err := file.RawConfig()
	if err != nil {
		return nil
	}
	return slices.Sorted(maps.Keys(config.Contexts))
}

// kubeconfig returns the kubeconfig to use. If the process runs in the cluster to use, within is
// the in-cluster configuration, and otherwise nil.
//
// The kubeconfig found in the data directory precedes the in-cluster configuration, because a user
// in the directory of `berth up` expects its cluster.
func (f *Flags) kubeconfig() (file clientcmd.ClientConfig, within *rest.Config, err error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	// Instead of this warning, find returns an error that names a remedy.
	rules.WarnIfAllMissing = false
	switch {
	case f.Kubeconfig != "":
		rules.ExplicitPath = f.Kubeconfig
	case os.Getenv("KUBECONFIG") != "":
	default:
		var own string
		own, err = Found(DataDirFromEnv(), f.Context)
		switch {
		case err != nil:
			return nil, nil, err
		case own != "":
			rules.ExplicitPath = own
		// The in-cluster configuration has no contexts, and its address is fixed, so a given
		// context or address requires a kubeconfig.
		case f.Context == "" && f.address() == "":
			if within, err = rest.InClusterConfig(); errors.Is(err, rest.ErrNotInCluster) {
				within, err = nil, nil
			}
		}
	}

	overrides := &clientcmd.ConfigOverrides{CurrentContext: f.Context}
	overrides.ClusterInfo.Server = f.address()
	overrides.ClusterInfo.InsecureSkipTLSVerify = f.Insecure
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides), within, err
}

// address returns the API server's address, if a flag names it.
func (f *Flags) address() string { return cmp.Or(f.Server, f.Master) }

// DataDirFromEnv returns the data directory given by EnvDataDir, or DefaultDataDir.
func DataDirFromEnv() string {
	if dir := os.Getenv(EnvDataDir); dir != "" {
		return dir
	}
	return DefaultDataDir
}
