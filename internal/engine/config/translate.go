package config

import (
	"encoding/json"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// predicatePlugins are the plugins that do today what a predicate did. Where a plugin does more
// than that predicate, the policy now gets more: PodToleratesNodeNoExecuteTaints looked at one
// effect, TaintToleration looks at two.
var predicatePlugins = map[string][]string{
	"GeneralPredicates":               {"NodeResourcesFit", "NodeName", "NodePorts", "NodeAffinity"},
	"PodFitsResources":                {"NodeResourcesFit"},
	"PodFitsHostPorts":                {"NodePorts"},
	"PodFitsPorts":                    {"NodePorts"},
	"HostName":                        {"NodeName"},
	"MatchNodeSelector":               {"NodeAffinity"},
	"NoDiskConflict":                  {"VolumeRestrictions"},
	"NoVolumeZoneConflict":            {"VolumeZone"},
	"CheckVolumeBinding":              {"VolumeBinding"},
	"MaxCSIVolumeCountPred":           {"NodeVolumeLimits"},
	"MaxEBSVolumeCount":               {"NodeVolumeLimits"},
	"MaxGCEPDVolumeCount":             {"NodeVolumeLimits"},
	"MaxAzureDiskVolumeCount":         {"NodeVolumeLimits"},
	"MaxCinderVolumeCount":            {"NodeVolumeLimits"},
	"PodToleratesNodeTaints":          {"TaintToleration"},
	"PodToleratesNodeNoExecuteTaints": {"TaintToleration"},
	"CheckNodeUnschedulable":          {"NodeUnschedulable"},
	"CheckNodeCondition":              {"TaintToleration"}, // conditions have become taints
	"CheckNodeMemoryPressure":         {"TaintToleration"},
	"CheckNodeDiskPressure":           {"TaintToleration"},
	"CheckNodePIDPressure":            {"TaintToleration"},
	"MatchInterPodAffinity":           {"InterPodAffinity"},
	"EvenPodsSpread":                  {"PodTopologySpread"},
}

// priorityPlugins are the plugins that score today as a priority did. Spreading over Services and
// controllers is in the default constraints of PodTopologySpread.
var priorityPlugins = map[string]string{
	"LeastRequestedPriority":     "NodeResourcesFit",
	"MostRequestedPriority":      "NodeResourcesFit",
	"BalancedResourceAllocation": "NodeResourcesBalancedAllocation",
	"SelectorSpreadPriority":     "PodTopologySpread",
	"ServiceSpreadingPriority":   "PodTopologySpread",
	"EvenPodsSpreadPriority":     "PodTopologySpread",
	"TaintTolerationPriority":    "TaintToleration",
	"NodeAffinityPriority":       "NodeAffinity",
	"InterPodAffinityPriority":   "InterPodAffinity",
	"ImageLocalityPriority":      "ImageLocality",
}

// strategies maps priorities to scoring strategies of NodeResourcesFit. The third,
// RequestedToCapacityRatio, is a priority with an argument.
var strategies = map[string]configv1.ScoringStrategyType{
	"LeastRequestedPriority": configv1.LeastAllocated,
	"MostRequestedPriority":  configv1.MostAllocated,
}

// withoutEquivalent are predicates and priorities whose work no plugin does any more, and what
// comes nearest.
var withoutEquivalent = map[string]string{
	"CheckServiceAffinity":        "pod affinity on the pods",
	"NodePreferAvoidPodsPriority": "a PreferNoSchedule taint on the nodes",
	"ResourceLimitsPriority":      "requests on the pods",
}

// filterOrder is the order in which predicates were evaluated, whatever the order in the file; the
// last ones are newer than policies. Plugins that a policy does not name are off, except for the
// mandatory ones and those that are always on.
var (
	// To sort by; every plugin that a predicate stands for is in it.
	filterOrder = []string{
		"NodeUnschedulable", "NodeName", "NodePorts", "NodeAffinity", "NodeResourcesFit", "VolumeRestrictions", "TaintToleration",
		"NodeVolumeLimits", "VolumeBinding", "VolumeZone", "PodTopologySpread", "InterPodAffinity",
		"DynamicResources", "NodeDeclaredFeatures",
	}
	mandatory = []string{"TaintToleration", "NodeUnschedulable", "DynamicResources", "NodeDeclaredFeatures"}
	always    = []string{"SchedulingGates", "PrioritySort", "DynamicResources", "DefaultPreemption", "DefaultBinder"}
)

// translator gathers what a legacy file asks for, until buildProfile writes it down.
type translator struct {
	filters []string // nil: the defaults
	scores  []configv1.Plugin
	// defaultScores: the file says nothing of priorities.
	defaultScores bool
	arguments     map[string]any
	notes         []string
	errs          []error
	// strategy is the priority that has decided how NodeResourcesFit scores.
	strategy string
}

// newTranslator returns one that has gathered nothing: without predicates and priorities it stands
// for the defaults.
func newTranslator() *translator { return &translator{arguments: map[string]any{}} }

// addNote notes what of the file has no equivalent.
func (t *translator) addNote(path *field.Path, format string, args ...any) {
	t.notes = append(t.notes, fmt.Sprintf("%s: %s", path, fmt.Sprintf(format, args...)))
}

// setArgs sets a plugin's arguments, a pointer to its type in configv1. It replaces what was set
// before.
func (t *translator) setArgs(plugin string, args any) { t.arguments[plugin] = args }

// translatePredicates finds the plugins at Filter. nil is a list that is left out, which stands for
// the defaults; an empty one leaves only what is mandatory.
func (t *translator) translatePredicates(list []predicate) {
	if list == nil {
		return
	}
	// Legacy schedulers ran the mandatory predicates whatever the policy said.
	t.filters = slices.Clone(mandatory)
	for i, p := range list {
		path := field.NewPath("predicates").Index(i)
		switch names, known := predicatePlugins[p.Name]; {
		// The argument comes before the name, which the user chose freely.
		case p.Argument != nil && p.Argument.LabelsPresence != nil:
			t.filters = append(t.filters, "NodeAffinity")
			t.requireLabels(p.Argument.LabelsPresence.Labels, p.Argument.LabelsPresence.Presence)
		case p.Argument != nil && p.Argument.ServiceAffinity != nil:
			t.leaveOut(path, p.Name, withoutEquivalent["CheckServiceAffinity"])
		case known:
			t.filters = append(t.filters, names...)
		default:
			t.rejectUnknown(path, "Predicate", p.Name)
		}
	}
}

// leaveOut notes a predicate or priority without equivalent, and what comes nearest.
func (t *translator) leaveOut(path *field.Path, name, nearest string) {
	t.addNote(path, "%s has no equivalent and is left out (nearest: %s)", name, nearest)
}

// rejectUnknown refuses a name that was never one, with the message of the times, or leaves out one
// whose work no plugin does.
func (t *translator) rejectUnknown(path *field.Path, what, name string) {
	// It was valid once, and the file may have been in use for years: a note rather than a refusal.
	if nearest, ok := withoutEquivalent[name]; ok {
		t.leaveOut(path, name, nearest)
		return
	}
	t.errs = append(t.errs, fmt.Errorf("%s.name: invalid configuration: %s type not found for %q", path, what, name))
}

// requireLabels has every pod of the profile keep to nodes that have the labels, or lack them.
// Several such predicates add to one term, in which all requirements hold.
func (t *translator) requireLabels(labels []string, present bool) {
	// The policy of a file has no other way to set these arguments, so they are all of
	// requireLabels.
	args, ok := t.arguments["NodeAffinity"].(*configv1.NodeAffinityArgs)
	if !ok {
		args = &configv1.NodeAffinityArgs{AddedAffinity: &v1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{}}},
		}}
		t.setArgs("NodeAffinity", args)
	}
	operator := v1.NodeSelectorOpExists
	if !present {
		operator = v1.NodeSelectorOpDoesNotExist
	}
	term := &args.AddedAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0]
	// Presence asks for the label alone: its value is not compared.
	for _, label := range labels {
		term.MatchExpressions = append(term.MatchExpressions, v1.NodeSelectorRequirement{Key: label, Operator: operator})
	}
}

