// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/berth-k8s/berth/internal/admission/evictionguard"
	"github.com/berth-k8s/berth/internal/cli/parse"
	"github.com/berth-k8s/berth/internal/cli/query"
	"github.com/berth-k8s/berth/internal/kube/connect"
	"github.com/berth-k8s/berth/internal/kube/signals"
	"github.com/berth-k8s/berth/internal/up/localcluster"
	"github.com/berth-k8s/berth/internal/usage"
)

func newUp() *cobra.Command {
	c := &localcluster.Cluster{Gates: map[string]bool{}, Version: currentVersion().Kubernetes, Guard: evictionguard.DefaultOptions()}
	cmd := &cobra.Command{
		Use:     "up",
		GroupID: groupTry,
		Short:   "Start a whole cluster on this machine, in the foreground",
		Args:    parse.None,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkUp(c); err != nil {
				return err
			}
			ctx, stop := signals.Until(cmd.Context())
			defer stop()
			return c.Run(ctx, cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&c.DataDir, "data-dir", connect.DataDirFromEnv(),
		"where the cluster is kept; the kubeconfig is written into it (or $"+connect.EnvDataDir+")")

	flags.IntVar(&c.Port, "port", 0, "port of the API on 127.0.0.1 (default: the one used last here, or a free one)")
	flags.IntVar(&c.Nodes, "nodes", 3, "simulated nodes")
	flags.IntVar(&c.Zones, "zones", 3, "zones that the nodes are spread over")
	flags.StringVar(&c.Config, "config", "", "a KubeSchedulerConfiguration file for the scheduler (default: upstream's defaults)")
	flags.Var(cliflag.NewMapStringBool(&c.Gates), "feature-gates",
		"Kubernetes feature gates for the API server, the controllers and the scheduler, as Name=true,Other=false; "+
			"with GenericWorkload the API of pod groups is served")
	flags.Int64Var(&c.NotReadySeconds, "default-not-ready-toleration-seconds", 300,
		"tolerationSeconds for not-ready nodes of pods that set none")
	flags.Int64Var(&c.UnreachableSeconds, "default-unreachable-toleration-seconds", 300,
		"tolerationSeconds for unreachable nodes of pods that set none")
	flags.IntVar(&c.UIPort, "ui-port", localcluster.AnyPagePort,
		"port of the dashboard on 127.0.0.1; 0 takes a free one, -1 leaves it out (default: "+strconv.Itoa(uiPort)+
			", or if it is taken, a free one)")
	flags.Lookup("ui-port").DefValue = "0" // shown by the help text instead
	flags.IntVar(&c.ServePort, "serve-port", 0, "port of the query service (berth serve) on 127.0.0.1 (default: none)")
	flags.BoolVar(&c.GuardEvictions, "guard-evictions", false,
		"hold evictions of pods of Deployments and ReplicaSets until a replacement is ready")
	c.Guard.AddControllerFlags(flags)
	c.Own.AddFlags(flags)
	flags.BoolVar(&c.Fresh, "fresh", false, "start over: delete the content of the data directory, without confirmation")
	flags.StringVar(&c.Controlplane, "controlplane", "", "the berth-controlplane to run (default: next to this executable, then in PATH)")
	return cmd
}

// checkUp checks the flags of berth up.
func checkUp(c *localcluster.Cluster) error {
	var shape parse.Nodes
	shape.AddFlags(pflag.NewFlagSet("", pflag.ContinueOnError)) // the same validation as in berth nodes
	shape.Count, shape.Zones = c.Nodes, c.Zones
	if _, err := shape.ShapeFor("--nodes", c.Version); err != nil {
		return err
	}
	switch {
	case c.Port < 0 || c.Port > 65535:
		return usagef("--port %d: must be between 1 and 65535", c.Port)
	case c.UIPort != localcluster.AnyPagePort && (c.UIPort < localcluster.NoPage || c.UIPort > 65535):
		return usagef("--ui-port %d: must be between -1 and 65535", c.UIPort)
	case c.ServePort < 0 || c.ServePort > 65535:
		return usagef("--serve-port %d: must be between 1 and 65535", c.ServePort)
	case c.NotReadySeconds < 0 || c.UnreachableSeconds < 0:
		return usagef("--default-not-ready-toleration-seconds and --default-unreachable-toleration-seconds: must be zero or more")
	case c.DataDir == "":
		return usagef("--data-dir: must name a directory")
	}

	if c.Config != "" {
		if _, err := query.LoadConfiguration(c.Config, io.Discard); err != nil { // the scheduler prints the notes
			return fmt.Errorf("--config: %w", err)
		}
	}
	if err := cmp.Or(usage.Of(c.Guard.Validate()), c.CheckGates()); err != nil {
		return err
	}
	return c.Own.CheckFlags(c)
}
