// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/cli/parse"
	"github.com/berth-k8s/berth/internal/cli/query"
	"github.com/berth-k8s/berth/internal/kube/connect"
	"github.com/berth-k8s/berth/internal/kube/signals"
	"github.com/berth-k8s/berth/internal/node/simnodes"
	"github.com/berth-k8s/berth/internal/up/localcluster"
)

func newNodes() *cobra.Command {
	var shape parse.Nodes
	var to connect.Flags
	cmd := &cobra.Command{
		Use:     "nodes",
		GroupID: groupTry,
		Short:   "Simulated nodes on any cluster; make them fail",
		Args:    parse.Subcommand,
		RunE:    func(cmd *cobra.Command, _ []string) error { return runNodes(cmd, &shape, &to) },
	}
	to.AddKubectlFlags(cmd.PersistentFlags())
	shape.AddFlags(cmd.Flags())
	cmd.AddCommand(newNodesFail(&to), newNodesRecover(&to), newNodesCondition(&to))
	return cmd
}

func runNodes(cmd *cobra.Command, s *parse.Nodes, to *connect.Flags) error {
	shape, err := s.ShapeFor("--count", currentVersion().Kubernetes)
	if err != nil {
		return err
	}
	cfg, err := to.Config("nodes")
	if err != nil {
		return err
	}
	client, err := simnodes.Client(cfg)
	if err != nil {
		return err
	}
	ctx, stop := signals.Until(cmd.Context())
	defer stop()
	// Use the cluster's version: kubelets newer than the API server are unsupported. Run waits for
	// an API server that does not respond yet.
	if version, err := client.Discovery().ServerVersion(); err == nil {
		shape.Version = version.GitVersion
	}
	out := cmd.OutOrStdout()
	return simnodes.Run(ctx, client, simnodes.Options{
		Shape:   *shape,
		Workers: s.Workers,
		Log:     slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil)),
		Ready: func(nodes int, took time.Duration) {
			fmt.Fprintf(out, "ready %s (%.1fs)\n", localcluster.DescribeNodes(nodes, s.Zones), took.Seconds())
		},
	})
}

// fault applies a fault to the selected nodes and returns their names.
type fault func(faults simnodes.Faults, ctx context.Context, which simnodes.Selection) ([]string, error)

// newFault completes a command that applies a fault to simulated nodes. prepare parses the
// arguments and returns the node names among them, the fault, and the text to print for each
// changed node.
func newFault(to *connect.Flags, cmd *cobra.Command,
	prepare func(args []string) (nodes []string, do fault, done string, err error)) *cobra.Command {
	var which simnodes.Selection
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		nodes, do, done, err := prepare(args)
		if err != nil {
			return err
		}
		if err := addNamed(&which, nodes); err != nil {
			return err
		}
		client, err := query.NewClient(to, "nodes", query.LimitTime)
		if err != nil {
			return err
		}
		names, err := do(simnodes.Faults{Client: client}, cmd.Context(), which)
		if err != nil {
			return err
		}
		printNames(cmd.OutOrStdout(), names, done)
		return nil
	}

	flags := cmd.Flags()
	flags.StringSliceVar(&which.Names, "node", nil, "a node (repeatable)")
	flags.StringSliceVar(&which.Zones, "zone", nil, "all simulated nodes of a zone (repeatable)")
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
		q := query.Question{Cluster: *to, UserAgent: "nodes"}
		return q.Nodes(cmd, args, toComplete)
	}
	query.Complete(cmd, "node", cmd.ValidArgsFunction)
	return cmd
}

func newNodesFail(to *connect.Flags) *cobra.Command {
	var forHow time.Duration
	cmd := &cobra.Command{
		Use:   "fail (NODE | --node NODE | --zone ZONE)... [--for DURATION]",
		Short: "Stop the heartbeats of simulated nodes",
	}
	cmd.Flags().DurationVar(&forHow, "for", 0, "for how long (default: until berth nodes recover)")
	return newFault(to, cmd, func(args []string) ([]string, fault, string, error) {
		if forHow < 0 || cmd.Flags().Changed("for") && forHow < time.Second {
			return nil, nil, "", usagef("--for %s: must be 1s or more", forHow)
		}
		until := "until berth nodes recover"
		if forHow > 0 {
			until = "for " + answer.Duration(forHow)
		}
		return args, func(faults simnodes.Faults, ctx context.Context, which simnodes.Selection) ([]string, error) {
			return faults.Fail(ctx, which, forHow)
		}, "heartbeats stopped " + until, nil
	})
}

func newNodesRecover(to *connect.Flags) *cobra.Command {
	return newFault(to, &cobra.Command{
		Use:   "recover (NODE | --node NODE | --zone ZONE)...",
		Short: "Restore the heartbeats of simulated nodes",
	}, func(args []string) ([]string, fault, string, error) {
		return args, simnodes.Faults.Recover, "recovered", nil
	})
}

func newNodesCondition(to *connect.Flags) *cobra.Command {
	return newFault(to, &cobra.Command{
		Use:   "condition [NODE]... TYPE=STATUS|TYPE-...",
		Short: "Have simulated nodes report conditions",
	}, func(args []string) ([]string, fault, string, error) {
		nodes, change, err := parse.NodesAndConditions(args)
		return nodes, func(faults simnodes.Faults, ctx context.Context, which simnodes.Selection) ([]string, error) {
			return faults.SetConditions(ctx, which, change)
		}, "conditions changed", err
	})
}

// addNamed adds the nodes named by arguments to the flags' nodes.
func addNamed(which *simnodes.Selection, args []string) (err error) {
	names, err := parse.Node.NamesOf(args)
	if err != nil {
		return err
	}
	for _, node := range which.Names {
		name, err := parse.Node.NameOf(node)
		if err != nil {
			return err
		}
		names = append(names, name)
	}
	if len(names)+len(which.Zones) == 0 {
		return usagef("no node specified: use NODE, --node NODE or --zone ZONE")
	}
	which.Names = names
	return nil
}

// printNames prints up to ten node names, and the number of omitted names.
func printNames(out io.Writer, names []string, what string) {
	if len(names) > 10 {
		fmt.Fprintf(out, "%d nodes (%s ... %s): %s\n", len(names), names[0], names[len(names)-1], what)
		return
	}
	for _, name := range names {
		fmt.Fprintf(out, "%s: %s\n", name, what)
	}
}
