// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-k8s/berth/internal/cli/parse"
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
