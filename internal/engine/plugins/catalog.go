// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

// Point is an extension point of the scheduling framework, or a set of them. An [Entry] holds the
// set extended by its plugin; a [Profile] lists names by single point.
type Point uint16

// The extension points. Filters is upstream's Filter; the name Filter is taken by the interface.
const (
	PreEnqueue Point = 1 << iota
	QueueSort
	PreFilter
	Filters
	PostFilter
	PodGroupPostFilter
	PreScore
	Score
	Reserve
	Permit
	PreBind
	Bind
	PostBind
	PlacementGenerate
	PlacementScore
)

// AllPoints lists the extension points in the order in which a pod passes them.
var AllPoints = []Point{
	PreEnqueue, QueueSort, PreFilter, Filters, PostFilter, PodGroupPostFilter, PreScore, Score, Reserve, Permit, PreBind, Bind, PostBind,
	PlacementGenerate, PlacementScore,
}

// pointNames are the keys under "plugins" in a configuration file. Sets of several points are
// unnamed.
var pointNames = map[Point]string{
	PreEnqueue: "preEnqueue", QueueSort: "queueSort", PreFilter: "preFilter", Filters: "filter", PostFilter: "postFilter",
	PodGroupPostFilter: "podGroupPostFilter",
	PreScore:           "preScore", Score: "score", Reserve: "reserve", Permit: "permit", PreBind: "preBind",
	Bind: "bind", PostBind: "postBind",
	PlacementGenerate: "placementGenerate", PlacementScore: "placementScore",
}

// String returns the point's name in configuration files, or "" for a set of several points.
func (p Point) String() string { return pointNames[p] }

// Entry is a plugin that can be enabled by name. The name is a plugin's only identity in a
// configuration file.
type Entry struct {
	Name string
	// Points are the extension points of upstream's plugin. Enabling the plugin at multiPoint
	// enables it at these points.
	Points Point
	// Weight is the default weight of plugins at Score.
	Weight int64
	// Optional plugins are known but disabled by default.
	Optional bool
	// New makes the plugin from its arguments; nil arguments select the defaults. New is nil for
	// plugins implemented elsewhere.
	New func(args any) (any, error)
}

// newPlugin makes the plugin, or returns nil for plugins implemented elsewhere. A profile still
// lists the names of such plugins at their points.
func (e *Entry) newPlugin(args any) (any, error) {
	if e.New == nil {
		return nil, nil
	}
	return e.New(args)
}

