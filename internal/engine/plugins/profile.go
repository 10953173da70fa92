// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"slices"
	"time"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// Profile holds the scheduling configuration for pods with one schedulerName. It is made from a
// configuration file (package config) or by [Default], and never changes: a new configuration
// requires new profiles. Its plugins may hold state, so a profile serves one cluster only (see
// Fresh).
type Profile struct {
	// SchedulerName is the spec.schedulerName of the profile's pods.
	SchedulerName string

	// Gates run in this order before a pod may enter the queue.
	Gates []Gate
	// Filters run in this order. The first to reject a node gives the reasons.
	Filters []Filter
	// Scorers all run. Their results are listed in this order.
	Scorers []Weighted
	// Reservers run in this order, and are undone in reverse.
	Reservers []Reserver
	// Extenders run one after the other, each on the nodes passed by its predecessors.
	Extenders []Extender
	// Preemption allows preemption for a pod that fits nowhere (DefaultPreemption at PostFilter).
	Preemption bool
	// GroupPreemption allows preemption for a pod group that fits nowhere (DefaultPreemption at
	// PodGroupPostFilter).
	GroupPreemption bool
	// KeepBudgets forbids preemption to violate a PodDisruptionBudget, even if the pod then stays
	// pending, unless the pod is critical. Upstream violates budgets as a last resort.
	KeepBudgets bool
	// GentlePreemption chooses no victims if the room freed by the victims of earlier preemptions
	// suffices, and never chooses victims whose replacements could preempt the pod. PreemptionDelay
	// applies only with GentlePreemption: a pod must be unschedulable for this long before it
	// preempts other pods.
	GentlePreemption bool
	PreemptionDelay  time.Duration
	// MinRunTime applies only with GentlePreemption: a preempting pod spares pods that have run for
	// less than this time if other victims suffice.
	MinRunTime time.Duration
	// LookAhead applies only with GentlePreemption.
	LookAhead LookAhead
	// Targets has the nodes that are tried before all others.
	Targets Targets
	// Reservations limits the room reserved for pod groups. The zero value disables reservations.
	Reservations Reservations

	// At names the plugins at each extension point in their order, including plugins outside this
	// package: out-of-tree plugins, and PrioritySort, which the scheduler implements itself.
	At map[Point][]string
	// Weights are the weights of the plugins at Score.
	Weights map[string]int64
	// Outside lists the plugins found in no catalog. Only the live scheduler calls them.
	Outside []string

	made   map[string]any   // the plugins by name; nil for names outside the catalog and plugins implemented elsewhere
	points map[string]Point // extension points of the catalog's plugins

	catalog []Entry        // source of the plugins
	args    map[string]any // arguments of the plugins
}

// LookAhead determines between which nodes preemption chooses by the consequences of evicting their
// victims. It places the replacements of the victims, which may preempt other pods in turn. It
// prefers the node that leaves the fewest pods of the highest priority without a node, and then the
// fewest preemptions by replacements. Empty: none.
type LookAhead string

// The values of LookAhead.
const (
	// Ties compares the nodes that upstream's criteria rank equal.
	Ties LookAhead = "ties"
	// HighestVictim compares the nodes with equally few violated budgets and an equal highest
	// priority of their victims.
	HighestVictim LookAhead = "highest-victim"
)

// Weighted is a scorer and the weight of its normalised score. The weight is 0 only for scorers
// that can do nothing but fail (preScoreOnly): package config turns a weight of 0 into 1, like
// upstream.
type Weighted struct {
	Scorer
	Weight int64
}

// Reservations limits the room reserved for a pod group. Berth reserves the room after the group
// has fitted nowhere for the duration After, holds it for at most the duration For, and limits it
// to the fraction Share of the cluster's CPU, memory, other resources, and devices of each driver.
type Reservations struct {
	After, For time.Duration
	Share      float64 // above 0, 1 at most
}

// DefaultSchedulerName is the scheduler of pods without a schedulerName.
const DefaultSchedulerName = "default-scheduler"

// Default returns the profile of an empty configuration.
func Default() *Profile { return DefaultOf(Catalog()) }

// DefaultOf is Default with the plugins of a catalog. It enables all plugins that are not Optional,
// at all of their points.
func DefaultOf(catalog []Entry) *Profile {
	at, weights := map[Point][]string{}, map[string]int64{}
	for _, entry := range catalog {
		if entry.Optional {
			continue
		}
		for _, point := range AllPoints {
			if entry.Points&point != 0 {
				at[point] = append(at[point], entry.Name)
			}
		}
		if entry.Points&Score != 0 {
			weights[entry.Name] = entry.Weight
		}
	}

	p, err := NewProfileOf(catalog, DefaultSchedulerName, at, weights, nil)
	if err != nil { // impossible: there are no arguments to refuse
		panic(err)
	}
	return p
}

