// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/deploy"
	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/internal/controller/rebalance/movecontroller"
	"github.com/berth-k8s/berth/internal/controller/rebalance/policy"
	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/kube/eventlog"
	"github.com/berth-k8s/berth/internal/kube/lead"
)

// shortestEvery is the shortest time between two plans: pods need time to settle.
const shortestEvery = 10 * time.Second

// rebalanceAgain is the delay after an error before the rebalance controller restarts.
const rebalanceAgain = 30 * time.Second

// RebalanceOptions are the flags of the controller that moves pods. The flags are here, with those
// of the other controllers; their effects are in package rebalance.
type RebalanceOptions struct {
	Policy string        // path of a DeschedulerPolicy file; excludes Goals
	Goals  []string      // names of Berth's own goals; excludes Policy
	Every  time.Duration // interval between starts of runs; see shortestEvery
	Config string        // path of a KubeSchedulerConfiguration file
	// SchedulerLeases are trusted to announce the scheduler's configuration; see lead.Trusted.
	SchedulerLeases []string
	Sampled         bool // successors may land on any node that passes the filters
	Surge           bool // successors become ready before their pods leave, where possible
	// Exchange carries out CostGoal once, at the beginning of each run. Package exchange implements
	// it.
	Exchange func(ctx context.Context, config *rest.Config, running *config.Running, events *eventlog.Log, surge bool) error
}

// CostGoal exchanges nodes for cheaper ones; the other goals move pods.
const CostGoal = "cost"

// moves returns the goals of moves, and whether nodes are exchanged.
func (o *RebalanceOptions) moves() (goals []string, exchanges bool) {
	goals = slices.DeleteFunc(slices.Clone(o.Goals), func(goal string) bool { return goal == CostGoal })
	return goals, len(goals) < len(o.Goals)
}

// addFlags adds the flags, each marked as specific to the rebalance controller.
func (o *RebalanceOptions) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.Policy, "policy", o.Policy, "rebalance: a DeschedulerPolicy file to plan by, instead of goals")
	flags.StringSliceVar(&o.Goals, "goals", o.Goals,
		"rebalance: goals of moves, the most important first: heal, spread, return, consolidate=N (default heal); before them, cost "+
			"exchanges nodes for cheaper ones")
	flags.DurationVar(&o.Every, "every", o.Every, "rebalance: how often a run of moves begins")
	flags.StringVar(&o.Config, "scheduler-config", o.Config,
		"rebalance: the KubeSchedulerConfiguration file of the scheduler that places successors (default: what "+
			"schedulers publish with their Leases, else the default profile)")
	flags.StringSliceVar(&o.SchedulerLeases, "scheduler-lease", o.SchedulerLeases,
		"rebalance: Lease of the scheduler, as NAMESPACE/NAME or NAMESPACE, whose configuration is trusted, besides those in kube-system, "+
			deploy.Namespace+" and this pod's namespace (repeatable)")
	flags.BoolVar(&o.Sampled, "sampled", o.Sampled,
		"rebalance: successors may land on any node that passes the filters: for kube-scheduler where it samples "+
			"nodes (more than 100, by default)")
	flags.BoolVar(&o.Surge, "surge", o.Surge,
		"rebalance: have one more replica ready before a pod of a Deployment or ReplicaSet leaves, where that is possible")
}

// validateOptions rejects flags of a disabled controller, and reads the files once, so that a
// mistake in them is an error at the start and not after the replica has become the leader.
func (o *RebalanceOptions) validateOptions(all *Options) error {
	if !all.isEnabled(movecontroller.Name) {
		if o.Policy != "" || len(o.Goals) > 0 || o.Surge {
			return fmt.Errorf("--policy, --goals and --surge: require --controllers=%s", movecontroller.Name)
		}
		return nil
	}

	goals, _ := o.moves()
	switch {
	case all.Shadow.On:
		return fmt.Errorf("--controllers: %s cannot be used with --shadow; berth rebalance plans without writing anything",
			movecontroller.Name)
	case o.Policy != "" && len(goals) > 0:
		return fmt.Errorf("--policy: cannot be used with --goals")
	case o.Every < shortestEvery:
		return fmt.Errorf("--every: %v: must be at least %v", o.Every, shortestEvery)
	}
	anyClass := func(string) (int32, bool) { return 0, true } // the cluster's PriorityClasses are not known yet
	if _, err := o.readPolicy(anyClass); err != nil {
		return err
	}
	_, err := o.readConfig()
	return err
}

