// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/cli/parse"
	"github.com/berth-k8s/berth/internal/cli/print"
	"github.com/berth-k8s/berth/internal/cli/query"
	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/internal/controller/rebalance/movecontroller"
	"github.com/berth-k8s/berth/internal/controller/rebalance/policy"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/kube/connect"
	"github.com/berth-k8s/berth/internal/kube/eventlog"
	"github.com/berth-k8s/berth/internal/world"
)

// balancing holds the flags of berth rebalance.
type balancing struct {
	query.Question
	namespace, policy       string
	sampled, execute, surge bool
	failOn                  []string
}

func newRebalanceCommand() *cobra.Command {
	b := balancing{Question: query.Question{UserAgent: "berth-rebalance", DropManagedFields: true}}
	cmd := &cobra.Command{
		Use:               "rebalance [GOAL...]",
		GroupID:           groupAsk,
		Short:             "Which running pods to move, in which order, each move proved by the engine",
		ValidArgsFunction: b.completeGoals,
		RunE:              b.runRebalance,
	}
	flags := cmd.Flags()
	b.AddFlags(flags)
	flags.StringVar(&b.policy, "policy", "", "a DeschedulerPolicy file to plan by, instead of goals")
	flags.BoolVar(&b.execute, "execute", false, "make the moves: evict through the Eviction API, one pod at a time")
	flags.BoolVar(&b.surge, "surge", false,
		"with --execute, have one more replica ready before a pod of a Deployment or ReplicaSet leaves, where that is possible")

	flags.BoolVar(&b.sampled, "sampled", false,
		"successors may land on any node that passes the filters: for kube-scheduler where it samples nodes (more than 100, by default)")
	flags.StringVarP(&b.namespace, "namespace", "n", "", "of the pods that defragment names (default: the context's, or default)")
	flags.StringSliceVar(&b.failOn, "fail-on", nil,
		"exit with code 3 if there are moves to make, if something stays that should move, or if constraints are "+
			"violated after the plan: "+strings.Join(rebalance.Conditions, ","))
	b.CompleteFlags(cmd, &b.namespace)
	query.CompleteChoices(cmd, "fail-on", rebalance.Conditions...)
	cmd.AddCommand(newCostCommand())
	return cmd
}

// goalWords lists the first words of goals.
var goalWords = []string{"heal", "spread", "return", "consolidate=", "defragment", ofPods}

const ofPods = "defragment="

