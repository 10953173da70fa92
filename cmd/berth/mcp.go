// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/cobra"

	"github.com/berth-k8s/berth/internal/assistant"
	"github.com/berth-k8s/berth/internal/cli/parse"
	"github.com/berth-k8s/berth/internal/kube/signals"
	"github.com/berth-k8s/berth/internal/queryserver"
)

func newMCPCommand() *cobra.Command {
	p := pageFlags{}
	cmd := &cobra.Command{
		Use:     "mcp",
		GroupID: groupAsk,
		Short:   "Offer the questions to an assistant, over the Model Context Protocol",
		Args:    parse.None,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			options := queryserver.Defaults()
			options.Lanes, options.Parse = 1, parseOnPage
			if options.Running, err = p.runningSource(cmd); err != nil {
				return err
			}
			cfg, err := p.cluster.Config("berth-mcp")
			if err != nil {
				return err
			}

			server, err := queryserver.New(cfg, options)
			if err != nil {
				return err
			}
			ctx, stop := signals.Until(cmd.Context())
			var following sync.WaitGroup
			following.Go(func() { server.Follow(ctx) })
			defer following.Wait()
			defer stop()
			err = assistant.New(server, currentVersion().Version).Run(ctx, &mcp.StdioTransport{})
			if ctx.Err() != nil {
				return nil
			}
			return err
		},
	}
	p.addSchedulerFlags(cmd.Flags())
	p.cluster.AddKubectlFlags(cmd.Flags())
	return cmd
}
