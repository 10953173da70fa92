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
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/cli/parse"
	"github.com/berth-k8s/berth/internal/cli/print"
	"github.com/berth-k8s/berth/internal/cli/query"
	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/internal/controller/rebalance/movecontroller"
	"github.com/berth-k8s/berth/internal/inspect/provision"
	"github.com/berth-k8s/berth/internal/inspect/whatif"
	"github.com/berth-k8s/berth/internal/world/disruption"
)

// costing holds the flags of berth rebalance cost.
type costing struct {
	query.Question
	limits    provision.Options
	catalog   []string
	spotShare float64
	failOn    string
	execute   bool
	surge     bool
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
	flags.IntVar(&c.limits.MaxMoves, "max-moves", 0, "maximum number of pods to move (0: unlimited)")
	flags.Float64Var(&c.limits.MinSavings, "min-savings", 0, "smallest saving per hour for which nodes are exchanged")
	flags.DurationVar(&c.limits.Horizon, "horizon", provision.DefaultHorizon, "time in which an exchange must save more than its moves cost")
	flags.StringVar(&c.failOn, "fail-on", "", "exit with code 3 if at least this amount can be saved per month: savings=AMOUNT")
	flags.BoolVar(&c.execute, "execute", false, "carry out the plan: create NodeClaims, move the pods, delete the old NodeClaims")
	flags.BoolVar(&c.surge, "surge", false,
		"with --execute, have one more replica ready before a pod of a Deployment or ReplicaSet leaves, where that is possible")
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
	case c.limits.MaxMoves < 0:
		return usagef("--max-moves %d: must not be negative", c.limits.MaxMoves)
	case !(c.limits.MinSavings >= 0):
		return usagef("--min-savings %v: must not be negative", c.limits.MinSavings)
	case c.limits.Horizon <= 0:
		return usagef("--horizon %s: must be positive", c.limits.Horizon)
	case c.surge && !c.execute:
		return usagef("--surge: requires --execute")
	case c.execute && (len(c.Files) > 0 || c.At != "" || c.Output != "" || c.failOn != ""):
		return usagef("--execute: cannot be used with -f, --at, -o or --fail-on")
	}
	if !c.execute {
		return c.plan(cmd, least, nil)
	}
	if err := c.Prepare(cmd); err != nil {
		return err
	}
	config, err := c.Cluster.Config(c.UserAgent)
	if err != nil {
		return err
	}
	query.RaiseRateLimit(config)
	return movecontroller.Exclusively(cmd.Context(), config, func(holder string) {
		print.Line(cmd.ErrOrStderr(), "waiting until %s releases Lease kube-system/%s or stops renewing it", holder, movecontroller.ExchangeLease)
	}, func(ctx context.Context, client kubernetes.Interface) error {
		cmd.SetContext(ctx)
		// An earlier exchange may be unfinished, and changes the plan.
		if err := c.exchange(cmd, client, nil, nil); err != nil {
			return err
		}
		return c.plan(cmd, least, client)
	})
}

// plan makes and prints a plan. With a client, it also carries out the plan.
func (c *costing) plan(cmd *cobra.Command, least float64, client kubernetes.Interface) error {
	readCatalog := provision.ReadAside(c.catalog, cmd.InOrStdin())
	c.Unseen, c.NodePools = true, true
	w, source, err := c.ReadWorld(cmd)
	catalog, failed := readCatalog()
	if err := cmp.Or(failed, err); err != nil {
		return err
	}
	if cmd.Flags().Changed("spot-share") {
		c.limits.Spot = &c.spotShare
	}
	words := "rebalance cost --catalog " + strings.Join(c.catalog, ",")
	step := whatif.Step{Words: words, Catalog: catalog, Replace: true, Provision: c.limits}
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
	if c.execute && plan.Provision.Replaced != nil {
		return c.carryOut(cmd, client, plan.Provision)
	}
	if c.failOn == "" {
		return nil
	}
	return print.Held([]string{c.failOn}, func(string) bool {
		r := plan.Provision.Replaced
		return r != nil && r.Month >= least && len(r.Exchanges) > 0
	})
}

// carryOut makes the exchanges of a plan, in order. Each is proved again in the cluster before a
// pod leaves; the first that cannot be completed ends the command.
func (c *costing) carryOut(cmd *cobra.Command, client kubernetes.Interface, plan *provision.Plan) error {
	began := strconv.FormatInt(time.Now().Unix(), 36)
	for i := range plan.Replaced.Exchanges {
		e := &plan.Replaced.Exchanges[i]
		claims, err := plan.Claims(e, fmt.Sprintf("-%s-%d", began, i))
		if err == nil {
			err = c.exchange(cmd, client, e.Gone, claims)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Limits of an exchange in progress: the largest share of its nodes that are drained together, and
// the time in which they must be empty.
const (
	exchangedTogether = 0.1
	exchangeTime      = 30 * time.Minute
)

// exchange creates NodeClaims, moves the pods of the nodes, and removes the nodes. Without nodes,
// it finishes an exchange begun by an earlier process.
func (c *costing) exchange(cmd *cobra.Command, client kubernetes.Interface, nodes []string, claims map[string][]byte) error {
	running, err := c.RunningIn(cmd, client, false)
	if err != nil {
		return err
	}
	options := execute.RollOptions{
		DrainOptions: execute.DrainOptions{Timeout: exchangeTime, Leaving: rebalance.Leaving{Nodes: nodes, Surge: c.surge,
			DrainRules: disruption.DrainRules{IgnoreDaemonSets: true, DeleteEmptyDirData: true, Undisturbed: true}}},
		Until: execute.UntilRemoved, Buy: claims,
		AtOnce: func(nodes int) int { return max(int(exchangedTogether*float64(nodes)), 1) },
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
	return answer.Write(out, format, p.Forecast, func(text *answer.Page) { p.Provision.Print(text, format == "wide") })
}
