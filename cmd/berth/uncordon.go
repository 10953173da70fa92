// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-k8s/berth/internal/cli/print"
	"github.com/berth-k8s/berth/internal/cli/query"
	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/internal/controller/rebalance/movecontroller"
	"github.com/berth-k8s/berth/internal/kube/connect"
)

// newUncordonCommand reopens nodes after a drain, with kubectl's flags and output.
func newUncordonCommand() *cobra.Command {
	d := &drain{Question: query.Question{UserAgent: "berth-uncordon"}}
	cmd := &cobra.Command{
		Use:               "uncordon NODE...",
		GroupID:           groupOthers,
		Short:             "Mark nodes as schedulable again, as kubectl uncordon does",
		ValidArgsFunction: d.Nodes,
		RunE:              d.runUncordon,
	}
	d.addNodeFlags(cmd, "client: print the changes without making them; server: the API server also checks them; none")
	return cmd
}

func (d *drain) runUncordon(cmd *cobra.Command, args []string) error {
	if err := d.checkNodes(cmd, args); err != nil {
		return err
	}
	client, err := query.NewClient(&d.Cluster, d.UserAgent, query.LimitTime)
	if err != nil {
		return err
	}

	names, err := d.selectNodes(cmd.Context(), client, args)
	if err != nil {
		return connect.WithRemedy(err)
	}
	if err := openNodes(cmd.Context(), cmd.OutOrStdout(), client, names, d.dryRun); err != nil || d.dryRun != "none" {
		return err
	}
	if err := movecontroller.WithdrawDrains(cmd.Context(), client, names); err != nil && !apierrors.IsForbidden(err) {
		return err
	}
	return restoreScales(cmd.Context(), cmd.OutOrStdout(), client, names)
}

// restoreScales restores the scales of workloads that a killed drain of these nodes with --surge
// has raised.
func restoreScales(ctx context.Context, out io.Writer, client kubernetes.Interface, names []string) error {
	surged := metav1.ListOptions{LabelSelector: rebalance.SurgeLabel, Limit: 1}
	deployments, err := client.AppsV1().Deployments("").List(ctx, surged)
	sets, err2 := client.AppsV1().ReplicaSets("").List(ctx, surged)
	if err != nil || err2 != nil || len(deployments.Items)+len(sets.Items) == 0 {
		return nil // a user limited to uncordoning cannot have started a surge
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	options := execute.DrainOptions{Leaving: rebalance.Leaving{Nodes: names}, OnlyRestore: true}
	report := func(a execute.DrainProgress) { print.PrintLine(out, a.Line()) }
	drainer := movecontroller.NewDrainer(client, nil, options, report, func(execute.DrainDone) { cancel() })
	return drainer.Run(ctx)
}

// checkNodes checks the flags that select the nodes and the dry-run mode.
func (d *drain) checkNodes(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) > 0 && d.selector != "":
		return usagef("--selector %s: cannot be used with node names", d.selector)
	case len(args) == 0 && d.selector == "":
		return usagef("no node specified (see %s --help)", cmd.CommandPath())
	case d.dryRun != "none" && d.dryRun != "client" && d.dryRun != "server":
		return usagef("--dry-run %q: must be none, client or server", d.dryRun)
	}
	if _, err := labels.Parse(d.selector); err != nil {
		return usagef("--selector %q: %w", d.selector, err)
	}
	return nil
}

// openNodes uncordons nodes. After a failure it continues with the remaining nodes.
func openNodes(ctx context.Context, out io.Writer, client kubernetes.Interface, names []string, dryRun string) error {
	note := map[string]string{"client": " (dry run)", "server": " (server dry run)"}[dryRun]
	var faults []error
	for _, name := range names {
		changed, err := openNode(ctx, client, name, dryRun)
		switch {
		case err != nil:
			faults = append(faults, fmt.Errorf("unable to uncordon node %q: %w", name, err))
		case changed:
			fmt.Fprintf(out, "node/%s uncordoned%s\n", name, note)
		default:
			fmt.Fprintf(out, "node/%s already uncordoned%s\n", name, note)
		}
	}
	return errors.Join(faults...)
}

// openNode uncordons a node, and reports whether it was cordoned. It also removes the roll's note,
// which abandons the roll for this node.
func openNode(ctx context.Context, client kubernetes.Interface, name, dryRun string) (changed bool, err error) {
	n, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	_, noted := n.Annotations[execute.RollAnnotation]
	if changed = n.Spec.Unschedulable; dryRun == "client" || !changed && !noted {
		return changed, nil
	}
	patch := `{"spec":{"unschedulable":null}}`
	if noted {
		patch = `{"spec":{"unschedulable":null},"metadata":{"annotations":{"` + execute.RollAnnotation + `":null}}}`
	}
	options := metav1.PatchOptions{}
	if dryRun == "server" {
		options.DryRun = []string{metav1.DryRunAll}
	}
	_, err = client.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, []byte(patch), options)
	return err == nil && changed, err
}
