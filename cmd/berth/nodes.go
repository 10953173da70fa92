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
	"github.com/berth-k8s/berth/internal/node/simnodes/simkubelet"
	"github.com/berth-k8s/berth/internal/up/localcluster"
)

func newNodes() *cobra.Command {
	var shape parse.Nodes
	var to connect.Flags
	cmd := &cobra.Command{
		Use:     "nodes",
		GroupID: groupTry,
		Short:   "Simulated nodes on any cluster; make them fail",
		Long: `Run simulated nodes: thousands in one process, on any cluster. They register,
renew their Leases and report their status as kubelets do; pods bound to them
start, become ready, end and are deleted, but no container runs.

Nodes are called node-1, node-2, ... (--name-prefix). Nodes of an earlier
run are adopted with their pods; those beyond --count are removed. A node that is
deleted while this runs stays gone, with its pods, until the next start. After
Ctrl-C the nodes stay in the cluster and are silent, like machines without power.

Annotations on a pod set how its processes behave:
  berth.dev/run-for: 30s          containers end after that time; then the pod's
                                  restartPolicy decides. Pods of a Job: 1s,
                                  others: never
  berth.dev/exit-code: "1"        with this code (default 0)
  berth.dev/init-for: 10s         how long each init container takes (default 0s)
  berth.dev/terminate-after: 20s  from SIGTERM to the end; at most the grace period
  berth.dev/ready: "false"        the result of every readiness probe
  berth.dev/uses: memory=300Mi    what they use of memory and ephemeral-storage; a
                                  node that runs short evicts pods as a kubelet does
A readiness probe that runs the command false fails, any other passes after its
initialDelaySeconds.`,
		Example: `  berth nodes --count 5000 --zones 5
  berth nodes --count 8 --name-prefix gpu- --resource nvidia.com/gpu=8 --taint nvidia.com/gpu=true:NoSchedule
  berth nodes fail --zone z1 --for 2m
  berth nodes condition node-3 MemoryPressure=True`,
		Args: parse.Subcommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return runNodes(cmd, &shape, &to) },
	}
	to.AddKubectlFlags(cmd.PersistentFlags())
	shape.AddFlags(cmd.Flags())
	cmd.AddCommand(newNodesFail(&to), newNodesRecover(&to), newNodesCondition(&to))
	return cmd
}

func runNodes(cmd *cobra.Command, s *parse.Nodes, to *connect.Flags) error {
	shape, err := s.Shape("--count", currentVersion().Kubernetes)
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
		Long: `Stop the heartbeats of simulated nodes, as if they lost the network: no Lease is
renewed, no status reported, and their pods freeze: none starts, none ends, no
deletion is acknowledged. The nodes recover after --for, or with berth nodes
recover, and their pods continue from where they were.

The command sets an annotation on the nodes (` + simkubelet.AnnotationHeartbeat + `): it works on any
cluster in which berth nodes runs, and outlasts its restarts.`,
		Example: `  berth nodes fail node-1
  berth nodes fail --zone z1 --for 2m`,
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
		Use:     "recover (NODE | --node NODE | --zone ZONE)...",
		Short:   "Restore the heartbeats of simulated nodes",
		Long:    "Restore the heartbeats of simulated nodes that berth nodes fail has stopped.",
		Example: "  berth nodes recover --zone z1",
	}, func(args []string) ([]string, fault, string, error) {
		return args, simnodes.Faults.Recover, "recovered", nil
	})
}

func newNodesCondition(to *connect.Flags) *cobra.Command {
	return newFault(to, &cobra.Command{
		Use:   "condition [NODE]... TYPE=STATUS|TYPE-...",
		Short: "Have simulated nodes report conditions",
		Long: `Have simulated nodes report conditions: MemoryPressure, DiskPressure, PIDPressure,
NetworkUnavailable, Ready, or any other type, with status True, False or Unknown.
TYPE-, or the status of a healthy node, reverts it.

The command sets an annotation on the nodes (` + simkubelet.AnnotationConditions + `).`,
		Example: `  berth nodes condition node-3 MemoryPressure=True
  berth nodes condition node-3 MemoryPressure-
  berth nodes condition --zone z1 Ready=False`,
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
