// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package exchange replaces the nodes of a cluster by fewer and cheaper ones, according to plans of
// package provision. It serves the command berth rebalance cost and the goal cost of the
// controller; package execute carries out the exchanges.
package exchange

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/internal/controller/rebalance/movecontroller"
	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/inspect/provision"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/inspect/snapshot"
	"github.com/berth-k8s/berth/internal/inspect/whatif"
	"github.com/berth-k8s/berth/internal/kube/eventlog"
	"github.com/berth-k8s/berth/internal/world/disruption"
)

// Limits of an exchange in progress: the largest share of its nodes that are drained together, and
// the time in which they must be empty.
const (
	together = 0.1
	longest  = 30 * time.Minute
)

// Options are the flags of plans.
type Options struct {
	Catalog []string // files and folders
	// Surge creates successors before their pods leave, where possible.
	Surge bool
	// Holder is the identity with which the Lease of exchanges is held; see [lead.Options].
	Holder string

	limits    provision.Options
	within    time.Duration // for the search
	cut       bool          // the search for the last plan may have ended early
	spotShare float64
	// stopped holds the nodes of stopped exchanges, and when they stopped. The key "" is an
	// exchange begun by an earlier process.
	stopped map[string]time.Time
}

// AddFlags adds the flags. prefix begins their descriptions, and within is the default of
// --plan-within.
func (o *Options) AddFlags(flags *pflag.FlagSet, prefix string, within time.Duration) {
	o.stopped = map[string]time.Time{}
	flags.StringSliceVar(&o.Catalog, "catalog", nil, prefix+"files with the nodes that can be bought (required)")
	flags.Float64Var(&o.spotShare, "spot-share", 1, prefix+"maximum share of spot nodes in all CPU: from 0 to 1")
	flags.IntVar(&o.limits.MaxMoves, "max-moves", 0, prefix+"maximum number of pods to move (0: unlimited)")
	flags.Float64Var(&o.limits.MinSavings, "min-savings", 0, prefix+"smallest saving per hour for which nodes are exchanged")
	flags.Float64Var(&o.limits.Headroom, "headroom", 0, prefix+"share of each workload's replicas for which room is kept, in addition "+
		"to that of CapacityBuffers: from 0 to 1")
	flags.DurationVar(&o.within, "plan-within", within, prefix+"time after which the search ends with the best plan so far (0: no limit)")
	flags.DurationVar(&o.limits.Horizon, "horizon", provision.DefaultHorizon,
		prefix+"time in which an exchange must save more than its moves cost")
}

// Validate returns the first error in the flags.
func (o *Options) Validate() error {
	switch {
	case len(o.Catalog) == 0:
		return fmt.Errorf("--catalog: required: the files with the nodes that can be bought")
	case !(o.spotShare >= 0 && o.spotShare <= 1):
		return fmt.Errorf("--spot-share %v: must be from 0 to 1", o.spotShare)
	case !(o.limits.Headroom >= 0 && o.limits.Headroom <= 1):
		return fmt.Errorf("--headroom %v: must be from 0 to 1", o.limits.Headroom)
	case o.limits.MaxMoves < 0:
		return fmt.Errorf("--max-moves %d: must not be negative", o.limits.MaxMoves)
	case !(o.limits.MinSavings >= 0):
		return fmt.Errorf("--min-savings %v: must not be negative", o.limits.MinSavings)
	case o.within < 0:
		return fmt.Errorf("--plan-within %s: must not be negative", o.within)
	case o.limits.Horizon <= 0:
		return fmt.Errorf("--horizon %s: must be positive", o.limits.Horizon)
	}
	return nil
}

// Plan plans exchanges.
func (o *Options) Plan(w *simulate.World, catalog *provision.Catalog, options whatif.Options) (*whatif.Forecast, error) {
	if o.spotShare < 1 {
		o.limits.Spot = &o.spotShare
	}
	if o.within > 0 {
		o.limits.Within(o.within)
	}
	return whatif.Run(w, []whatif.Step{{Words: "rebalance cost --catalog " + strings.Join(o.Catalog, ","), Catalog: catalog, Replace: true,
		Provision: o.limits}}, options)
}

// Execute finishes an exchange begun by an earlier process, and makes the exchanges of a plan in
// order, while this process holds the Lease; see [movecontroller.Exclusively]. Each is proved again
// before a pod leaves. The first error ends it.
func (o *Options) Execute(ctx context.Context, config *rest.Config, held func(holder string), plan func(context.Context) (*provision.Plan, error),
	roll func(context.Context, kubernetes.Interface, execute.RollOptions) error) error {
	return movecontroller.Exclusively(ctx, config, o.Holder, held, func(ctx context.Context, client kubernetes.Interface) error {
		err := roll(ctx, client, o.rollOf(&provision.Exchange{}, nil)) // an unfinished exchange changes the plan
		if err != nil {
			return err
		}
		p, err := plan(ctx)
		names, began := map[string]string{}, strconv.FormatInt(time.Now().Unix(), 36)
		for i := 0; err == nil && i < len(p.Replaced.Exchanges); i++ {
			e, suffix := &p.Replaced.Exchanges[i], fmt.Sprintf("-%s-%d", began, i)
			var claims map[string][]byte
			if claims, err = p.Claims(e, suffix); err == nil {
				nameTargets(e, names, suffix)
				err = roll(ctx, client, o.rollOf(e, claims))
			}
		}
		return err
	})
}