// readPolicy returns the policy; priorities are the cluster's. Without a file, the policy consists
// of the goals, or of the default goal if there are none.
func (o *RebalanceOptions) readPolicy(priorities policy.Priorities) (*rebalance.Policy, error) {
	if o.Policy != "" {
		read, err := policy.Load(o.Policy, priorities)
		if err != nil {
			return nil, fmt.Errorf("--policy: %w", err)
		}
		return read, nil
	}
	goals, exchanges := o.moves()
	if exchanges && len(goals) == 0 {
		return &rebalance.Policy{}, nil // no moves
	}
	read, err := rebalance.ReadGoals(goals, metav1.NamespaceDefault)
	if err != nil {
		return nil, fmt.Errorf("--goals: %w", err)
	}
	return read, nil
}

// readConfig returns the configuration of the scheduler that places successors. Tolerations with
// the operators Gt and Lt are always supported: an API server with the feature gate disabled stores
// no such tolerations.
func (o *RebalanceOptions) readConfig() (*config.Config, error) {
	options := config.Options{CompareTolerations: true}
	if o.Config == "" {
		return config.Default(options)
	}
	text, err := os.ReadFile(o.Config)
	if err != nil {
		return nil, fmt.Errorf("--scheduler-config: %w", err)
	}
	read, err := config.Parse(o.Config, text, options)
	if err != nil {
		return nil, fmt.Errorf("--scheduler-config: %w", err)
	}
	return read, nil
}

// runningConfig returns the configuration used to prove moves: from the file, or as announced by
// the cluster's schedulers in their Leases. It falls back to the default profile for anything not
// announced.
func (o *RebalanceOptions) runningConfig(ctx context.Context, client kubernetes.Interface) (*config.Running, error) {
	if o.Config != "" {
		read, err := o.readConfig()
		if err != nil {
			return nil, err
		}
		return &config.Running{Profiles: read.Profiles}, nil
	}

	leases, err := lead.List(ctx, client.CoordinationV1())
	if err != nil {
		return nil, err
	}

	r, err := config.RunningOf(nil, leases, lead.Trusted(o.SchedulerLeases...), time.Now())
	if err == nil && r.Assumed != "" {
		klog.FromContext(ctx).Info("Moves are planned with an assumed scheduler configuration; --scheduler-config "+
			"names the file", "assumed", r.Assumed)
	}
	return r, err
}

// runRebalance moves pods while this replica leads. After an error, such as a missing permission,
// it restarts later; the other controllers keep running. The Lease of this replica, and the
// resource version of the journal, keep two replicas from moving pods at the same time.
func (c *Controller) runRebalance(ctx context.Context, client kubernetes.Interface, events *eventlog.Log) {
	o := &c.options.Rebalance
	placing := rebalance.Exact
	if o.Sampled {
		placing = rebalance.Sampled
	}

	own, exchanged := c.clientConfig("berth-controller/"+CostGoal, -1), atomic.Bool{}
	lead.Guard(own, c.elector.Over)
	_, exchanges := o.moves()

	c.keepMoving(ctx, client, &c.mover, func(running *config.Running) *movecontroller.Mover {
		return movecontroller.New(client, events, movecontroller.Options{
			Execute: execute.Options{Every: o.Every, Surge: o.Surge}, Policy: o.readPolicy, Profiles: running.Profiles, Placing: placing,
			Planning: func(ctx context.Context) {
				if !exchanges || exchanged.Swap(true) {
					return
				}
				if err := o.Exchange(ctx, own, running, events, o.Surge); err != nil && ctx.Err() == nil {
					klog.FromContext(ctx).Error(err, "Cannot exchange nodes, will try again", "in", o.Every)
				}
			},
			Done: func(execute.Done) { exchanged.Store(false) },
		})
	})
}

// runGuard replaces pods with held evictions while this replica leads.
func (c *Controller) runGuard(ctx context.Context, client kubernetes.Interface, events *eventlog.Log) {
	c.keepMoving(ctx, client, &c.guard, func(running *config.Running) *movecontroller.Mover {
		return movecontroller.NewGuard(client, events, running.Profiles, c.options.Guard)
	})
}

// keepMoving runs a Mover, and restarts it after an error. The configuration is read again at each
// restart, because schedulers may announce a different one by then.
func (c *Controller) keepMoving(ctx context.Context, client kubernetes.Interface, running *atomic.Pointer[movecontroller.Mover],
	make func(*config.Running) *movecontroller.Mover) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		read, err := c.options.Rebalance.runningConfig(ctx, client)
		if err == nil {
			mover := make(read)
			running.Store(mover)
			err = mover.Run(ctx)
			running.Store(nil)
		}
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Cannot move pods, will try again", "in", rebalanceAgain)
		}
	}, rebalanceAgain)
}
