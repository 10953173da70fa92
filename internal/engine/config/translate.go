// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

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

// predicatePlugins holds the plugins replacing each predicate. If a plugin does more than the
// predicate, the translated policy does more as well. For example, PodToleratesNodeNoExecuteTaints
// checked one taint effect, whereas TaintToleration checks two.
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

// priorityPlugins holds the scoring plugins replacing each priority. Spreading over Services and
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

// strategies maps priorities to scoring strategies of NodeResourcesFit. The third strategy,
// RequestedToCapacityRatio, was a priority with an argument.
var strategies = map[string]configv1.ScoringStrategyType{
	"LeastRequestedPriority": configv1.LeastAllocated,
	"MostRequestedPriority":  configv1.MostAllocated,
}

// withoutEquivalent holds predicates and priorities without a replacing plugin, and the nearest
// substitute.
var withoutEquivalent = map[string]string{
	"CheckServiceAffinity":        "pod affinity on the pods",
	"NodePreferAvoidPodsPriority": "a PreferNoSchedule taint on the nodes",
	"ResourceLimitsPriority":      "requests on the pods",
}

// filterOrder is the evaluation order of predicates, regardless of the order in the file; its last
// plugins are newer than policies. Plugins not named by a policy are disabled, except for the
// plugins in mandatory and always.
var (
	// filterOrder is used for sorting, and contains every plugin that replaces a predicate.
	filterOrder = []string{
		"NodeUnschedulable", "NodeName", "NodePorts", "NodeAffinity", "NodeResourcesFit", "VolumeRestrictions", "TaintToleration",
		"NodeVolumeLimits", "VolumeBinding", "VolumeZone", "PodTopologySpread", "InterPodAffinity",
		"DynamicResources", "NodeDeclaredFeatures",
	}
	mandatory = []string{"TaintToleration", "NodeUnschedulable", "DynamicResources", "NodeDeclaredFeatures"}
	always    = []string{"SchedulingGates", "PrioritySort", "DynamicResources", "DefaultPreemption", "DefaultBinder"}
)

// translator gathers the contents of a legacy file, which buildProfile then writes to a profile.
type translator struct {
	filters []string // nil: the defaults
	scores  []configv1.Plugin
	// defaultScores means that the file omits priorities.
	defaultScores bool
	arguments     map[string]any
	notes         []string
	errs          []error
	// strategy is the priority that determined NodeResourcesFit's scoring.
	strategy string
}

// newTranslator returns an empty translator: without predicates and priorities it selects the
// defaults.
func newTranslator() *translator { return &translator{arguments: map[string]any{}} }

// addNote adds a note on an entry of the file without an equivalent.
func (t *translator) addNote(path *field.Path, format string, args ...any) {
	t.notes = append(t.notes, fmt.Sprintf("%s: %s", path, fmt.Sprintf(format, args...)))
}

// setArgs sets a plugin's arguments, a pointer to its type in configv1. It replaces earlier
// arguments.
func (t *translator) setArgs(plugin string, args any) { t.arguments[plugin] = args }