// NewProfile returns a profile with the plugins named at the extension points. args holds plugin
// arguments, as pointers to the types of k8s.io/kube-scheduler/config/v1. NewProfile fails if a
// plugin refuses its arguments.
func NewProfile(schedulerName string, at map[Point][]string, weights map[string]int64, args map[string]any) (*Profile, error) {
	return NewProfileOf(Catalog(), schedulerName, at, weights, args)
}

// NewProfileOf is NewProfile with the plugins of a catalog. Names missing from the catalog are not
// an error: they become Outside, for callers with out-of-tree plugins.
func NewProfileOf(catalog []Entry, schedulerName string, at map[Point][]string, weights map[string]int64,
	args map[string]any) (*Profile, error) {
	p := &Profile{SchedulerName: schedulerName, At: at, Weights: weights, made: map[string]any{},
		points: map[string]Point{}, catalog: catalog, args: args}
	for _, point := range AllPoints {
		for _, name := range at[point] {
			// A plugin at several points is one value, so that its parts share state.
			if _, ok := p.made[name]; ok {
				continue
			}
			entry, ok := findEntry(catalog, name)
			if !ok {
				p.made[name] = nil
				p.Outside = append(p.Outside, name)
				continue
			}
			plugin, err := entry.newPlugin(args[name])
			if err != nil {
				return nil, err
			}
			p.made[name], p.points[name] = plugin, entry.Points
		}
	}

	p.assemblePlugins()
	return p, nil
}

// Fresh returns a copy of the profile with new plugins. A plugin holds the clock of one cluster and
// caches its last results, so two clusters must not share plugins.
func (p *Profile) Fresh() (*Profile, error) {
	fresh := *p
	fresh.Gates, fresh.Filters, fresh.Scorers, fresh.Reservers = nil, nil, nil, nil
	fresh.made = make(map[string]any, len(p.made))
	for name, plugin := range p.made {
		if entry, ok := findEntry(p.catalog, name); ok {
			var err error
			if plugin, err = entry.newPlugin(p.args[name]); err != nil {
				return nil, err
			}
		}
		fresh.made[name] = plugin
	}
	fresh.assemblePlugins()
	return &fresh, nil
}

// assemblePlugins adds the plugins in p.made to the lists (Gates, Filters and so on), which must be
// empty. A plugin joins a list only if it implements the list's interface: a name has no effect at
// a point not extended by its plugin, or if the plugin is implemented elsewhere.
func (p *Profile) assemblePlugins() {
	p.deviceChoice()
	p.Gates, p.Reservers = pluginsOf[Gate](p, p.At[PreEnqueue]), pluginsOf[Reserver](p, p.At[Reserve])
	for _, filter := range pluginsOf[Filter](p, p.filterNames()) {
		p.Filters = append(p.Filters, p.partOf(filter))
	}

	// A scorer enabled only at PreScore still fails for pods with an invalid spec, like upstream's.
	for _, name := range p.At[PreScore] {
		if scorer, ok := p.made[name].(Scorer); ok && !p.Has(Score, name) {
			p.Scorers = append(p.Scorers, Weighted{Scorer: preScoreOnly{scorer}})
		}
	}

	for _, name := range p.At[Score] {
		if scorer, ok := p.made[name].(Scorer); ok {
			p.Scorers = append(p.Scorers, Weighted{scorer, p.Weights[name]})
		}
	}

	// DefaultPreemption works through package decide, which only needs to know whether it is
	// enabled.
	p.Preemption = p.Preemption || len(pluginsOf[Preempter](p, p.At[PostFilter])) > 0
	p.GroupPreemption = p.GroupPreemption || len(pluginsOf[Preempter](p, p.At[PodGroupPostFilter])) > 0
}

// pluginsOf returns the plugins with the given names that implement an interface.
func pluginsOf[T any](p *Profile, names []string) (list []T) {
	for _, name := range names {
		if plugin, ok := p.made[name].(T); ok {
			list = append(list, plugin)
		}
	}
	return list
}

// Has reports whether the named plugin is enabled at the extension point.
func (p *Profile) Has(point Point, name string) bool {
	return slices.Contains(p.At[point], name)
}

// HasDevices reports whether DynamicResources is enabled at PostFilter, where a pod that fits
// nowhere may give up its allocated claims.
func (p *Profile) HasDevices() bool { return p.Has(PostFilter, "DynamicResources") }

