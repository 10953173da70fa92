package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/node/simnodes"
	"github.com/berth-k8s/berth/internal/node/simnodes/kubelet"
)

func newNodesFail(to *connection) *cobra.Command {
	var which simnodes.Selection
	var forHow time.Duration
	cmd := &cobra.Command{
		Use:   "fail (NODE | --node NODE | --zone ZONE)... [--for DURATION]",
		Short: "Stop the heartbeats of simulated nodes",
		Long: `Stop the heartbeats of simulated nodes, as if they lost the network: no Lease is
renewed, no status reported, and their pods freeze: none starts, none ends, no
deletion is acknowledged. The nodes recover after --for, or with berth nodes
recover, and their pods continue from where they were.

The command sets an annotation on the nodes (` + kubelet.AnnotationHeartbeat + `): it works on any
cluster in which berth nodes runs, and outlasts its restarts.`,
		Example: `  berth nodes fail node-1
  berth nodes fail --zone z1 --for 2m`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := addNamed(&which, args); err != nil {
				return err
			}
			if forHow < 0 || cmd.Flags().Changed("for") && forHow < time.Second {
				return usagef("--for %s: must be 1s or more", forHow)
			}
			faults, err := newFaults(to)
			if err != nil {
				return err
			}
			names, err := faults.Fail(cmd.Context(), which, forHow)
			if err != nil {
				return err
			}
			until := "until berth nodes recover"
			if forHow > 0 {
				until = "for " + answer.Duration(forHow)
			}
			printNames(cmd.OutOrStdout(), names, "heartbeats stopped "+until)
			return nil
		},
	}
	selectionFlags(cmd, to, &which)
	cmd.Flags().DurationVar(&forHow, "for", 0, "for how long (default: until berth nodes recover)")
	return cmd
}

func newNodesRecover(to *connection) *cobra.Command {
	var which simnodes.Selection
	cmd := &cobra.Command{
		Use:     "recover (NODE | --node NODE | --zone ZONE)...",
		Short:   "Restore the heartbeats of simulated nodes",
		Long:    "Restore the heartbeats of simulated nodes that berth nodes fail has stopped.",
		Example: "  berth nodes recover --zone z1",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := addNamed(&which, args); err != nil {
				return err
			}
			faults, err := newFaults(to)
			if err != nil {
				return err
			}
			names, err := faults.Recover(cmd.Context(), which)
			if err != nil {
				return err
			}
			printNames(cmd.OutOrStdout(), names, "recovered")
			return nil
		},
	}

	selectionFlags(cmd, to, &which)
	return cmd
}

func newNodesCondition(to *connection) *cobra.Command {
	var which simnodes.Selection
	cmd := &cobra.Command{
		Use:   "condition [NODE]... TYPE=STATUS|TYPE-...",
		Short: "Have simulated nodes report conditions",
		Long: `Have simulated nodes report conditions: MemoryPressure, DiskPressure, PIDPressure,
NetworkUnavailable, Ready, or any other type, with status True, False or Unknown.
TYPE-, or the status of a healthy node, reverts it.

The command sets an annotation on the nodes (` + kubelet.AnnotationConditions + `).`,
		Example: `  berth nodes condition node-3 MemoryPressure=True
  berth nodes condition node-3 MemoryPressure-
  berth nodes condition --zone z1 Ready=False`,
		RunE: func(cmd *cobra.Command, args []string) error {
			nodes, change, err := nodesAndConditions(args)
			if err != nil {
				return err
			}
			if err := addNamed(&which, nodes); err != nil {
				return err
			}
			faults, err := newFaults(to)
			if err != nil {
				return err
			}
			done, err := faults.SetConditions(cmd.Context(), which, change)
			if err != nil {
				return err
			}
			printNames(cmd.OutOrStdout(), done, "conditions changed")
			return nil
		},
	}
	selectionFlags(cmd, to, &which)
	return cmd
}

// nodesAndConditions takes the arguments apart. The status of a healthy node
// is the same as none asked for.
func nodesAndConditions(args []string) ([]string, kubelet.Conditions, error) {
	var nodes []string
	change := kubelet.Conditions{}
	for _, arg := range args {
		text, remove := strings.CutSuffix(arg, "-")
		switch {
		case remove:
			text += "=False"
		case !strings.Contains(arg, "="):
			nodes = append(nodes, arg)
			continue
		}
		one, err := kubelet.ParseConditions(text)
		if err != nil {
			return nil, nil, usagef("%w", err)
		}
		for kind, status := range one {
			healthy := v1.ConditionFalse
			if kind == v1.NodeReady {
				healthy = v1.ConditionTrue
			}
			if remove || status == healthy {
				status = ""
			}
			change[kind] = status
		}
	}

	if len(change) == 0 {
		return nil, nil, usagef("name a condition, such as MemoryPressure=True")
	}
	return nodes, change, nil
}

func selectionFlags(cmd *cobra.Command, to *connection, which *simnodes.Selection) {
	flags := cmd.Flags()
	flags.StringSliceVar(&which.Names, "node", nil, "a node (repeatable)")
	flags.StringSliceVar(&which.Zones, "zone", nil, "all simulated nodes of a zone (repeatable)")
	nodes := func(cmd *cobra.Command, _ []string, toComplete string) ([]string, cobra.ShellCompDirective) {
		q := question{connection: *to, userAgent: "nodes"}
		return withPrefix(q.namesOf(cmd, nodeSubject, ""), toComplete), cobra.ShellCompDirectiveNoFileComp
	}
	mustSucceed(cmd.RegisterFlagCompletionFunc("node", nodes))
	cmd.ValidArgsFunction = nodes
}

// addNamed adds the nodes that arguments name to those of the flags.
func addNamed(which *simnodes.Selection, args []string) error {
	names, err := namesOf(args, nodeWords)
	if err != nil {
		return err
	}
	for _, node := range which.Names {
		name, err := splitName(node, nodeWords...)
		if err != nil {
			return err
		}
		names = append(names, name)
	}
	if len(names)+len(which.Zones) == 0 {
		return usagef("say which nodes: NODE, --node NODE or --zone ZONE")
	}
	which.Names = names
	return nil
}

func newFaults(to *connection) (simnodes.Faults, error) {
	cfg, err := to.restConfig("nodes")
	if err != nil {
		return simnodes.Faults{}, err
	}
	client, err := kubernetes.NewForConfig(withTimeout(cfg))
	return simnodes.Faults{Client: client}, err
}

// printNames names up to ten nodes, and counts more.
func printNames(out io.Writer, names []string, what string) {
	if len(names) > 10 {
		fmt.Fprintf(out, "%d nodes (%s ... %s): %s\n", len(names), names[0], names[len(names)-1], what)
		return
	}
	for _, name := range names {
		fmt.Fprintf(out, "%s: %s\n", name, what)
	}
}
