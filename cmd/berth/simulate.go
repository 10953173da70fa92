// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-k8s/berth/internal/cli/parse"
	"github.com/berth-k8s/berth/internal/cli/print"
	"github.com/berth-k8s/berth/internal/cli/query"
	"github.com/berth-k8s/berth/internal/controller/nodehealth"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/scheduler/options"
)

// simulation holds the flags of berth simulate.
type simulation struct {
	query.Question
	explain  bool
	gentle   options.Gentle
	time     time.Duration
	scenario string
	grace    time.Duration
}

func newSimulateCommand() *cobra.Command {
	var s simulation
	cmd := &cobra.Command{
		Use:     "simulate -f FILE|DIR|-",
		GroupID: groupAsk,
		Short:   "Where pods would go, offline, from manifests",
		Args:    parse.None,
		RunE:    func(cmd *cobra.Command, _ []string) error { return s.runSimulation(cmd) },
	}
	flags := cmd.Flags()
	s.AddFileFlags(flags, "a file or folder of manifests, or - for standard input (repeatable)",
		"a folder with a kustomization, whose output is read (repeatable)")

	flags.BoolVar(&s.Strict, "strict", false, "refuse pods that are bound to a node that the manifests do not have")
	flags.StringVar(&s.Config, "config", "", "the scheduler's configuration file, as for kube-scheduler")
	s.gentle.AddFlags(flags)
	flags.BoolVar(&s.explain, "explain", false, "add the verdict of every plugin on every node")
	flags.DurationVar(&s.time, "for", 0, "how much time passes after scheduling, such as 10m")
	flags.StringVar(&s.scenario, "scenario", "", "a file with operations and the times at which they happen")
	flags.DurationVar(&s.grace, "node-monitor-grace-period", nodehealth.Defaults().MonitorGracePeriod,
		"how long a node may be silent before it is unreachable")
	flags.StringVarP(&s.Output, "output", "o", "", print.FormatsUsage(drawnFormats)+". svg needs --scenario")
	return cmd
}

// drawnFormats adds svg for commands that draw a timeline or a plan.
var drawnFormats = append(slices.Clone(print.Formats), "svg")

func (s *simulation) runSimulation(cmd *cobra.Command) error {
	switch {
	case len(s.Files) == 0:
		return usagef("no manifests given: use -f FILE, -f DIR, -f - or -k DIR")
	case s.Output == "svg" && s.scenario == "":
		return usagef("--output svg: draws what happens in a --scenario")
	case s.grace < 20*time.Second:
		return usagef("--node-monitor-grace-period %s: must be 20s or more, because nodes renew their Leases every 10s", s.grace)
	case s.time < 0:
		return usagef("--for %s: must not be negative", s.time)
	}
	if err := s.gentle.Validate(); err != nil {
		return usagef("%w", err)
	}
	if err := print.CheckFormat(s.Output, drawnFormats); err != nil {
		return err
	}
	if err := s.Prepare(cmd); err != nil {
		return err
	}
	scenario, err := s.readScenario()
	if err != nil {
		return err
	}

	s.Meter.Begin(cmd.ErrOrStderr(), "reading")
	defer s.Meter.End()
	set, source, err := s.ReadFiles(cmd)
	if err != nil {
		return err
	}
	options, err := s.Options(cmd, set, &source)
	if err != nil {
		return err
	}
	if err := s.gentle.Apply(options.Profiles); err != nil {
		return usagef("%w", err)
	}
	options.Explain, options.For, options.Scenario, options.Discard = s.explain, s.time, scenario, scenario == nil
	options.Health, options.Progress = nodehealth.Defaults(), s.Meter.Pods
	options.Health.MonitorGracePeriod = s.grace

	s.Meter.Begin(cmd.ErrOrStderr(), "simulating")
	answer, err := simulate.Run(set, *options)
	s.Meter.End()
	if err != nil {
		return err
	}
	query.PrintIgnored(cmd.ErrOrStderr(), set)
	answer.Assumed = source.Assumed
	return s.Write(cmd, answer)
}

// readScenario reads the scenario's events, and its duration unless a flag sets it.
func (s *simulation) readScenario() (*simulate.Scenario, error) {
	if s.scenario == "" {
		return nil, nil
	}
	scenario, err := simulate.ReadScenario(s.scenario)
	if err != nil {
		return nil, err
	}
	switch {
	case s.time > 0:
	case scenario.For != nil && scenario.For.Duration > 0:
		s.time = scenario.For.Duration
	default:
		s.time = scenario.Ends() + afterTheLast
	}
	return scenario, nil
}

// afterTheLast is the default duration after the last step: evictions begin 300 s after the loss of
// a node.
const afterTheLast = 10 * time.Minute