// StopsBeforeDevices reports whether the plugin rejector rejected the pod as a whole before
// DynamicResources ran at PreFilter. Such a pod keeps its nomination: upstream's DynamicResources
// then fails at PostFilter, before preemption can clear the nomination.
func (p *Profile) StopsBeforeDevices(rejector string, r *Rejection) bool {
	if r == nil || !r.Unresolvable || !p.HasDevices() {
		return false
	}
	order := p.At[PreFilter]
	by := slices.Index(order, rejector)
	return by >= 0 && by < slices.Index(order, "DynamicResources")
}

// filterNames lists the plugins at Filter, and inserts plugins enabled only at PreFilter at their
// positions: the order decides which of two plugins rejects a pod first.
//
//	Filter: A C    PreFilter: A B C    ->  A B C
func (p *Profile) filterNames() []string {
	names := slices.Clone(p.At[Filters])
	next := ""
	for _, name := range slices.Backward(p.At[PreFilter]) {
		if !slices.Contains(names, name) {
			at := slices.Index(names, next)
			if at < 0 {
				at = len(names)
			}
			names = slices.Insert(names, at, name)
		}
		next = name
	}
	return names
}

// PreFilterOrder returns the indices of Filters in the order of PreFilter, where a plugin can
// reject a pod before the search of nodes. Filters not at PreFilter are last. A configuration may
// list the plugins in different orders at the two points.
func (p *Profile) PreFilterOrder() []int {
	order, last := make([]int, 0, len(p.Filters)), make([]int, 0, len(p.Filters))
	for _, name := range p.At[PreFilter] {
		if i := slices.IndexFunc(p.Filters, func(f Filter) bool { return f.Name() == name }); i >= 0 {
			order = append(order, i)
		}
	}
	for i := range p.Filters {
		if !slices.Contains(order, i) {
			last = append(last, i)
		}
	}
	return append(order, last...)
}

// partOf restricts a filter to its enabled extension points. A plugin that does not extend
// PreFilter is complete with Filter alone.
func (p *Profile) partOf(f Filter) Filter {
	if p.points[f.Name()]&PreFilter == 0 {
		return f
	}
	switch {
	case !p.Has(Filters, f.Name()):
		return preFilterOnly{partial{f}}
	case !p.Has(PreFilter, f.Name()):
		return filterOnly{partial{f}}
	}
	return f
}

// partial is a filter of which a profile enables only some extension points. It has the name of the
// whole plugin, which messages and events contain, and its reads: any verdict may depend on all of
// them.
type partial struct{ Filter }

// BeginAttempt implements [Attempted] even if the whole plugin does not.
func (f partial) BeginAttempt() {
	if f, is := f.Filter.(Attempted); is {
		f.BeginAttempt()
	}
}

// preFilterOnly is a filter enabled by a profile at PreFilter but not at Filter. Only its verdict
// on all nodes applies.
type preFilterOnly struct{ partial }

// Filter implements [Filter].
func (f preFilterOnly) Filter(c *cluster.Cluster, p *cluster.Pod) Judge {
	judge := f.partial.Filter.Filter(c, p)
	judge.Node = nil
	return judge
}

// filterOnly is a filter enabled by a profile at Filter but not at PreFilter. It still prepares its
// judge, so that everything except the narrowing (Judge.Only) applies. Upstream fails every pod in
// this case, for lack of the state written by PreFilter, except in NodeAffinity, which works
// without that state but does not narrow.
type filterOnly struct{ partial }

// Filter implements [Filter].
func (f filterOnly) Filter(c *cluster.Cluster, p *cluster.Pod) Judge {
	judge := f.partial.Filter.Filter(c, p)
	judge.Only = nil
	return judge
}

// preScoreOnly is a scorer enabled by a profile at PreScore but not at Score: it can only fail.
type preScoreOnly struct{ whole Scorer }

// Name implements [Scorer].
func (s preScoreOnly) Name() string { return s.whole.Name() }

// Applies implements [Selective]. It selects only pods for which the plugin fails.
func (s preScoreOnly) Applies(c *cluster.Cluster, p *cluster.Pod) bool {
	return s.whole.Score(c, p, nil).Err != nil
}

// Score implements [Scorer]. Without an error it scores nothing.
func (s preScoreOnly) Score(c *cluster.Cluster, p *cluster.Pod, feasible []*cluster.Node) Scoring {
	return Scoring{Err: s.whole.Score(c, p, feasible).Err}
}
