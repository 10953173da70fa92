// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/cli/parse"
	"github.com/berth-k8s/berth/internal/cli/print"
	"github.com/berth-k8s/berth/internal/cli/query"
	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/internal/controller/rebalance/movecontroller"
	"github.com/berth-k8s/berth/internal/inspect/exchange"
	"github.com/berth-k8s/berth/internal/inspect/provision"
	"github.com/berth-k8s/berth/internal/inspect/whatif"
)

// costing holds the flags of berth rebalance cost.
type costing struct {
	query.Question
	exchange.Options
	failOn  string
	execute bool
}

func newCostCommand() *cobra.Command {
	c := costing{Question: query.Question{UserAgent: "berth-rebalance", DropManagedFields: true}}
	cmd := &cobra.Command{
		Use:   "cost --catalog FILE...",
		Short: "Fewer and cheaper nodes for everything that runs or is pending",
		Args:  parse.None,
		RunE:  func(cmd *cobra.Command, _ []string) error { return c.runCost(cmd) },
	}
	flags := cmd.Flags()
	c.Question.AddFlags(flags)
	c.Options.AddFlags(flags, "", 0)
	flags.Lookup("output").Usage = print.FormatsUsage(drawnFormats)
	flags.StringVar(&c.failOn, "fail-on", "", "exit with code 3 if at least this amount can be saved per month: savings=AMOUNT")
	flags.BoolVar(&c.execute, "execute", false, "carry out the plan: create NodeClaims, move the pods, delete the old NodeClaims")
	flags.BoolVar(&c.Surge, "surge", false,
		"with --execute, have one more replica ready before a pod of a Deployment or ReplicaSet leaves, where that is possible")
	query.CompleteChoices(cmd, "fail-on", savings)
	return cmd
}

const savings = "savings="

func (c *costing) runCost(cmd *cobra.Command) error {
	if err := print.CheckFormat(c.Output, drawnFormats); err != nil {
		return err
	}
	text, ok := strings.CutPrefix(c.failOn, savings)
	least, err := strconv.ParseFloat(text, 64)
	if c.failOn != "" && (!ok || err != nil || !(least >= 0)) {
		return usagef("--fail-on %q: must be savings=AMOUNT", c.failOn)
	}
	if err := c.Validate(); err != nil {
		return usagef("%w", err)
	}
	switch {
	case c.Surge && !c.execute:
		return usagef("--surge: requires --execute")
	case c.execute && (len(c.Files) > 0 || c.At != "" || c.Output != "" || c.failOn != ""):
		return usagef("--execute: cannot be used with -f, --at, -o or --fail-on")
	}

	if !c.execute {
		plan, err := c.plan(cmd)
		if err != nil || c.failOn == "" {
			return err
		}
		return print.Held([]string{c.failOn}, func(string) bool { return plan.Replaced.Month >= least && len(plan.Replaced.Exchanges) > 0 })
	}
	if err := c.Prepare(cmd); err != nil {
		return err
	}
	config, err := c.Cluster.Config(c.UserAgent)
	if err != nil {
		return err
	}
	query.RaiseRateLimit(config)
	return c.Execute(cmd.Context(), config, func(holder string) {
		print.Line(cmd.ErrOrStderr(), "waiting until %s releases Lease kube-system/%s or stops renewing it", holder, movecontroller.ExchangeLease)
	}, func(ctx context.Context) (*provision.Plan, error) {
		return c.plan(cmd)
	}, func(ctx context.Context, client kubernetes.Interface, options execute.RollOptions) error {
		cmd.SetContext(ctx)
		return c.exchange(cmd, client, options)
	})
}

// plan makes and prints a plan.
func (c *costing) plan(cmd *cobra.Command) (*provision.Plan, error) {
	readCatalog := provision.ReadAside(c.Catalog, cmd.InOrStdin())
	c.Unseen, c.ForPlans = true, true
	w, source, err := c.ReadWorld(cmd)
	catalog, failed := readCatalog()
	if err := cmp.Or(failed, err); err != nil {
		return nil, err
	}
	c.Meter.Begin(cmd.ErrOrStderr(), "planning nodes")
	forecast, err := c.Plan(w, catalog, whatif.Options{Source: source,
		Planning: func(words string) { c.Meter.Words("planning nodes: " + words) },
	})
	c.Meter.End()
	if err != nil {
		return nil, err
	}
	return forecast.Provision, c.Write(cmd, costPlan{forecast})
}

// exchange makes one exchange, and prints the progress.
func (c *costing) exchange(cmd *cobra.Command, client kubernetes.Interface, options execute.RollOptions) error {
	running, err := c.RunningIn(cmd, client, false)
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	ended, err := roll(cmd, client, running, options, out, func(*rebalance.Roll) {})
	switch {
	case err != nil:
		return err
	case ended.Stopped != "":
		return fmt.Errorf("not exchanged: %s; %d of %d nodes are removed; run the same command again to plan the rest anew",
			ended.Stopped, ended.Done, ended.Nodes)
	case ended.Nodes > 0:
		fmt.Fprintf(out, "%s exchanged, %s moved\n", answer.Count(ended.Nodes, "node"), answer.Count(ended.Evicted, "pod"))
	}
	return nil
}

// costPlan is a forecast whose text is only its plan of nodes.
type costPlan struct{ *whatif.Forecast }

func (p costPlan) Write(out io.Writer, format string) error {
	if format == "svg" {
		return p.Provision.WriteSVG(out)
	}
	return answer.Write(out, format, p.Forecast, func(text *answer.Page) {
		p.Provision.Print(text, format == "wide")
		for _, note := range p.Notes {
			text.Line("note: %s", note)
		}
	})
}