// Catalog lists the plugins in upstream's default order. Filters run in this order, and the first
// filter to reject a node gives the reason. Another order would change messages and the events that
// wake a pod. Each call returns a new slice, so callers may append to it.
func Catalog() []Entry {
	return []Entry{
		{Name: "SchedulingGates", Points: PreEnqueue, New: Plain(SchedulingGates{})},
		// The queue itself orders pods by priority, then by age.
		{Name: "PrioritySort", Points: QueueSort},

		{Name: "NodeName", Points: PreFilter | Filters, New: Plain(NodeName{})},
		{Name: "NodeUnschedulable", Points: PreFilter | Filters, New: Plain(NodeUnschedulable{})},
		{Name: "TaintToleration", Points: PreFilter | Filters | PreScore | Score, Weight: 3, New: withArgs(NewTaintToleration)},
		{Name: "NodeAffinity", Points: PreFilter | Filters | PreScore | Score, Weight: 2, New: withArgs(NewNodeAffinity)},
		{Name: "NodePorts", Points: PreFilter | Filters, New: Plain(NodePorts{})},
		{Name: "NodeResourcesFit", Points: PreFilter | Filters | PreScore | Score | PlacementScore, Weight: 1,
			New: withArgs(NewNodeResourcesFit)},

		{Name: "VolumeRestrictions", Points: PreFilter | Filters, New: Plain(VolumeRestrictions{})},
		{Name: "NodeVolumeLimits", Points: PreFilter | Filters, New: withArgs(newNodeVolumeLimits)},
		{Name: "VolumeBinding", Points: PreFilter | Filters | PreScore | Score | Reserve | PreBind, Weight: 1,
			New: withArgs(NewVolumeBinding)},
		{Name: "VolumeZone", Points: PreFilter | Filters, New: Plain(VolumeZone{})},

		{Name: "PodTopologySpread", Points: PreFilter | Filters | PreScore | Score, Weight: 2,
			New: withGate(NewPodTopologySpread, func(s *PodTopologySpread, on bool) { s.Compare = on })},
		{Name: "InterPodAffinity", Points: PreFilter | Filters | PreScore | Score, Weight: 2, New: withArgs(NewInterPodAffinity)},
		{Name: "DynamicResources", Points: PreEnqueue | PreFilter | Filters | PostFilter | PodGroupPostFilter | Score | Reserve | PreBind,
			Weight: 2, New: withGate(NewDynamicResources, func(d *DynamicResources, on bool) { d.preempts = on })},
		{Name: "DefaultPreemption", Points: PreEnqueue | PostFilter | PodGroupPostFilter, New: Plain(DefaultPreemption{})},
		{Name: "NodeResourcesBalancedAllocation", Points: PreScore | Score, Weight: 1, New: withArgs(NewNodeResourcesBalancedAllocation)},
		{Name: "ImageLocality", Points: Score, Weight: 1, New: Plain(ImageLocality{})},
		{Name: "DefaultBinder", Points: Bind, New: Plain(DefaultBinder{})},
		{Name: "NodeDeclaredFeatures", Points: PreFilter | Filters, New: Plain(NodeDeclaredFeatures{})},

		// The following plugins are enabled in a profile by a feature gate or by name.
		{Name: "GangScheduling", Points: PreEnqueue | Permit, Optional: true},
		{Name: "TopologyPlacementGenerator", Points: PlacementGenerate, Optional: true},
		{Name: "PodGroupPodsCount", Points: PlacementScore, Weight: 1, Optional: true},
		{Name: DeferredResizes, Points: PreFilter | Filters | Permit, Optional: true},
		{Name: "Fragmentation", Points: Filters | Score | Reserve, Weight: 1, Optional: true, New: withArgs(NewFragmentation)},
	}
}

// Lookup returns the built-in entry with the given name, or false.
func Lookup(name string) (Entry, bool) { return findEntry(Catalog(), name) }

// findEntry returns the first entry with the given name.
func findEntry(catalog []Entry, name string) (Entry, bool) {
	for _, entry := range catalog {
		if entry.Name == name {
			return entry, true
		}
	}
	return Entry{}, false
}

// Plain is the New of plugins without arguments and state: profiles may share the value.
func Plain(plugin any) func(any) (any, error) {
	return func(any) (any, error) { return plugin, nil }
}

// withArgs adapts the constructor of a plugin with arguments of type A. Missing arguments and
// arguments of another type become nil, which selects the defaults.
func withArgs[A, P any](construct func(*A) (P, error)) func(any) (any, error) {
	return func(args any) (any, error) {
		typed, _ := args.(*A)
		return construct(typed)
	}
}

// Gated are the arguments of a plugin and the state of its feature gate.
type Gated[A any] struct {
	Args *A // nil selects the defaults
	On   bool
}

// withGate is withArgs for a plugin with a feature gate. Package config adds the gate's state to
// the arguments; callers with only a file's arguments pass these arguments, or nil.
func withGate[A, P any](construct func(*A) (P, error), set func(plugin P, on bool)) func(any) (any, error) {
	return func(args any) (any, error) {
		gated, ok := args.(*Gated[A])
		if !ok {
			return withArgs(construct)(args)
		}
		plugin, err := construct(gated.Args)
		if err == nil {
			set(plugin, gated.On)
		}
		return plugin, err
	}
}
