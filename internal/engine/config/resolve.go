// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// pluginSet returns the file's plugin set of an extension point, to be read or changed in place. If
// the file has no plugins, it returns a detached, empty set.
func pluginSet(p *configv1.Plugins, point plugins.Point) *configv1.PluginSet {
	if p == nil {
		return &configv1.PluginSet{}
	}
	return map[plugins.Point]*configv1.PluginSet{
		plugins.PreEnqueue: &p.PreEnqueue, plugins.QueueSort: &p.QueueSort, plugins.PreFilter: &p.PreFilter, plugins.Filters: &p.Filter,
		plugins.PostFilter: &p.PostFilter, plugins.PodGroupPostFilter: &p.PodGroupPostFilter,
		plugins.PreScore: &p.PreScore, plugins.Score: &p.Score, plugins.Reserve: &p.Reserve,
		plugins.Permit: &p.Permit, plugins.PreBind: &p.PreBind, plugins.Bind: &p.Bind, plugins.PostBind: &p.PostBind,
		plugins.PlacementGenerate: &p.PlacementGenerate, plugins.PlacementScore: &p.PlacementScore,
	}[point]
}

// mergePlugins merges the file's plugins with the default plugins, which are all enabled at
// multiPoint. The result is a copy. Like upstream, only multiPoint has defaults: pluginsAt adds the
// file's plugins at single points to them.
func mergePlugins(custom *configv1.Plugins) *configv1.Plugins {
	var defaults configv1.PluginSet
	for _, entry := range plugins.Catalog() {
		if entry.Optional {
			continue
		}
		// Defaults have the form of a file, so that the same code merges both.
		plugin := configv1.Plugin{Name: entry.Name}
		if entry.Weight > 0 {
			plugin.Weight = ptr.To(int32(entry.Weight))
		}
		defaults.Enabled = append(defaults.Enabled, plugin)
	}

	if custom == nil {
		return &configv1.Plugins{MultiPoint: defaults}
	}
	result := custom.DeepCopy()
	result.MultiPoint = mergedSet(defaults.Enabled, custom.MultiPoint)
	return result
}

// mergedSet returns the defaults that are not disabled, in their order and with the file's changes,
// followed by the file's own plugins. "*" disables all defaults; a plugin both disabled and enabled
// counts as the file's own.
//
//	defaults A B C; the file disables B and enables C (weight 5), D
//	-> A, C (weight 5), D
func mergedSet(defaults []configv1.Plugin, custom configv1.PluginSet) configv1.PluginSet {
	disabled := sets.New[string]()
	for _, plugin := range custom.Disabled {
		disabled.Insert(plugin.Name)
	}

	own := map[string]int{}
	for i, plugin := range custom.Enabled {
		own[plugin.Name] = i
	}

	result := configv1.PluginSet{Disabled: custom.Disabled}
	replaced := sets.New[int]()
	if !disabled.Has("*") {
		for _, plugin := range defaults {
			if disabled.Has(plugin.Name) {
				continue
			}
			// A default that is also enabled by the file keeps its place and gets the file's
			// weight.
			if i, ok := own[plugin.Name]; ok {
				plugin = custom.Enabled[i]
				replaced.Insert(i)
			}
			result.Enabled = append(result.Enabled, plugin)
		}
	}

	for i, plugin := range custom.Enabled {
		if !replaced.Has(i) {
			result.Enabled = append(result.Enabled, plugin)
		}
	}
	return result
}

// resolver determines a profile's plugins at each extension point. It gathers all errors, so that
// the user can fix them together.
type resolver struct {
	path *field.Path // path of the profile's plugins
	// plugins holds the merged plugins. The paths in errors are correct only for the file's own
	// entries, which suffices because the defaults cause no errors.
	plugins *configv1.Plugins
	// outside holds the plugins outside of the catalog, with their extension points.
	outside map[string]plugins.Point
	errs    []error
}

// pointsOf returns a plugin's extension points, or false if the plugin does not exist.
func (r *resolver) pointsOf(name string) (plugins.Point, bool) {
	if entry, ok := plugins.Lookup(name); ok {
		return entry.Points, true
	}
	points, ok := r.outside[name]
	return points, ok
}

func (r *resolver) addError(path *field.Path, format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf("%s: %s", path, fmt.Sprintf(format, args...)))
}

// pluginKind returns upstream's name in messages for the plugins of an extension point, such as
// FilterPlugin.
func pluginKind(point plugins.Point) string {
	name := point.String()
	return strings.ToUpper(name[:1]) + name[1:] + "Plugin"
}

// specificAt lists the plugins enabled at the extension point itself, in the file's order. A plugin
// that is unknown, does not extend the point or is listed twice is an error.
func (r *resolver) specificAt(point plugins.Point) (names []string) {
	path := r.path.Child(point.String(), "enabled")
	for i, plugin := range pluginSet(r.plugins, point).Enabled {
		points, known := r.pointsOf(plugin.Name)
		switch {
		case !known:
			r.addError(path.Index(i).Child("name"), "%s %q does not exist", pluginKind(point), plugin.Name)
		case points&point == 0:
			r.addError(path.Index(i).Child("name"), "plugin %q does not extend %s plugin", plugin.Name, pluginKind(point))
		case slices.Contains(names, plugin.Name):
			r.addError(path.Index(i).Child("name"), "plugin %q already registered as %q", plugin.Name, pluginKind(point))
		default:
			names = append(names, plugin.Name)
		}
	}
	return names
}

