// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package connect finds the cluster of a command: the same way for all commands, most explicit
// first.
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
	// EnvDataDir names the data directory of the commands' cluster in the absence of a more
	// explicit choice.
	EnvDataDir = "BERTH_DATA_DIR"
)

// Flags identify a cluster on the command line. The zero Flags finds the usual one. Commands differ
// in the flags they offer: AddFlags and AddKubectlFlags add them to a command.
type Flags struct {
	Kubeconfig string // a file; "": see Config
	Context    string // within the kubeconfig; "": its current one
	Master     string // the API server's address, regardless of the kubeconfig

	// Like kubectl's flags of the same names.
	Server         string // goes before Master
	Token          string // goes before the credentials of the kubeconfig
	As             string // impersonated user; needs that permission
	Insecure       bool
	RequestTimeout time.Duration // of each request; 0: unbounded
}

// AddKubectlFlags adds the flags of AddFlags, and the rest of kubectl's.
func (f *Flags) AddKubectlFlags(flags *pflag.FlagSet) {
	f.AddFlags(flags)
	flags.StringVarP(&f.Server, "server", "s", f.Server, "the API server's address, which overrides the kubeconfig")
	flags.StringVar(&f.Token, "token", f.Token, "bearer token for the API server")
	flags.StringVar(&f.As, "as", f.As, "user to impersonate")
	flags.BoolVar(&f.Insecure, "insecure-skip-tls-verify", f.Insecure,
		"do not verify the API server's certificate: the connection is not safe")
	flags.Var((*timeout)(&f.RequestTimeout), "request-timeout", "how long one request may take, as 10s or, in seconds, 10; 0 is unbounded")
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
		return errors.New("must be a duration, as 10s, or a number of seconds")
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

// Config resolves the cluster: --kubeconfig, KUBECONFIG, the cluster that berth up made here, the
// cluster this process runs in, and the user's own kubeconfig. The first existing one counts, even
// if it does not work. Config sends no requests. The user agent ends in the given name.
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
		// Other credentials of the kubeconfig would be sent with the token, or instead of it.
		cfg.BearerToken, cfg.BearerTokenFile = f.Token, ""
		cfg.Username, cfg.Password, cfg.ExecProvider, cfg.AuthProvider = "", "", nil, nil
	}
	cfg.UserAgent = rest.DefaultKubernetesUserAgent() + "/" + userAgent
	return cfg, nil
}

// find returns the configuration, or an error that explains how to name a cluster.
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

// Namespace returns the namespace of the context in use, or the default one. It only returns a
// name; the namespace need not exist.
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

// kubeconfig returns the intended kubeconfig. within is the configuration of a process running in
// the intended cluster, and nil otherwise.
//
// Found precedes the cluster of the process: in a directory of `berth up` the user means the
// cluster there.
func (f *Flags) kubeconfig() (file clientcmd.ClientConfig, within *rest.Config, err error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	// Config has an error for that, with a remedy.
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
		// Only a kubeconfig has contexts and addresses, so naming one rules out the cluster this
		// process runs in.
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

// DataDirFromEnv returns the default data directory of commands.
func DataDirFromEnv() string {
	if dir := os.Getenv(EnvDataDir); dir != "" {
		return dir
	}
	return DefaultDataDir
}
