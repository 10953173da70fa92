package main

import (
	"context"
	"fmt"
	"sync"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/cli/ask"
	"github.com/berth-k8s/berth/internal/cli/print"
	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/internal/controller/rebalance/live"
	"github.com/berth-k8s/berth/internal/controller/rebalance/policy"
	"github.com/berth-k8s/berth/internal/kube/connect"
	"github.com/berth-k8s/berth/internal/kube/eventlog"
)

// carryOut moves pods until nothing is left to move. The first signal has no further move begin;
// the second ends the process at once, and the journal says what was under way.
func (b *balancing) carryOut(cmd *cobra.Command, goals *rebalance.Policy) error {
	if len(b.Files) > 0 || b.At != "" || b.Output != "" || len(b.failOn) > 0 {
		return usagef("--execute: goes without -f, --at, -o and --fail-on")
	}
	client, err := ask.NewClient(&b.Cluster, b.UserAgent)
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
		return connect.Reach(err)
	}
	running, err := b.RunningIn(cmd, client, false)
	if err != nil {
		return err
	}

	events := eventlog.New(client, "berth-rebalance")
	var others sync.WaitGroup
	defer others.Wait()
	var ended *execute.Done
	returned, err := carryOut(cmd, "reading the cluster and planning moves", "no further move begins", func(ctx context.Context, c *carrying) mover {
		others.Go(func() { events.Run(ctx) })
		return live.New(client, events, live.Options{
			Policy: func(of policy.Priorities) (*rebalance.Policy, error) {
				if b.policy != "" {
					return policy.Load(b.policy, of)
				}
				return goals, nil
			},
			Execute: execute.Options{Surge: b.surge}, Profiles: running.Profiles, Placing: b.placingMode(),
			Told: func(a execute.Told) { c.meter.Clear(); print.Told(cmd.OutOrStdout(), a.Line()) },
			Done: func(a execute.Done) { ended = &a; c.end() },
		})
	})
	switch {
	case err != nil:
		return err
	case !returned || ended == nil:
		return fmt.Errorf("ended at once: what was under way is in the ConfigMap %s/%s, and "+
			"is gone on with next time", live.JournalNamespace, live.JournalName)
	case ended.Stopped != "":
		return fmt.Errorf("stopped after %s: %s", answer.Count(ended.Moves, "move"), ended.Stopped)
	}
	fmt.Fprintf(cmd.OutOrStdout(), "done: %s\n", answer.Count(ended.Moves, "move"))
	return nil
}
