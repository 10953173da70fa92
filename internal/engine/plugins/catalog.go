package plugins

// Point is an extension point of the scheduling framework, or a set of them. An [Entry] has the set
// that its plugin extends; a [Profile] lists names by single points.
type Point uint16

// The extension points. The one that upstream calls Filter is Filters here, because Filter is the
// interface.
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

// pointNames are the keys under "plugins" in a configuration file. Sets of several points have no
// name.
var pointNames = map[Point]string{
	PreEnqueue: "preEnqueue", QueueSort: "queueSort", PreFilter: "preFilter", Filters: "filter", PostFilter: "postFilter",
	PodGroupPostFilter: "podGroupPostFilter",
	PreScore:           "preScore", Score: "score", Reserve: "reserve", Permit: "permit", PreBind: "preBind",
	Bind: "bind", PostBind: "postBind",
	PlacementGenerate: "placementGenerate", PlacementScore: "placementScore",
}

// String returns the point's name in configuration files, "" for a set of several points.
func (p Point) String() string { return pointNames[p] }

// Entry is a plugin that can be enabled by its name. Two plugins are the same if their names are:
// nothing else identifies one in a configuration file.
type Entry struct {
	Name string
	// Points are the extension points that upstream's plugin extends. Enabling the plugin at
	// multiPoint enables it at these.
	Points Point
	// Weight is the default one, for plugins at Score.
	Weight int64
	// Optional plugins are known but not enabled by default.
	Optional bool
	// New makes the plugin from its arguments, nil for the defaults. It is nil for plugins whose
	// work is done elsewhere.
	New func(args any) (any, error)
}

// newPlugin makes the plugin, or returns nil for one whose work is done elsewhere. A profile still
// lists the name of such a plugin at its points.
func (e *Entry) newPlugin(args any) (any, error) {
	if e.New == nil {
		return nil, nil
	}
	return e.New(args)
}

// Catalog lists the plugins in upstream's default order. Filters are asked in this order, and the
// first that rejects a node gives the reason: another order would change messages, and which events
// wake a pod. The slice is new with each call, so that callers may append to it.
func Catalog() []Entry {
	return []Entry{
		{Name: "SchedulingGates", Points: PreEnqueue, New: Plain(SchedulingGates{})},
		// The queue itself orders pods by priority, then by age: there is nothing to make.
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

		{Name: "PodTopologySpread", Points: PreFilter | Filters | PreScore | Score, Weight: 2, New: newPodTopologySpread},
		{Name: "InterPodAffinity", Points: PreFilter | Filters | PreScore | Score, Weight: 2, New: withArgs(NewInterPodAffinity)},
		{Name: "DynamicResources", Points: PreEnqueue | PreFilter | Filters | PostFilter | PodGroupPostFilter | Score | Reserve | PreBind,
			Weight: 2, New: withArgs(NewDynamicResources)},
		{Name: "DefaultPreemption", Points: PreEnqueue | PostFilter | PodGroupPostFilter, New: Plain(DefaultPreemption{})},
		{Name: "NodeResourcesBalancedAllocation", Points: PreScore | Score, Weight: 1, New: withArgs(NewNodeResourcesBalancedAllocation)},
		{Name: "ImageLocality", Points: Score, Weight: 1, New: Plain(ImageLocality{})},
		{Name: "DefaultBinder", Points: Bind, New: Plain(DefaultBinder{})},
		{Name: "NodeDeclaredFeatures", Points: PreFilter | Filters, New: Plain(NodeDeclaredFeatures{})},

		// In a profile by a feature gate, or by name.
		{Name: "GangScheduling", Points: PreEnqueue | Permit, Optional: true},
		{Name: "TopologyPlacementGenerator", Points: PlacementGenerate, Optional: true},
		{Name: "PodGroupPodsCount", Points: PlacementScore, Weight: 1, Optional: true},
		{Name: "Fragmentation", Points: Filters | Score | Reserve, Weight: 1, Optional: true, New: withArgs(NewFragmentation)},
	}
}

// Lookup returns the built-in entry of that name; false if there is none.
func Lookup(name string) (Entry, bool) { return findEntry(Catalog(), name) }

// findEntry searches a catalog, of which the first entry of a name counts.
func findEntry(catalog []Entry, name string) (Entry, bool) {
	for _, entry := range catalog {
		if entry.Name == name {
			return entry, true
		}
	}
	return Entry{}, false
}

// Plain is the New of plugins without arguments and without state: profiles may share the value.
func Plain(plugin any) func(any) (any, error) {
	return func(any) (any, error) { return plugin, nil }
}

// withArgs adapts the constructor of a plugin with arguments of type A. It passes nil, which stands
// for the defaults, if there are no arguments or if they are of another type.
func withArgs[A, P any](construct func(*A) (P, error)) func(any) (any, error) {
	return func(args any) (any, error) {
		typed, _ := args.(*A)
		return construct(typed)
	}
}
