// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/kube/signals"
	"github.com/berth-k8s/berth/internal/scheduler/options"
	"github.com/berth-k8s/berth/internal/scheduler/outoftree"
	"github.com/berth-k8s/berth/internal/usage"
)

// PluginFactory creates a plugin, like kube-scheduler's factories. args holds the plugin's
// arguments from the profile's pluginConfig: a *runtime.Unknown with the JSON of the file.
type PluginFactory = outoftree.Factory

// Option adds a compiled-in extension to the program.
type Option func(*command)

// WithPlugin adds a plugin written against k8s.io/kube-scheduler/framework. Configuration files
// enable it by its name.
func WithPlugin(name string, factory PluginFactory) Option {
	return func(c *command) { c.addPlugin(name, factory) }
}

// WithPodsToActivate lets a plugin activate other pods, via CycleState, when its pod gets a node,
// as scheduler-plugins' Coscheduling does. create is NewPodsToActivate of
// k8s.io/kubernetes/pkg/scheduler/framework, which such plugins import.
func WithPodsToActivate[T framework.StateData](create func() T) Option {
	return func(c *command) {
		c.podsToActivate = func() framework.StateData { return create() }
		if made := create(); !outoftree.ActivatesBy(made) {
			c.wrong = fmt.Errorf("WithPodsToActivate: %T has no lock or no field Map map[string]*v1.Pod", made)
		}
	}
}

// UsageError is an error in the command line. Programs exit with code 2.
type UsageError = usage.Error

// command holds the compiled-in plugins, and the flags and streams of the command line.
type command struct {
	flags     *options.Flags
	factories map[string]PluginFactory
	wrong     error // first error of the options
	// podsToActivate creates the CycleState entry through which plugins name pods to activate; nil
	// disables activation.
	podsToActivate func() framework.StateData
	out, err       io.Writer
}

// NewCommand returns the command `scheduler` for a program with compiled-in plugins.
func NewCommand(opts ...Option) *cobra.Command {
	c := &command{factories: map[string]PluginFactory{}}
	for _, option := range opts {
		option(c)
	}
	cmd := &cobra.Command{
		Use:   "scheduler",
		Short: "The scheduler, in place of kube-scheduler",
		Long: `Assign pending pods to nodes: every pod gets the best of all nodes. A pod that
fits nowhere gets the reason (event FailedScheduling, condition PodScheduled),
preempts pods of lower priority where that helps, and is retried when something
happens that can help.

Configuration files and flags are kube-scheduler's. The file is watched while
the scheduler runs: a valid change takes effect between two pods, an invalid one
is refused with an event. Replicas elect a leader.

With --shadow the scheduler writes nothing: it compares what another scheduler
chooses for the same pods with the best node, and reports the differences.`,
		Example: `  berth scheduler
  berth scheduler --config scheduler.yaml --leader-elect=false
  berth scheduler --policy-config-file policy.json --write-config-to -
  berth scheduler --shadow --shadow-report report.json
  berth scheduler --secure-port 0 --health-bind-address 127.0.0.1:10251`,
		Args:         func(cmd *cobra.Command, args []string) error { return usage.Of(cobra.NoArgs(cmd, args)) },
		SilenceUsage: true,
		RunE:         func(cmd *cobra.Command, _ []string) error { return c.runCommand(cmd) },
	}
	c.flags = options.Add(cmd.Flags())
	return cmd
}

func (c *command) addPlugin(name string, factory PluginFactory) {
	switch _, twice := c.factories[name]; {
	case name == "" || factory == nil:
		c.wrong = errors.New("WithPlugin: needs a name and a factory")
	case twice:
		c.wrong = fmt.Errorf("a plugin named %s already exists", name)
	case ownPlugin(name):
		c.wrong = fmt.Errorf("a plugin named %s already exists: it is one of Berth's own", name)
	}
	c.factories[name] = factory
}

func (c *command) runCommand(cmd *cobra.Command) error {
	c.out, c.err = cmd.OutOrStdout(), cmd.ErrOrStderr()
	if c.wrong != nil {
		return usage.Of(c.wrong)
	}
	if err := c.flags.Validate(); err != nil {
		return usage.Of(err)
	}

	logsapi.ReapplyHandling = logsapi.ReapplyHandlingIgnoreUnchanged
	if err := logsapi.ValidateAndApply(c.flags.Logs, nil); err != nil {
		return usage.Of(err)
	}

	if c.flags.MetricsChosen() {
		c.flags.Metrics.Apply()
	}
	for _, note := range c.flags.Notes() {
		fmt.Fprintln(c.err, note)
	}

	ctx, stop := signals.Until(cmd.Context())
	defer stop()
	return c.runScheduler(ctx)
}

// Main is the main function of a scheduler program, with or without compiled-in plugins. It returns
// the exit code: 0 after a requested shutdown, 1 for a failure, 2 for wrong usage. Errors are one
// line on standard error.
func Main(opts ...Option) int {
	cmd := NewCommand(opts...)
	cmd.Use = filepath.Base(os.Args[0])
	cmd.Example = strings.ReplaceAll(cmd.Example, "berth scheduler", cmd.Use)
	return executeCommand(cmd, os.Args[1:], os.Stdout, os.Stderr)
}

func executeCommand(cmd *cobra.Command, args []string, stdout, stderr io.Writer) int {
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	cmd.SilenceErrors = true
	cmd.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usage.Errorf("%w (see %s --help)", err, c.CommandPath())
	})
	err := cmd.ExecuteContext(context.Background())
	if err == nil {
		return 0
	}
	fmt.Fprintf(stderr, "%s: %s\n", cmd.Name(), strings.Join(strings.Fields(err.Error()), " "))
	if usage.IsError(err) {
		return usage.ExitCode
	}
	return 1
}