// translatePriorities finds the plugins at Score, and how NodeResourcesFit scores. nil stands for
// the defaults, an empty list for no score at all.
func (t *translator) translatePriorities(list []priority) {
	t.defaultScores = list == nil
	for i, p := range list {
		path := field.NewPath("priorities").Index(i)

		switch plugin, known := priorityPlugins[p.Name]; {
		case p.Argument != nil && p.Argument.RequestedToCapacityRatio != nil:
			if t.chooseStrategy(path, p.Name) {
				ratio := p.Argument.RequestedToCapacityRatio
				t.scoreResources(&configv1.ScoringStrategy{
					Type: configv1.RequestedToCapacityRatio, Resources: ratio.Resources,
					RequestedToCapacityRatio: &configv1.RequestedToCapacityRatioParam{Shape: ratio.Shape},
				})
				t.addScore(path, "NodeResourcesFit", p.Weight)
			}

		// There is no plugin for these two; the note says what to write instead.
		case p.Argument != nil && p.Argument.ServiceAntiAffinity != nil:
			t.leaveOut(path, p.Name, fmt.Sprintf("default constraints of PodTopologySpread with topologyKey %s",
				p.Argument.ServiceAntiAffinity.Label))
		case p.Argument != nil && p.Argument.LabelPreference != nil:
			t.leaveOut(path, p.Name, "a preferred addedAffinity of NodeAffinity")

		case p.Name == "EqualPriority":
			t.addNote(path, "EqualPriority has no effect: it scores all nodes alike")
		case !known:
			t.rejectUnknown(path, "Priority", p.Name)
		default:
			if plugin == "NodeResourcesFit" {
				// The first one in the file counts.
				if !t.chooseStrategy(path, p.Name) {
					continue
				}
				t.scoreResources(&configv1.ScoringStrategy{Type: strategies[p.Name]})
			}
			t.addScore(path, plugin, p.Weight)
		}
	}
}

