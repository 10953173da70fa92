// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/berth-k8s/berth/internal/cli/parse"
	"github.com/berth-k8s/berth/internal/kube/signals"
	"github.com/berth-k8s/berth/internal/queryserver"
)

func newServeCommand() *cobra.Command {
	p := pageFlags{}
	options := queryserver.Defaults()
	cmd := &cobra.Command{
		Use:     "serve",
		GroupID: groupParts,
		Short:   "Answer the questions of other programs over gRPC and HTTP/JSON",
		Args:    parse.None,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if options.Running, err = p.runningSource(cmd); err != nil {
				return err
			}
			cfg, err := p.cluster.Config("berth-serve")
			if err != nil {
				return err
			}
			// Fewer collections of a heap that changes little: each delays the questions meanwhile.
			if os.Getenv("GOGC") == "" {
				debug.SetGCPercent(200)
			}
			// Go's scheduler lets a long question run for 10 ms before others. With
			// more threads than processors, the operating system switches sooner.
			if os.Getenv("GOMAXPROCS") == "" {
				runtime.GOMAXPROCS(2 * runtime.GOMAXPROCS(0))
			}
			options.Parse = parseOnPage
			options.Parsed(cmd.Flags())
			server, err := queryserver.Listen(cfg, options)
			if err != nil {
				return err
			}
			ctx, stop := signals.Until(cmd.Context())
			defer stop()
			fmt.Fprintf(cmd.OutOrStdout(), "ready %s\n", server.URLs()[0])
			server.Run(ctx)
			return nil
		},
	}
	p.addSchedulerFlags(cmd.Flags())
	p.cluster.AddFlags(cmd.Flags())
	options.AddFlags(cmd.Flags())
	addVerbosity(cmd)
	return cmd
}