// multiPoint lists the plugins that multiPoint enables at the extension point. Plugins also enabled
// at the point itself are in both lists.
func (r *resolver) multiPoint(point plugins.Point) (names []string) {
	disabled := sets.New[string]()
	for _, plugin := range pluginSet(r.plugins, point).Disabled {
		disabled.Insert(plugin.Name)
	}
	// Only plugins from multiPoint can be disabled at a point.
	if disabled.Has("*") {
		return nil
	}
	for _, plugin := range r.plugins.MultiPoint.Enabled {
		if points, _ := r.pointsOf(plugin.Name); points&point != 0 && !disabled.Has(plugin.Name) && !slices.Contains(names, plugin.Name) {
			names = append(names, plugin.Name)
		}
	}
	return names
}

// pluginsAt lists the plugins at an extension point in call order: first the plugins enabled by
// both the point and multiPoint, in the point's order; then all other plugins of multiPoint; then
// all other plugins of the point.
//
//	multiPoint: A B C; point: C D  ->  C A B D
func (r *resolver) pluginsAt(point plugins.Point) (names []string) {
	specific, multi := r.specificAt(point), r.multiPoint(point)
	// A file that lists a default plugin at a point moves it to the front at that point.
	both := slices.DeleteFunc(slices.Clone(specific), func(name string) bool { return !slices.Contains(multi, name) })
	for _, name := range slices.Concat(both, multi, specific) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// checkMultiPoint refuses plugins unknown or enabled twice at multiPoint.
func (r *resolver) checkMultiPoint(written *configv1.Plugins) {
	if written == nil {
		return
	}
	path := r.path.Child("multiPoint", "enabled")
	seen := sets.New[string]()
	// Check the file's own list: the merged list also contains the defaults, which are known and
	// distinct.
	for i, plugin := range written.MultiPoint.Enabled {
		if _, known := r.pointsOf(plugin.Name); !known {
			r.addError(path.Index(i).Child("name"), "plugin %q does not exist", plugin.Name)
		} else if seen.Has(plugin.Name) {
			r.addError(path.Index(i).Child("name"), "plugin %q already registered", plugin.Name)
		}
		seen.Insert(plugin.Name)
	}
}

// scoreWeights returns the weights of the Score plugins. A plugin under score overrides multiPoint
// even without a weight: an omitted weight means 1, not the plugin's default. written holds the
// file's own plugins, or nil. Weights are checked in written, so that messages can refer to the
// file.
func (r *resolver) scoreWeights(written *configv1.Plugins) map[string]int64 {
	weights := map[string]int64{}
	for _, plugin := range slices.Concat(r.plugins.Score.Enabled, r.plugins.MultiPoint.Enabled) {
		points, _ := r.pointsOf(plugin.Name)
		if _, ok := weights[plugin.Name]; ok || points&plugins.Score == 0 {
			continue
		}
		weights[plugin.Name] = int64(max(ptr.Deref(plugin.Weight, 0), 1))
	}
	if written != nil {
		r.checkWeights(r.path.Child("score", "enabled"), written.Score.Enabled)
		r.checkWeights(r.path.Child("multiPoint", "enabled"), written.MultiPoint.Enabled)
	}
	return weights
}

// checkWeights refuses negative weights of scoring plugins. Upstream accepts some of them, and then
// prefers the nodes with the lowest scores of such a plugin.
func (r *resolver) checkWeights(path *field.Path, list []configv1.Plugin) {
	for i, plugin := range list {
		points, _ := r.pointsOf(plugin.Name)
		if w := ptr.Deref(plugin.Weight, 0); w < 0 && points&plugins.Score != 0 {
			r.addError(path.Index(i).Child("weight"), "Invalid value: %d: must not be negative", w)
		}
	}
}

// resolvePlugins lists the plugins of a profile at each extension point, and their weights. Like
// upstream, a profile needs exactly one plugin at QueueSort and at least one at Bind; these errors
// follow the errors about single plugins.
func resolvePlugins(path *field.Path, profile *configv1.KubeSchedulerProfile,
	outside map[string]plugins.Point) (map[plugins.Point][]string, map[string]int64, error) {
	r := &resolver{path: path.Child("plugins"), plugins: mergePlugins(profile.Plugins), outside: outside}
	// Check multiPoint first, because its errors concern all points.
	r.checkMultiPoint(profile.Plugins)
	at := map[plugins.Point][]string{}
	for _, point := range plugins.AllPoints {
		// The profile omits points without plugins.
		if names := r.pluginsAt(point); len(names) > 0 {
			at[point] = names
		}
	}

	weights := r.scoreWeights(profile.Plugins)
	if n := len(at[plugins.QueueSort]); n != 1 {
		r.addError(r.path.Child("queueSort"),
			"only one queue sort plugin required for profile with scheduler name %q, but got %d", *profile.SchedulerName, n)
	}

	if len(at[plugins.Bind]) == 0 {
		r.addError(r.path.Child("bind"), "at least one bind plugin is needed for profile with scheduler name %q", *profile.SchedulerName)
	}
	if len(at[plugins.PlacementGenerate]) > 1 {
		r.addError(r.path.Child("placementGenerate"),
			"at most one placement generate plugin is allowed for profile with scheduler name %q", *profile.SchedulerName)
	}
	return at, weights, flattenErrors(r.errs)
}