// chooseStrategy tells whether the priority may decide how NodeResourcesFit scores: the plugin has
// one strategy.
func (t *translator) chooseStrategy(path *field.Path, name string) bool {
	if t.strategy != "" {
		t.addNote(path, "%s has no equivalent beside %s and is left out: NodeResourcesFit scores in one way", name, t.strategy)
		return false
	}
	t.strategy = name
	return true
}

// scoreResources sets the strategy of NodeResourcesFit.
func (t *translator) scoreResources(s *configv1.ScoringStrategy) {
	t.setArgs("NodeResourcesFit", &configv1.NodeResourcesFitArgs{ScoringStrategy: s})
}

// addScore adds the plugin's weight; two priorities may have become one plugin, which then weighs
// as much as both. A weight beyond 31 bits is cut down, with a note.
func (t *translator) addScore(path *field.Path, plugin string, weight int64) {
	const most = 1<<31 - 1
	// The later priority decides where in the list the plugin is, which has no effect on the sum.
	for i := range t.scores {
		if t.scores[i].Name == plugin {
			weight += int64(*t.scores[i].Weight)
			t.scores = slices.Delete(t.scores, i, i+1)
			break
		}
	}
	if weight > most {
		t.addNote(path.Child("weight"), "%d is more than a plugin can weigh and becomes %d", weight, most)
		weight = most
	}
	t.scores = append(t.scores, configv1.Plugin{Name: plugin, Weight: ptr.To(int32(weight))})
}

// scoresWith tells whether the plugin will score.
func (t *translator) scoresWith(plugin string) bool {
	return t.defaultScores || slices.ContainsFunc(t.scores, func(p configv1.Plugin) bool { return p.Name == plugin })
}

// buildProfile writes down all extension points, so that a default of some later version does not
// get in. "*" disables all defaults at multiPoint; what follows is enabled at single points.
func (t *translator) buildProfile() (configv1.KubeSchedulerProfile, error) {
	written := &configv1.Plugins{MultiPoint: configv1.PluginSet{Disabled: []configv1.Plugin{{Name: "*"}}}}
	filters := t.filters
	for _, entry := range plugins.Catalog() {
		if t.filters == nil && !entry.Optional && entry.Points&plugins.Filters != 0 {
			filters = append(filters, entry.Name)
		}
		// The defaults of today's catalog, not those of the times: the file left them to the
		// scheduler.
		if t.defaultScores && !entry.Optional && entry.Points&plugins.Score != 0 {
			t.scores = append(t.scores, configv1.Plugin{Name: entry.Name, Weight: ptr.To(int32(entry.Weight))})
		}
	}

	// Sorted, equal names are neighbours, which Compact needs.
	slices.SortFunc(filters, func(a, b string) int { return slices.Index(filterOrder, a) - slices.Index(filterOrder, b) })
	filters = slices.Compact(filters)
	for _, name := range filters {
		enablePlugin(written, name, plugins.PreFilter|plugins.Filters|plugins.Reserve|plugins.PreBind)
	}

	// A scorer with state from PreScore needs both points.
	for _, plugin := range t.scores {
		enablePlugin(written, plugin.Name, plugins.PreScore)
		written.Score.Enabled = append(written.Score.Enabled, plugin)
	}

	for _, name := range always {
		enablePlugin(written, name,
			plugins.PreEnqueue|plugins.QueueSort|plugins.PostFilter|plugins.PodGroupPostFilter|plugins.Bind)
	}
	profile := configv1.KubeSchedulerProfile{Plugins: written}
	return profile, t.writeArguments(&profile)
}

// enablePlugin adds the plugin at those of the extension points that it extends. The caller adds it
// once per point.
func enablePlugin(written *configv1.Plugins, name string, points plugins.Point) {
	entry, _ := plugins.Lookup(name)
	for _, point := range plugins.AllPoints {
		if entry.Points&points&point != 0 {
			set := pluginSet(written, point)
			set.Enabled = append(set.Enabled, configv1.Plugin{Name: name})
		}
	}
}

// writeArguments adds what setArgs has set, in the order of the catalog. Arguments of plugins that
// the profile does not enable are written, too, and have no effect.
func (t *translator) writeArguments(profile *configv1.KubeSchedulerProfile) error {
	for _, entry := range plugins.Catalog() {
		args, ok := t.arguments[entry.Name]
		if !ok {
			continue
		}
		// Both forms: the raw one is printed, the object is what the plugins are made from.
		raw, err := json.Marshal(args)
		if err != nil {
			return err
		}
		profile.PluginConfig = append(profile.PluginConfig, configv1.PluginConfig{
			Name: entry.Name, Args: runtime.RawExtension{Raw: raw, Object: args.(runtime.Object)},
		})
	}
	return nil
}
