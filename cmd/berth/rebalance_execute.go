package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/answer"
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
	if len(b.files) > 0 || b.at != "" || b.output != "" || len(b.failOn) > 0 {
		return usagef("--execute: goes without -f, --at, -o and --fail-on")
	}
	cfg, err := b.connection.restConfig(b.userAgent)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(cfg)
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
	running, err := b.provingConfig(cmd, client)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(klog.NewContext(cmd.Context(), klog.Logger{})) // what it does is told in lines of its own
	defer cancel()
	events := eventlog.New(client, "berth-rebalance")
	var ended *execute.Done
	meter := startMeter(cmd.ErrOrStderr()) // until the first line about a move
	meter.beginStep("reading the cluster and planning moves")
	defer meter.stop()
	mover := live.New(client, events, live.Options{
		Policy: func(of policy.Priorities) (*rebalance.Policy, error) {
			if b.policy != "" {
				return policy.Load(b.policy, of)
			}
			return goals, nil
		},
		Execute: execute.Options{Surge: b.surge}, Profiles: running.Profiles, Placing: b.placingMode(),
		Told: func(a execute.Told) { meter.stop(); tellLine(cmd.OutOrStdout(), a.Line()) },
		Done: func(a execute.Done) { meter.stop(); ended = &a; cancel() },
	})
	var others sync.WaitGroup
	defer others.Wait()
	others.Go(func() { events.Run(ctx) })
	returned, err := untilTwice(cmd.ErrOrStderr(), "no further move begins; again to end at once", mover.Stop, cancel,
		func() error { return mover.Run(ctx) })
	cancel()
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

// endsWithin is how long a command may take to end after the second signal.
const endsWithin = time.Second

// untilTwice calls run until it returns. At the first signal it says something and calls stop, at
// the second cancel. Nothing cuts a plan short that is being made: what has not returned soon after
// the second signal is left behind.
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
