// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	_ "k8s.io/client-go/plugin/pkg/client/auth"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/plugin"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"

	"github.com/berth-k8s/berth/internal/cli/print"
	"github.com/berth-k8s/berth/internal/kube/connect"
)

func newKubectl() *cobra.Command {
	return &cobra.Command{
		Use:                "kubectl [--data-dir DIR] ...",
		GroupID:            groupTry,
		Short:              "kubectl, built in, for the cluster of berth up",
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			dataDir, args, err := takeDataDir(args)
			if err != nil {
				return err
			}
			if err := pointAt(dataDir, args); err != nil {
				return err
			}

			runKubectl(cmd.Root().DisplayName()+" kubectl", args)
			return nil
		},
	}
}

// takeDataDir removes a leading --data-dir. The remaining arguments are passed to kubectl
// unchanged.
func takeDataDir(args []string) (string, []string, error) {
	if len(args) == 0 || !strings.HasPrefix(args[0], "--data-dir") {
		return connect.DataDirFromEnv(), args, nil
	}
	if dir, ok := strings.CutPrefix(args[0], "--data-dir="); ok && dir != "" {
		return dir, args[1:], nil
	}
	if args[0] == "--data-dir" && len(args) > 1 {
		return args[1], args[2:], nil
	}
	return "", nil, usagef("--data-dir: needs a directory")
}

// pointAt points kubectl to the cluster in dataDir, unless the user chose another. It never falls
// back to ~/.kube/config: a command meant for the trial cluster must not reach a production
// cluster.
func pointAt(dataDir string, args []string) error {
	if end := slices.Index(args, "--"); end >= 0 {
		args = args[:end] // the rest are flags of the command in the container, such as curl's -s
	}
	if os.Getenv("KUBECONFIG") != "" || hasFlag(args, "--kubeconfig") || hasFlag(args, "--server") || hasFlag(args, "-s") {
		return nil
	}
	context := "" // the current context
	if hasFlag(args, "--context") || hasFlag(args, "--cluster") || hasFlag(args, "--user") {
		context = connect.AnyContext
	}
	kubeconfig, err := connect.Found(dataDir, context)
	if err != nil {
		return err
	}

	switch {
	case kubeconfig != "" && needsCluster(args):
		if at, runs := connect.IsListening(kubeconfig); !runs {
			return fmt.Errorf("the cluster in %s is not running: nothing answers at %s: start it with `%s`, or name "+
				"another one with --data-dir, KUBECONFIG or --kubeconfig",
				dataDir, at, upIn(dataDir))
		}
	case kubeconfig == "":
		if needsCluster(args) {
			return fmt.Errorf("no cluster in %s: run `berth up` first, or name one with --data-dir, KUBECONFIG or --kubeconfig", dataDir)
		}
		if kubeconfig, err = filepath.Abs(filepath.Join(dataDir, "kubeconfig")); err != nil {
			return err
		}
	}
	return os.Setenv("KUBECONFIG", kubeconfig)
}

// upIn returns the command that starts a data directory's cluster.
func upIn(dataDir string) string {
	if dataDir == connect.DataDirFromEnv() {
		return "berth up"
	}
	return "berth up --data-dir " + print.ShellWord(dataDir)
}

func hasFlag(args []string, flag string) bool {
	return slices.ContainsFunc(args, func(a string) bool {
		return a == flag || strings.HasPrefix(a, flag+"=") || len(flag) == 2 && strings.HasPrefix(a, flag)
	})
}

// needsCluster reports whether a kubectl command requires a cluster.
func needsCluster(args []string) bool {
	if len(args) == 0 || slices.ContainsFunc([]string{"--help", "-h", "--client", "--local"},
		func(flag string) bool { return hasFlag(args, flag) }) ||
		slices.Contains(args, "--dry-run=client") {
		return false
	}
	offline := []string{"help", "options", "completion", "config", "kustomize", "plugin", "__complete", "__completeNoDesc"}
	return !slices.Contains(offline, args[0])
}

// runKubectl is kubectl's own main under another name. If a command fails, it exits with kubectl's
// code.
func runKubectl(name string, args []string) {
	argv := append([]string{"kubectl"}, args...)
	_, _ = logs.GlogSetter(kubectl.GetLogVerbosity(argv))
	cmd := kubectl.NewDefaultKubectlCommandWithArgs(kubectl.KubectlOptions{
		PluginHandler: kubectl.NewDefaultPluginHandler(plugin.ValidPluginFilenamePrefixes),
		Arguments:     argv,
		ConfigFlags:   genericclioptions.NewConfigFlags(true).WithDeprecatedPasswordFlag().WithDiscoveryBurst(300).WithDiscoveryQPS(50),
		IOStreams:     genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr},
	})
	cmd.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: name}
	cmd.SetArgs(args)
	if err := cli.RunNoErrOutput(cmd); err != nil {
		kubectlutil.CheckErr(err)
	}
}
