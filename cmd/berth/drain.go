// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/cli/parse"
	"github.com/berth-k8s/berth/internal/cli/print"
	"github.com/berth-k8s/berth/internal/cli/query"
	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/internal/controller/rebalance/movecontroller"
	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/kube/connect"
)

// drain holds the flags of berth drain.
type drain struct {
	query.Question        // provides completion, the connection and the configuration
	options               execute.DrainOptions
	selector, podSelector string
	grace                 int64
	overdue               int
	dryRun                string

	roll                         string // the selector of the nodes to roll; "": none
	maxUnavailable, uncordonWhen string
	waitForNew, restart          bool
}

func newDrainCommand() *cobra.Command {
	d := &drain{Question: query.Question{UserAgent: "berth-drain"}}
	cmd := &cobra.Command{
		Use:               "drain NODE...",
		GroupID:           groupOthers,
		Short:             "Drain nodes like kubectl drain, after deciding where their pods go",
		ValidArgsFunction: d.Nodes,
		RunE:              d.runDrain,
	}
	flags := cmd.Flags()
	o := &d.options
	flags.BoolVar(&o.IgnoreDaemonSets, "ignore-daemonsets", false,
		"leave pods of DaemonSets alone, instead of refusing to begin because of them")

	flags.BoolVar(&o.DeleteEmptyDirData, "delete-emptydir-data", false, "also evict pods with emptyDir volumes: their data is lost")
	flags.BoolVar(&o.Force, "force", false, "also evict pods without a controller: they are lost")
	flags.BoolVar(&o.Delete, "disable-eviction", false, "delete pods instead of evicting them, bypassing disruption budgets")
	flags.BoolVar(&o.AllowPending, "allow-pending", false, "continue even if successors find no other node")
	flags.BoolVar(&o.Surge, "surge", false,
		"have one more replica ready before a pod of a Deployment or ReplicaSet leaves, where that is possible")
	flags.DurationVar(&o.Timeout, "timeout", 0, "give up after this time; 0: never")
	flags.Int64Var(&d.grace, "grace-period", -1, "grace period of each pod in seconds; negative: the pod's own")
	flags.IntVar(&d.overdue, "skip-wait-for-delete-timeout", 0,
		"do not wait for pods whose deletionTimestamp is older than this many seconds; 0: wait")
	flags.Int64("chunk-size", 0, "as in kubectl, without effect: the cluster is read as a whole, in chunks")
	flags.StringVar(&d.podSelector, "pod-selector", "", "only pods with these labels")
	d.addRollFlags(cmd)
	d.AddSchedulerFlags(flags)
	d.addNodeFlags(cmd,
		"client: print the plan and change nothing; server: also ask the API server whether it would evict each pod; none")
	return cmd
}

// addNodeFlags adds the flags selecting the cluster and its nodes, and --dry-run.
func (d *drain) addNodeFlags(cmd *cobra.Command, dryRun string) {
	flags := cmd.Flags()
	flags.StringVarP(&d.selector, "selector", "l", "", "the nodes with these labels, instead of names")
	flags.StringVar(&d.dryRun, "dry-run", "none", dryRun)
	flags.Lookup("dry-run").NoOptDefVal = "client"
	d.Cluster.AddKubectlFlags(flags)
	query.CompleteChoices(cmd, "dry-run", "none", "client", "server")
	d.CompleteFlags(cmd, nil)
}

func (d *drain) runDrain(cmd *cobra.Command, args []string) error {
	if d.roll != "" {
		return d.runRoll(cmd, args)
	}
	if err := d.checkNodes(cmd, args); err != nil {
		return err
	}
	if i := slices.IndexFunc(rollFlags, cmd.Flags().Changed); i >= 0 {
		return usagef("--%s: requires --roll", rollFlags[i])
	}
	client, running, err := d.prepareDrain(cmd, args)
	if err != nil {
		return err
	}
	o := &d.options

	var plan *rebalance.Draining
	var ended *execute.DrainDone
	returned, err := carryOut(cmd, "reading the cluster and planning", "stopping: no more pods are evicted", func(_ context.Context,
		c *carrying) mover {
		return movecontroller.NewDrainer(client, running.Profiles, *o, func(a execute.DrainProgress) {
			c.meter.Clear()
			if a.Plan != nil {
				plan = a.Plan
				_ = plan.Write(cmd.OutOrStdout(), o.Nodes) // ignore errors: a failure to print the plan must not prevent the drain
			} else {
				print.PrintLine(cmd.OutOrStdout(), a.Line())
			}
		}, func(a execute.DrainDone) { ended = &a; c.end() })
	})
	switch {
	case err != nil:
		return err
	case !returned || ended == nil:
		return fmt.Errorf("stopped: the nodes stay cordoned; run the same command again to continue")
	case ended.Stopped != "" && (plan == nil || len(plan.Refused) > 0 && ended.Evicted == 0):
		return fmt.Errorf("not drained: %s", ended.Stopped)
	case ended.Stopped != "" && ended.Left+ended.Ending == 0:
		return fmt.Errorf("the nodes are empty, but the drain is not complete: %s", ended.Stopped)
	case ended.Stopped != "":
		return fmt.Errorf("not drained: %s; %s evicted, %s remaining, %s terminating",
			ended.Stopped, answer.Count(ended.Evicted, "pod"), answer.Count(ended.Left, "pod"), answer.Count(ended.Ending, "pod"))
	case d.dryRun == "server":
		return d.askEvictions(cmd.Context(), cmd.OutOrStdout(), client, plan)
	case o.DryRun:
		fmt.Fprintln(cmd.OutOrStdout(), "Nothing was changed (dry run).")
		return nil
	}
	for _, name := range o.Nodes {
		fmt.Fprintf(cmd.OutOrStdout(), "node/%s drained\n", name)
	}
	return nil
}