// nameTargets adds the targets of an exchange by the names of NodeClaims. names holds those of all
// planned nodes: an exchange also counts on the nodes of earlier ones.
func nameTargets(e *provision.Exchange, names map[string]string, suffix string) {
	for _, n := range e.Nodes {
		names[n.Name] = n.Name + suffix
	}
	for planned, claim := range names {
		e.Targets.Copy(planned, claim)
	}
}

// rollOf returns the options of a roll that creates NodeClaims, moves the pods of the old nodes,
// and removes these nodes. Without old nodes, it finishes an earlier exchange.
func (o *Options) rollOf(e *provision.Exchange, claims map[string][]byte) execute.RollOptions {
	return execute.RollOptions{
		DrainOptions: execute.DrainOptions{Timeout: longest, Leaving: rebalance.Leaving{Nodes: e.Gone, Surge: o.Surge, Targets: e.Targets,
			DrainRules: disruption.DrainRules{IgnoreDaemonSets: true, DeleteEmptyDirData: true, Undisturbed: true}}},
		Until: execute.UntilRemoved, Buy: claims, Pays: e.Pays,
		AtOnce: func(nodes int) int { return max(int(together*float64(nodes)), 1) },
	}
}

// rests is the time for which the nodes of a stopped exchange stay: the cause may persist, such as
// a cloud without capacity. Meanwhile, other nodes are exchanged.
const rests = 30 * time.Minute

// Run carries out the goal cost once: it makes a plan, publishes the costs of NodePools, and makes
// the exchanges of the plan. If the search for the plan ended early, it plans again for the
// remaining nodes, as long as the costs fall.
func (o *Options) Run(ctx context.Context, config *rest.Config, running *config.Running, events *eventlog.Log, surge bool) error {
	var made *provision.Plan
	plan := func(ctx context.Context) (p *provision.Plan, err error) {
		made, err = o.plan(ctx, config, running)
		return made, err
	}
	o.Surge, o.limits.Stay = surge, map[string]string{}
	maps.DeleteFunc(o.stopped, func(_ string, at time.Time) bool { return time.Since(at) >= rests })
	for node, at := range o.stopped {
		o.limits.Stay[node] = "an exchange of it stopped: not again before " + at.Add(rests).Format(time.RFC3339)
	}

	if _, stopped := o.stopped[""]; stopped {
		_, err := plan(ctx)
		return err
	}
	for cost := math.Inf(1); ; cost = made.Replaced.Before {
		err := o.Execute(ctx, config, func(holder string) {
			klog.FromContext(ctx).Info("Waiting for another process that exchanges nodes", "holder", holder)
		}, plan, func(ctx context.Context, client kubernetes.Interface, options execute.RollOptions) error {
			return o.roll(ctx, client, running, events, options)
		})
		if err != nil || made == nil || !o.cut || len(made.Replaced.Exchanges) == 0 || made.Replaced.Before >= cost {
			return err
		}
	}
}

// plan plans exchanges from the current state of the cluster. The catalog is read each time,
// because prices change.
func (o *Options) plan(ctx context.Context, config *rest.Config, running *config.Running) (*provision.Plan, error) {
	catalog, err := provision.ReadCatalog(o.Catalog, nil)
	reader, failed := snapshot.NewClient(config)
	if err := cmp.Or(err, failed); err != nil {
		return nil, err
	}
	reader.DropManagedFields, reader.ForPlans = true, true
	s, err := reader.Read(ctx, nil)
	if err != nil {
		return nil, err
	}
	w, err := simulate.Open(s.Set, simulate.Options{Profiles: running.Profiles, Now: s.AsOf.Time, Unseen: true, Gates: running.Groups.Named()})
	if err != nil {
		return nil, err
	}
	forecast, err := o.Plan(w, catalog, whatif.Options{Source: s.Source})
	if err != nil {
		return nil, err
	}

	o.cut = o.limits.TimeIsUp != nil && o.limits.TimeIsUp()
	plan := forecast.Provision
	movecontroller.ClusterCost.Reset()
	movecontroller.ClusterCostBound.Reset()
	for name, cost := range plan.Replaced.Pools {
		movecontroller.ClusterCost.WithLabelValues(name).Set(cost.Hour)
		movecontroller.ClusterCostBound.WithLabelValues(name).Set(cost.Least)
	}
	klog.FromContext(ctx).Info("Planned nodes", "costPerHour", plan.Replaced.Before, "savedPerHour", plan.Replaced.Hour,
		"exchanges", len(plan.Replaced.Exchanges), "notes", slices.Concat(plan.Notes, forecast.Notes), "notRead", s.Missing)
	return plan, nil
}

// roll makes one exchange. If it stops, its nodes get events.
func (o *Options) roll(ctx context.Context, client kubernetes.Interface, running *config.Running, events *eventlog.Log, options execute.RollOptions) error {
	ctx, end := context.WithCancel(ctx)
	defer end()
	var ended *execute.RollDone
	err := movecontroller.NewRoller(client, running.Profiles, options, func(execute.DrainProgress) {}, func(execute.RollProgress) {},
		func(a execute.RollDone) { ended = &a; end() }).Run(ctx)
	switch {
	case err != nil || ended == nil:
		return cmp.Or(err, ctx.Err())
	case ended.Stopped == "":
		return nil
	}

	if len(options.Nodes) == 0 {
		o.stopped[""] = time.Now()
	}
	for _, node := range options.Nodes {
		o.stopped[node] = time.Now()
		events.Add(v1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: node, UID: types.UID(node)}, v1.EventTypeWarning, "ExchangeFailed", ended.Stopped)
	}
	return fmt.Errorf("%s; %d of %d nodes are removed", ended.Stopped, ended.Done, ended.Nodes)
}
