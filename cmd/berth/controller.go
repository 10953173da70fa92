// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"flag"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/cli/parse"
	"github.com/berth-k8s/berth/internal/controller"
	"github.com/berth-k8s/berth/internal/inspect/exchange"
	"github.com/berth-k8s/berth/internal/kube/connect"
	"github.com/berth-k8s/berth/internal/kube/signals"
)

func newControllerCommand() *cobra.Command {
	var to connect.Flags
	var cost exchange.Options
	options := controller.DefaultOptions()
	cmd := &cobra.Command{
		Use:     "controller",
		GroupID: groupParts,
		Short:   "Node health and taint eviction",
		Args:    parse.None,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := options.Validate()
			if slices.Contains(options.Rebalance.Goals, controller.CostGoal) {
				err = cmp.Or(err, cost.Validate())
			}
			if err != nil {
				return usagef("%w", err)
			}
			cost.Holder = options.Lead.Within()
			cfg, err := to.Config("controller")
			if err != nil {
				return err
			}

			ctx, stop := signals.Until(cmd.Context())
			defer stop()
			c, err := controller.New(cfg, options)
			if err != nil {
				return err
			}
			if address := c.Address(); address != "" {
				fmt.Fprintf(cmd.ErrOrStderr(), "health and metrics on http://%s\n", address)
			}
			fmt.Fprintln(cmd.OutOrStdout(), "ready")
			return c.Run(ctx)
		},
	}
	to.AddFlags(cmd.Flags())
	options.AddFlags(cmd.Flags())
	options.Rebalance.Exchange = cost.Run
	cost.AddFlags(cmd.Flags(), "rebalance, goal cost: ", 30*time.Second)
	addVerbosity(cmd)
	return cmd
}

// addVerbosity adds klog's -v.
func addVerbosity(cmd *cobra.Command) {
	all := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(all)
	cmd.Flags().AddGoFlag(all.Lookup("v"))
}