// translatePredicates determines the plugins at Filter. A nil list was omitted and selects the
// defaults; an empty list selects only the mandatory plugins.
func (t *translator) translatePredicates(list []predicate) {
	if list == nil {
		return
	}
	// Legacy schedulers ran the mandatory predicates regardless of the policy.
	t.filters = slices.Clone(mandatory)
	for i, p := range list {
		path := field.NewPath("predicates").Index(i)
		switch names, known := predicatePlugins[p.Name]; {
		// The argument takes precedence over the name, which the user chose freely.
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

// leaveOut notes a predicate or priority without equivalent, and its nearest substitute.
func (t *translator) leaveOut(path *field.Path, name, nearest string) {
	t.addNote(path, "%s has no equivalent and is left out (nearest: %s)", name, nearest)
}

// rejectUnknown refuses a name that never existed, with the original message, or omits a name
// without a replacing plugin.
func (t *translator) rejectUnknown(path *field.Path, what, name string) {
	// The name was once valid, and the file may have been in use for years, so it is noted rather
	// than refused.
	if nearest, ok := withoutEquivalent[name]; ok {
		t.leaveOut(path, name, nearest)
		return
	}
	t.errs = append(t.errs, fmt.Errorf("%s.name: invalid configuration: %s type not found for %q", path, what, name))
}

// requireLabels restricts every pod of the profile to nodes with the labels, or without them.
// Several such predicates are combined into one term, which requires all of them.
func (t *translator) requireLabels(labels []string, present bool) {
	// Only requireLabels sets these arguments for a policy.
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
	// Presence requires only the label: its value is not compared.
	for _, label := range labels {
		term.MatchExpressions = append(term.MatchExpressions, v1.NodeSelectorRequirement{Key: label, Operator: operator})
	}
}

// translatePriorities determines the plugins at Score, and NodeResourcesFit's scoring. A nil list
// selects the defaults, and an empty list disables scoring.
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

		// ServiceAntiAffinity and LabelPreference cannot be translated; the note names the
		// replacement.
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
				// The first such priority in the file counts.
				if !t.chooseStrategy(path, p.Name) {
					continue
				}
				t.scoreResources(&configv1.ScoringStrategy{Type: strategies[p.Name]})
			}
			t.addScore(path, plugin, p.Weight)
		}
	}
}

// chooseStrategy reports whether the priority may determine NodeResourcesFit's scoring. The plugin
// has only one strategy.
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

// addScore adds the plugin with its weight. If two priorities map to one plugin, their weights are
// added up. A weight beyond 31 bits is reduced, with a note.
func (t *translator) addScore(path *field.Path, plugin string, weight int64) {
	const most = 1<<31 - 1
	// The later priority determines the plugin's place in the list, which does not affect the sum.
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

// scoresWith reports whether the plugin will score.
func (t *translator) scoresWith(plugin string) bool {
	return t.defaultScores || slices.ContainsFunc(t.scores, func(p configv1.Plugin) bool { return p.Name == plugin })
}

// buildProfile writes all extension points explicitly, so that defaults of later versions are not
// added. "*" disables all defaults at multiPoint, and the plugins of the legacy file are enabled at
// single points.
func (t *translator) buildProfile() (configv1.KubeSchedulerProfile, error) {
	written := &configv1.Plugins{MultiPoint: configv1.PluginSet{Disabled: []configv1.Plugin{{Name: "*"}}}}
	filters := t.filters
	for _, entry := range plugins.Catalog() {
		if t.filters == nil && !entry.Optional && entry.Points&plugins.Filters != 0 {
			filters = append(filters, entry.Name)
		}
		// Use the defaults of the current catalog, because the file leaves the defaults to the
		// scheduler.
		if t.defaultScores && !entry.Optional && entry.Points&plugins.Score != 0 {
			t.scores = append(t.scores, configv1.Plugin{Name: entry.Name, Weight: ptr.To(int32(entry.Weight))})
		}
	}

	// Compact requires equal names to be adjacent.
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

// enablePlugin adds the plugin at each of the given points that it extends. Callers must add a
// plugin only once per point.
func enablePlugin(written *configv1.Plugins, name string, points plugins.Point) {
	entry, _ := plugins.Lookup(name)
	for _, point := range plugins.AllPoints {
		if entry.Points&points&point != 0 {
			set := pluginSet(written, point)
			set.Enabled = append(set.Enabled, configv1.Plugin{Name: name})
		}
	}
}

// writeArguments adds the arguments set by setArgs, in the order of the catalog. It includes the
// ineffective arguments of plugins that the profile does not enable.
func (t *translator) writeArguments(profile *configv1.KubeSchedulerProfile) error {
	for _, entry := range plugins.Catalog() {
		args, ok := t.arguments[entry.Name]
		if !ok {
			continue
		}
		// Set both forms: the raw form is printed, and the object configures the plugins.
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