// completeGoals completes goals, and the pod names of the last goal.
func (b *balancing) completeGoals(cmd *cobra.Command, _ []string, toComplete string) ([]string, cobra.ShellCompDirective) {
	list, ok := strings.CutPrefix(toComplete, ofPods)
	if !ok {
		return query.WithPrefix(goalWords, toComplete), cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
	before := ofPods + list[:strings.LastIndexByte(list, ',')+1]
	names := answer.Mapped(b.NamesOf(cmd, parse.Pod, b.NamespaceOr(b.namespace)), func(name string) string { return before + name })
	return query.WithPrefix(names, toComplete), cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

func (b *balancing) runRebalance(cmd *cobra.Command, args []string) error {
	if err := print.CheckFormat(b.Output, print.Formats); err != nil {
		return err
	}
	for _, condition := range b.failOn {
		if !slices.Contains(rebalance.Conditions, condition) {
			return usagef("--fail-on %q: must be one of %s", condition, strings.Join(rebalance.Conditions, ", "))
		}
	}
	if b.policy != "" && len(args) > 0 {
		return usagef("%s: goals cannot be used with --policy", args[0])
	}
	goals, err := rebalance.ReadGoals(args, b.NamespaceOr(b.namespace))
	if err != nil {
		return usagef("%w", err)
	}
	if b.surge && !b.execute {
		return usagef("--surge: requires --execute")
	}
	if err := b.Prepare(cmd); err != nil {
		return err
	}
	if b.execute {
		return b.carryOut(cmd, goals)
	}

	plan, err := b.plan(cmd, goals)
	if err != nil {
		return err
	}
	if err := b.Write(cmd, plan); err != nil {
		return err
	}
	return print.Held(b.failOn, plan.Holds)
}

// plan reads the cluster and plans its rebalancing.
func (b *balancing) plan(cmd *cobra.Command, goals *rebalance.Policy) (*rebalance.Plan, error) {
	set, source, err := b.ReadSet(cmd)
	if err != nil {
		return nil, err
	}
	options, err := b.Options(cmd, set, &source)
	if err != nil {
		return nil, err
	}
	if b.policy != "" {
		if goals, err = policy.Load(b.policy, prioritiesOf(set)); err != nil {
			return nil, err
		}
	}
	if err := checkDefragment(goals, func(name types.NamespacedName) (*v1.Pod, error) {
		for _, p := range set.Pods {
			if p.Namespace == name.Namespace && p.Name == name.Name {
				return p, nil
			}
		}
		return nil, nil
	}); err != nil {
		return nil, err
	}

	b.Meter.Begin(cmd.ErrOrStderr(), "planning moves")
	defer b.Meter.End()
	state := &rebalance.State{AsOf: source.AsOf.Time, World: world.Open(set.Objects())}
	if state.AsOf.IsZero() {
		state.AsOf = set.Newest()
	}
	plan := rebalance.Make(state, goals, rebalance.Options{Profiles: options.Profiles, Placing: b.placingMode()})
	plan.From, plan.Assumed = source.From, source.Assumed
	if source.AsOf.IsZero() && !slices.ContainsFunc(set.Nodes, func(n *v1.Node) bool { return !n.CreationTimestamp.IsZero() }) {
		plan.AsOf = metav1.Time{} // manifests have no times, and the times of their pods are made up
	}
	return plan, nil
}

// checkDefragment verifies that the pods of defragment goals exist and are pending. find returns a
// pod, or nil if it does not exist.
func checkDefragment(goals *rebalance.Policy, find func(name types.NamespacedName) (*v1.Pod, error)) error {
	for _, goal := range goals.Goals {
		if goal.Defragment == nil {
			continue
		}
		for _, name := range goal.Defragment.Pods {
			p, err := find(name)
			switch {
			case err != nil:
				return err
			case p == nil:
				return fmt.Errorf("defragment: there is no pod %s", name)
			case p.Spec.NodeName != "":
				return fmt.Errorf("defragment: pod %s is not pending: it is on %s", name, p.Spec.NodeName)
			}
		}
	}

	return nil
}

func (b *balancing) placingMode() rebalance.Placing {
	if b.sampled {
		return rebalance.Sampled
	}
	return rebalance.Exact
}

func prioritiesOf(set *manifest.Set) policy.Priorities {
	return func(name string) (int32, bool) {
		for _, class := range set.PriorityClasses {
			if class.Name == name {
				return class.Value, true
			}
		}
		return 0, false
	}
}

// carryOut moves pods until the plan is complete. After the first signal it starts no further
// moves; the second ends the process immediately, with the interrupted moves recorded in the
// journal.
func (b *balancing) carryOut(cmd *cobra.Command, goals *rebalance.Policy) error {
	if len(b.Files) > 0 || b.At != "" || b.Output != "" || len(b.failOn) > 0 {
		return usagef("--execute: cannot be used with -f, --at, -o or --fail-on")
	}
	client, err := query.NewClient(&b.Cluster, b.UserAgent)
	if err != nil {
		return err
	}
	if err := checkDefragment(goals, func(name types.NamespacedName) (*v1.Pod, error) {
		p, err := client.CoreV1().Pods(name.Namespace).Get(cmd.Context(), name.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return p, err
	}); err != nil {
		return connect.WithRemedy(err)
	}
	running, err := b.RunningIn(cmd, client, false)
	if err != nil {
		return err
	}

	events := eventlog.New(client, "berth-rebalance")
	var others sync.WaitGroup
	defer others.Wait()
	var ended *execute.Done
	returned, err := carryOut(cmd, "reading the cluster and planning moves", "stopping: no more moves are started",
		func(ctx context.Context,
			c *carrying) mover {
			others.Go(func() { events.Run(ctx) })
			return movecontroller.New(client, events, movecontroller.Options{
				Policy: func(of policy.Priorities) (*rebalance.Policy, error) {
					if b.policy != "" {
						return policy.Load(b.policy, of)
					}
					return goals, nil
				},
				Execute: execute.Options{Surge: b.surge}, Profiles: running.Profiles, Placing: b.placingMode(),
				OnProgress: func(a execute.MoveProgress) { c.meter.Clear(); print.PrintLine(cmd.OutOrStdout(), a.Line()) },
				Done:       func(a execute.Done) { ended = &a; c.end() },
			})
		})
	switch {
	case err != nil:
		return err
	case !returned || ended == nil:
		return fmt.Errorf("stopped: the moves in progress are recorded in the ConfigMap %s/%s; the next run continues them",
			movecontroller.JournalNamespace, movecontroller.JournalName)
	case ended.Stopped != "":
		return fmt.Errorf("stopped after %s: %s", answer.Count(ended.Moves, "move"), ended.Stopped)
	}
	fmt.Fprintf(cmd.OutOrStdout(), "done: %s\n", answer.Count(ended.Moves, "move"))
	return nil
}
