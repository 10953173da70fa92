// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/berth-k8s/berth/internal/up/kubelet"
)

func newAgentCommand() *cobra.Command {
	if runtime.GOOS != "linux" { // the agent requires features of the Linux kernel
		return &cobra.Command{
			Use: "agent", GroupID: groupParts, Short: "Make this machine a node (Linux only)", Hidden: true, DisableFlagParsing: true,
			RunE: func(*cobra.Command, []string) error { return errors.New("berth agent is supported on Linux only") },
		}
	}

	f := &kubelet.Agent{}
	cmd := &cobra.Command{
		Use:     "agent [flags] [-- KUBELET FLAGS]",
		GroupID: groupParts,
		Short:   "Make this machine a node of a cluster, with upstream's kubelet",
		Args: func(cmd *cobra.Command, args []string) error {
			if at := cmd.ArgsLenAtDash(); len(args) > 0 && at != 0 {
				return usagef("%q: unexpected argument: only the kubelet's flags may follow, after --", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return f.Exec(cmd.Context(), args) },
	}
	f.AddFlags(cmd.Flags())
	return cmd
}