// prepareDrain checks the flags, connects, and determines the selected nodes and the running
// scheduler configuration.
func (d *drain) prepareDrain(cmd *cobra.Command, args []string) (kubernetes.Interface, *config.Running, error) {
	switch {
	case d.options.Timeout < 0:
		return nil, nil, usagef("--timeout %s: must not be negative", d.options.Timeout)
	case d.options.Surge && d.options.Delete:
		return nil, nil, usagef("--surge and --disable-eviction: cannot be used together")
	case d.overdue < 0:
		return nil, nil, usagef("--skip-wait-for-delete-timeout %d: must not be negative", d.overdue)
	}
	pods, err := labels.Parse(d.podSelector)
	if err != nil {
		return nil, nil, usagef("--pod-selector %q: %w", d.podSelector, err)
	}
	if err := d.Prepare(cmd); err != nil {
		return nil, nil, err
	}
	client, err := query.NewClient(&d.Cluster, d.UserAgent, query.RaiseRateLimit)
	if err != nil {
		return nil, nil, err
	}

	o := &d.options
	o.Pods, o.DryRun, o.Overdue = pods, d.dryRun != "none", time.Duration(d.overdue)*time.Second
	if d.grace >= 0 {
		o.Grace = &d.grace
	}
	if o.Nodes, err = d.selectNodes(cmd.Context(), client, args); err != nil {
		return nil, nil, connect.WithRemedy(err)
	}
	// Placements require a known configuration. A drain that may leave pods pending does not depend
	// on them, and the first line of a dry run reports the assumed configuration.
	running, err := d.RunningIn(cmd, client, o.AllowPending || o.DryRun)
	if err != nil {
		return nil, nil, err
	}
	return client, running, d.WriteOpening(cmd)
}

// selectNodes returns the named nodes, or the nodes matching the selector.
func (d *drain) selectNodes(ctx context.Context, client kubernetes.Interface, args []string) (names []string, err error) {
	if d.selector != "" {
		list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: d.selector})
		if err != nil {
			return nil, err
		}
		if len(list.Items) == 0 {
			return nil, fmt.Errorf("no node has the labels %s", d.selector)
		}
		return answer.Mapped(list.Items, func(n v1.Node) string { return n.Name }), nil
	}

	if names, err = parse.Node.NamesOf(args); err != nil {
		return nil, err
	}
	for _, name := range names {
		if _, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}); err != nil {
			return nil, err
		}
	}

	return names, nil
}

// askEvictions requests a dry-run eviction of each pod from the API server. It returns an error if
// the server would refuse one now.
func (d *drain) askEvictions(ctx context.Context, out io.Writer, client kubernetes.Interface, plan *rebalance.Draining) error {
	refused := 0
	for i := range plan.Pods {
		p := &plan.Pods[i]
		options := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(p.UID)),
			GracePeriodSeconds: d.options.Grace, DryRun: []string{metav1.DryRunAll}}
		if err := movecontroller.Evict(ctx, client, p.Namespace, p.Name, &options, d.options.Delete, false); err != nil {
			print.Line(out, "%s/%s: would be refused: %v", p.Namespace, p.Name, err)
			refused++
		}
	}
	fmt.Fprintln(out, "Nothing was changed (server dry run).")
	if refused > 0 {
		return fmt.Errorf("the API server would refuse to evict %d of %s", refused, answer.Count(len(plan.Pods), "pod"))
	}
	return nil
}

// mover moves pods. After Stop it starts no further moves, and Run returns once the started ones
// are done.
type mover interface {
	Stop()
	Run(ctx context.Context) error
}

// carrying is one run of a mover. The meter shows its progress until the first message.
type carrying struct {
	meter  print.Meter
	cancel context.CancelFunc
}

func (c *carrying) end() {
	c.meter.Clear()
	c.cancel()
}

// carryOut runs a mover. The first signal stops it, with a message to the user; the second ends the
// command immediately. returned is false if the mover did not finish in time.
func carryOut(cmd *cobra.Command, step, stopped string, begin func(ctx context.Context, c *carrying) mover) (returned bool, err error) {
	ctx, cancel := context.WithCancel(cmd.Context())
	c := &carrying{cancel: cancel}
	defer c.end()
	c.meter.Begin(cmd.ErrOrStderr(), step)
	m := begin(ctx, c)
	return untilTwice(cmd.ErrOrStderr(), stopped+"; interrupt again to exit immediately",
		m.Stop, cancel, func() error { return m.Run(ctx) })
}

// endsWithin bounds the command's shutdown after the second signal.
const endsWithin = time.Second

// untilTwice calls run until it returns. The first signal prints words and calls stop, the second
// calls cancel. Planning cannot be interrupted, so a run that does not return soon after the second
// signal is abandoned.
func untilTwice(out io.Writer, words string, stop, cancel func(), run func() error) (returned bool, err error) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(signals)
	over := make(chan error, 1)
	go func() { over <- run() }()

	for _, do := range []func(){func() {
		fmt.Fprintln(out, words)
		stop()
	}, cancel} {
		select {
		case err := <-over:
			return true, err
		case <-signals:
			do()
		}
	}

	select {
	case err := <-over:
		return true, err
	case <-time.After(endsWithin):
		return false, nil
	}
}
