// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/cli/print"
	"github.com/berth-k8s/berth/internal/cli/query"
	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/internal/controller/rebalance/movecontroller"
	"github.com/berth-k8s/berth/internal/engine/config"
)

// rollFlags lists the flags valid only with --roll.
var rollFlags = []string{"max-unavailable", "uncordon-when", "wait-for-new", "restart", "output"}

func (d *drain) addRollFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&d.roll, "roll", "", "roll the nodes with these labels: drain them in turn, wait for each, and open it again")
	flags.StringVar(&d.maxUnavailable, "max-unavailable", "1",
		"with --roll, how many nodes of a zone are drained at the same time: a number, or a percentage of all of them, "+
			"rounded down, at least 1")
	flags.StringVar(&d.uncordonWhen, "uncordon-when", "",
		"with --roll, uncordon a node when it is Ready (it has restarted since it was drained, and is ready again) or "+
			"drained (immediately, to try it)")
	flags.BoolVar(&d.waitForNew, "wait-for-new", false,
		"with --roll, continue when another node has replaced the drained one, and is ready")
	flags.BoolVar(&d.restart, "restart", false, "with --roll, start over if an earlier roll was not finished")
	flags.StringVarP(&d.Output, "output", "o", "", "with --roll, "+print.FormatsUsage(answer.Formats))
	query.CompleteChoices(cmd, "uncordon-when", "Ready", "drained")
}

// rollOptions returns the options of a roll.
func (d *drain) rollOptions(args []string) (o execute.RollOptions, err error) {
	o.Restart = d.restart
	switch {
	case len(args) > 0 || d.selector != "":
		return o, usagef("--roll %s: selects the nodes, and cannot be used with node names or --selector", d.roll)
	case d.dryRun != "none" && d.dryRun != "client":
		return o, usagef("--dry-run %q: must be none or client with --roll", d.dryRun)
	case d.waitForNew && d.uncordonWhen != "":
		return o, usagef("--wait-for-new and --uncordon-when: cannot be used together")
	case d.waitForNew:
		o.Until = execute.UntilNew
	case strings.EqualFold(d.uncordonWhen, string(execute.UntilReady)):
		o.Until = execute.UntilReady
	case d.uncordonWhen == string(execute.UntilDrained):
		o.Until = execute.UntilDrained
	case d.uncordonWhen != "":
		return o, usagef("--uncordon-when %q: must be Ready or drained", d.uncordonWhen)
	case d.dryRun == "none":
		return o, usagef("--roll %s: requires --uncordon-when Ready, --wait-for-new or --uncordon-when drained", d.roll)
	}

	if o.Selector, err = labels.Parse(d.roll); err != nil {
		return o, usagef("--roll %q: %w", d.roll, err)
	}
	if err := print.CheckFormat(d.Output, answer.Formats); err != nil {
		return o, err
	}

	count := intstr.Parse(d.maxUnavailable)
	if n, err := intstr.GetScaledValueFromIntOrPercent(&count, 100, false); err != nil || n < 1 {
		return o, usagef("--max-unavailable %q: must be a number of nodes, at least 1, or a percentage", d.maxUnavailable)
	}

	o.AtOnce = func(nodes int) int {
		n, _ := intstr.GetScaledValueFromIntOrPercent(&count, nodes, false)
		return max(n, 1)
	}
	return o, nil
}

// runRoll rolls the nodes selected by --roll.
func (d *drain) runRoll(cmd *cobra.Command, args []string) error {
	options, err := d.rollOptions(args)
	if err != nil {
		return err
	}
	d.selector = d.roll
	client, running, err := d.prepareDrain(cmd, nil)
	if err != nil {
		return err
	}
	options.DrainOptions = d.options

	progress := cmd.OutOrStdout() // if a document is written to stdout, progress goes to stderr
	if d.Output != "" {
		progress = cmd.ErrOrStderr()
	}
	var plan *rebalance.RollAnswer
	ended, err := roll(cmd, client, running, options, progress, func(planned *rebalance.Roll) {
		if plan = planned.Answer(); d.Output == "" {
			_ = plan.Write(progress, "") // ignore errors: a failure to print the plan must not prevent the roll
		}
	})
	if err != nil {
		return err
	}
	return d.writeRolled(cmd.OutOrStdout(), plan, ended)
}

// roll rolls or exchanges nodes, and prints the progress. planned receives the plan of the whole
// roll.
func roll(cmd *cobra.Command, client kubernetes.Interface, running *config.Running, options execute.RollOptions, progress io.Writer,
	planned func(*rebalance.Roll)) (ended *execute.RollDone, err error) {
	returned, err := carryOut(cmd, "reading the cluster and planning", "stopping: no more pods are evicted", func(_ context.Context,
		c *carrying) mover {
		return movecontroller.NewRoller(client, running.Profiles, options, func(a execute.DrainProgress) { print.PrintLine(progress, a.Line()) },
			func(a execute.RollProgress) {
				c.meter.Clear()
				if a.Plan == nil {
					print.PrintLine(progress, a.Line())
				} else {
					planned(a.Plan)
				}
			}, func(a execute.RollDone) { ended = &a; c.end() })
	})
	if err == nil && (!returned || ended == nil) {
		err = errors.New("stopped: the nodes stay as they are; run the same command again to continue")
	}
	return ended, err
}

// writeRolled writes the outcome of a roll.
func (d *drain) writeRolled(out io.Writer, plan *rebalance.RollAnswer, ended *execute.RollDone) error {
	if plan != nil && d.Output != "" {
		if !d.options.DryRun {
			plan.Result = &rebalance.RollResult{Rolled: ended.Done, Evicted: ended.Evicted, InTurn: ended.Turn, Stopped: ended.Stopped}
		}
		if err := plan.Write(out, d.Output); err != nil {
			return err
		}
	}

	switch {
	case ended.Stopped != "" && len(ended.Turn) > 0:
		return fmt.Errorf("not rolled: %s; %d of %d nodes are done, and %s cordoned; run the same command to continue, or berth "+
			"uncordon -l %q to abandon the roll", ended.Stopped, ended.Done, ended.Nodes, strings.Join(ended.Turn, ", ")+
			map[bool]string{true: " is", false: " are"}[len(ended.Turn) == 1], d.roll)
	case ended.Stopped != "" && ended.Done > 0:
		return fmt.Errorf("not rolled: %s; %d of %d nodes are done; run the same command to continue, or berth uncordon -l %q to "+
			"abandon the roll",
			ended.Stopped, ended.Done, ended.Nodes, d.roll)
	case ended.Stopped != "":
		return fmt.Errorf("not rolled: %s; no node is done", ended.Stopped)
	case d.Output != "":
	case d.options.DryRun:
		fmt.Fprintln(out, "Nothing was changed (dry run).")
	default:
		fmt.Fprintf(out, "%s rolled, %s moved\n", answer.Count(ended.Nodes, "node"), answer.Count(ended.Evicted, "pod"))
	}

	return nil
}
