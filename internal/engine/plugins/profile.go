package plugins

import (
	"slices"
	"time"
)

// Profile is how pods with one schedulerName are scheduled. It comes from a configuration file
// (package config) or from [Default], and never changes: a new configuration makes new profiles.
// Its plugins may have state of their own, so a profile serves one cluster only (see Fresh).
type Profile struct {
	// SchedulerName is what pods name in spec.schedulerName to be scheduled by the profile.
	SchedulerName string

	// Gates are asked in this order before a pod may enter the queue.
	Gates []Gate
	// Filters are asked in this order. The first one that rejects a node gives the reasons.
	Filters []Filter
	// Scorers are all asked; their order is that of the answers.
	Scorers []Weighted
	// Reservers are asked in this order, and undone in the reverse order.
	Reservers []Reserver
	// Extenders are asked one after the other, each about the nodes that those before it let pass.
	Extenders []Extender
	// Preemption: a pod that fits nowhere may preempt (DefaultPreemption at PostFilter).
	Preemption bool
	// GroupPreemption: so may a pod group (DefaultPreemption at PodGroupPostFilter).
	GroupPreemption bool
	// KeepBudgets: preemption never violates a PodDisruptionBudget, even if the pod then stays
	// pending, unless the pod is critical. Upstream violates budgets where nothing else helps.
	KeepBudgets bool
	// GentlePreemption: a pod takes no victim where room suffices that earlier victims are leaving,
	// nor one whose replacement could preempt it in turn. PreemptionDelay, which then counts, is
	// how long the pod is unschedulable before it takes any.
	GentlePreemption bool
	PreemptionDelay  time.Duration
	// Reservations bound the room that is reserved for pod groups; the zero value: none is.
	Reservations Reservations

	// At names the plugins at each extension point in their order, including those that are not in
	// this package: out-of-tree plugins, and PrioritySort, whose work the scheduler does itself.
	At map[Point][]string
	// Weights are those of the plugins at Score.
	Weights map[string]int64
	// Outside are the plugins among these that are in no catalog. The live scheduler asks them.
	Outside []string

	made   map[string]any   // the plugins by name; nil for those that no catalog entry makes
	points map[string]Point // that the plugins of the catalog extend

	catalog []Entry        // that made the plugins
	args    map[string]any // that they were made with
}

// Weighted is a scorer and the weight of its normalised score. The weight is 0 only for scorers
// that can do nothing but fail (preScoreOnly): package config turns a weight of 0 into 1, as
// upstream does.
type Weighted struct {
	Scorer
	Weight int64
}

// Reservations bound the room that is reserved for a pod group: it is reserved once the group has
// fitted nowhere for After, it is held for at most For, and it is at most Share of the cluster's
// CPU and memory.
type Reservations struct {
	After, For time.Duration
	Share      float64 // above 0, 1 at most
}

// DefaultSchedulerName is the scheduler of pods that name none.
const DefaultSchedulerName = "default-scheduler"

// Default returns the profile that is used when nothing is configured.
func Default() *Profile { return DefaultOf(Catalog()) }

// DefaultOf is Default with the plugins of a catalog: those that are not Optional, at all of their
// points.
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
	if err != nil { // without arguments there is nothing to refuse
		panic(err)
	}
	return p
}

// NewProfile makes the plugins named at the extension points. args has the arguments of those that
// take any, as pointers to the types of k8s.io/kube-scheduler/config/v1. An error is that of a
// plugin which refuses its arguments.
func NewProfile(schedulerName string, at map[Point][]string, weights map[string]int64, args map[string]any) (*Profile, error) {
	return NewProfileOf(Catalog(), schedulerName, at, weights, args)
}

// NewProfileOf is NewProfile with the plugins of a catalog. Names that the catalog lacks are no
// error here: they become Outside, and a caller that has out-of-tree plugins looks there.
func NewProfileOf(catalog []Entry, schedulerName string, at map[Point][]string, weights map[string]int64,
	args map[string]any) (*Profile, error) {
	p := &Profile{SchedulerName: schedulerName, At: at, Weights: weights, made: map[string]any{},
		points: map[string]Point{}, catalog: catalog, args: args}
	for _, point := range AllPoints {
		for _, name := range at[point] {
			// A plugin at several points is one value, so that its parts share what they learn.
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

// Fresh returns the same profile with plugins of its own. A plugin has the clock of one cluster,
// and remembers what it was asked about it last: clusters that are asked about in turn need their
// own.
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

// assemblePlugins sorts what was made into the lists that are asked. It expects these lists to be
// empty. A plugin is in a list only if it implements the list's interface: a name at a point that
// its plugin does not extend, or whose work is done elsewhere, has no effect.
func (p *Profile) assemblePlugins() {
	p.deviceChoice()
	for _, name := range p.At[PreEnqueue] {
		if gate, ok := p.made[name].(Gate); ok {
			p.Gates = append(p.Gates, gate)
		}
	}

	for _, name := range p.filterNames() {
		if filter, ok := p.made[name].(Filter); ok {
			p.Filters = append(p.Filters, p.partOf(filter))
		}
	}

	// A scorer only at PreScore still fails the pods that it cannot read, as upstream's would.
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

	for _, name := range p.At[Reserve] {
		if reserver, ok := p.made[name].(Reserver); ok {
			p.Reservers = append(p.Reservers, reserver)
		}
	}

	// DefaultPreemption works through package decide, which only needs to know whether it is
	// enabled.
	for _, name := range p.At[PostFilter] {
		_, preempts := p.made[name].(Preempter)
		p.Preemption = p.Preemption || preempts
	}
	for _, name := range p.At[PodGroupPostFilter] {
		_, preempts := p.made[name].(Preempter)
		p.GroupPreemption = p.GroupPreemption || preempts
	}
}

// Has reports whether the plugin of that name is at the extension point.
func (p *Profile) Has(point Point, name string) bool {
	for _, n := range p.At[point] {
		if n == name {
			return true
		}
	}
	return false
}

// HasDevices reports whether claims are considered when a pod fits nowhere: DynamicResources is at
// PostFilter, where it may give up an allocation.
func (p *Profile) HasDevices() bool { return p.Has(PostFilter, "DynamicResources") }

// StopsBeforeDevices reports whether the pod was rejected as a whole before DynamicResources was
// asked at PreFilter. Such a pod keeps its nomination: upstream's DynamicResources then fails at
// PostFilter, before preemption can remove it.
func (p *Profile) StopsBeforeDevices(rejector string, r *Rejection) bool {
	if r == nil || !r.Unresolvable || !p.HasDevices() {
		return false
	}
	order := p.At[PreFilter]
	by := slices.Index(order, rejector)
	return by >= 0 && by < slices.Index(order, "DynamicResources")
}

// filterNames lists the plugins at Filter, and those only at PreFilter in their place: the order
// decides which of two plugins rejects a pod first.
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

// PreFilterOrder returns the indices of Filters in the order of PreFilter, at which a plugin can
// reject a pod before any node is looked at. Those that are not at PreFilter come last. A file may
// order the two points differently.
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

// partOf restricts a filter to the extension points at which it is enabled. A plugin that does not
// extend PreFilter is whole with Filter alone.
func (p *Profile) partOf(f Filter) Filter {
	if p.points[f.Name()]&PreFilter == 0 {
		return f
	}
	switch {
	case !p.Has(Filters, f.Name()):
		return preFilterOnly{f}
	case !p.Has(PreFilter, f.Name()):
		return filterOnly{f}
	}
	return f
}
