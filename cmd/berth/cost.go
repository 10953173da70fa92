// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/cli/parse"
	"github.com/berth-k8s/berth/internal/cli/print"
	"github.com/berth-k8s/berth/internal/cli/query"
	"github.com/berth-k8s/berth/internal/inspect/provision"
	"github.com/berth-k8s/berth/internal/inspect/whatif"
)

// costing holds the flags of berth rebalance cost.
type costing struct {
	query.Question
	catalog    []string
	spotShare  float64
	maxMoves   int
	minSavings float64
	horizon    time.Duration
	failOn     string
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
	c.AddFlags(flags)
	flags.StringSliceVar(&c.catalog, "catalog", nil, "files with the nodes that can be bought (required)")
	flags.Float64Var(&c.spotShare, "spot-share", 1, "maximum share of spot nodes in all CPU: from 0 to 1")
	flags.IntVar(&c.maxMoves, "max-moves", 0, "maximum number of pods to move (0: unlimited)")
	flags.Float64Var(&c.minSavings, "min-savings", 0, "smallest saving per hour for which nodes are exchanged")
	flags.DurationVar(&c.horizon, "horizon", provision.DefaultHorizon, "time in which an exchange must save more than its moves cost")
	flags.StringVar(&c.failOn, "fail-on", "", "exit with code 3 if at least this amount can be saved per month: savings=AMOUNT")
	query.CompleteChoices(cmd, "fail-on", savings)
	return cmd
}

const savings = "savings="

func (c *costing) runCost(cmd *cobra.Command) error {
	if err := print.CheckFormat(c.Output, print.Formats); err != nil {
		return err
	}
	text, ok := strings.CutPrefix(c.failOn, savings)
	least, err := strconv.ParseFloat(text, 64)
	switch {
	case c.failOn != "" && (!ok || err != nil || !(least >= 0)):
		return usagef("--fail-on %q: must be savings=AMOUNT", c.failOn)
	case len(c.catalog) == 0:
		return usagef("--catalog: required: the files with the nodes that can be bought")
	case !(c.spotShare >= 0 && c.spotShare <= 1):
		return usagef("--spot-share %v: must be from 0 to 1", c.spotShare)
	case c.maxMoves < 0:
		return usagef("--max-moves %d: must not be negative", c.maxMoves)
	case !(c.minSavings >= 0):
		return usagef("--min-savings %v: must not be negative", c.minSavings)
	case c.horizon <= 0:
		return usagef("--horizon %s: must be positive", c.horizon)
	}
	readCatalog := provision.ReadAside(c.catalog, cmd.InOrStdin())
	c.Unseen, c.NodePools = true, true
	w, source, err := c.ReadWorld(cmd)
	catalog, failed := readCatalog()
	if err := cmp.Or(failed, err); err != nil {
		return err
	}
	step := whatif.Step{Words: "rebalance cost --catalog " + strings.Join(c.catalog, ","), Catalog: catalog, Replace: true,
		MaxMoves: c.maxMoves, MinSavings: c.minSavings, Horizon: c.horizon}
	if cmd.Flags().Changed("spot-share") {
		step.Spot = &c.spotShare
	}
	c.Meter.Begin(cmd.ErrOrStderr(), "planning nodes")
	plan, err := whatif.Run(w, []whatif.Step{step}, whatif.Options{Source: source,
		Planning: func(words string) { c.Meter.Words("planning nodes: " + words) },
	})
	c.Meter.End()
	if err != nil {
		return err
	}
	if err := c.Write(cmd, costPlan{plan}); err != nil {
		return err
	}
	if c.failOn == "" {
		return nil
	}
	return print.Held([]string{c.failOn}, func(string) bool {
		r := plan.Provision.Replaced
		return r != nil && r.Month >= least && len(r.Exchanges) > 0
	})
}

// costPlan is a forecast whose text is only its plan of nodes.
type costPlan struct{ *whatif.Forecast }

func (p costPlan) Write(out io.Writer, format string) error {
	return answer.Write(out, format, p.Forecast, func(text *answer.Page) { p.Provision.Print(text, format == "wide") })
}
