// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// makeProfiles creates the file's plugins, and notes its ineffective fields. It skips a profile
// with an error; the errors of all profiles are returned together.
func (c *Config) makeProfiles(options Options) error {
	if p := *c.Spec.PercentageOfNodesToScore; p > 0 {
		c.addNote(field.NewPath("percentageOfNodesToScore"), "has no effect: every node is considered for every pod")
	}
	if c.written.Parallelism != nil {
		c.addNote(field.NewPath("parallelism"), "affects out-of-tree plugins only")
	}

	if c.Spec.DelayCacheUntilActive {
		c.addNote(field.NewPath("delayCacheUntilActive"),
			"has no effect: a standby replica watches, so that it can take over immediately")
	}
	// Extenders do not belong to a profile, so the resources are listed once for all profiles.
	ignored := c.ignoredByExtenders()
	var errs []error
	for i := range c.Spec.Profiles {
		errs = append(errs, c.makeProfile(field.NewPath("profiles").Index(i), &c.Spec.Profiles[i], ignored, options))
	}
	return flattenErrors(errs)
}

// makeProfile compiles one profile. It returns the first error: further ones would only be
// consequences of the first. ignored are the resources ignored by NodeResourcesFit.
func (c *Config) makeProfile(path *field.Path, profile *configv1.KubeSchedulerProfile, ignored []string, options Options) error {
	outside, err := probePlugins(path, profile, &options)
	if err != nil {
		return err
	}
	at, weights, err := resolvePlugins(path, profile, outside)
	if err != nil {
		return err
	}
	// Without its gate, upstream's VolumeBinding returns Skip at PreScore. Removing it from the
	// points has the same effect.
	if options.WithoutStorageScores {
		for _, point := range []plugins.Point{plugins.PreScore, plugins.Score} {
			at[point] = slices.DeleteFunc(at[point], func(name string) bool { return name == (*plugins.VolumeBinding)(nil).Name() })
		}
	}
	// Like upstream, replace the resources listed in the file by the resources of extenders before
	// checking the arguments.
	if len(ignored) > 0 && slices.Contains(at[plugins.Filters], "NodeResourcesFit") {
		fitArgs(profile).IgnoredResources = ignored
	}
	if err := validateFitArgs(path.Child("pluginConfig"), profile); err != nil {
		return err
	}
	// The plugins' own checks run last, such as for an affinity that cannot be parsed.
	made, err := plugins.NewProfile(*profile.SchedulerName, at, weights, argumentsOf(profile, options))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	c.Profiles = append(c.Profiles, made)
	c.noteIneffective(path, profile, made, outside)
	return nil
}

// probePlugins lists the out-of-tree plugins that the profile may enable, with their extension
// points. Each is probed once, even if it is at several points. resolvePlugins handles unknown
// names, since it has the path for the error.
func probePlugins(path *field.Path, profile *configv1.KubeSchedulerProfile, options *Options) (map[string]plugins.Point, error) {
	// A profile without plugins enables the defaults only.
	if options.Probe == nil || profile.Plugins == nil {
		return options.Outside, nil
	}
	outside := map[string]plugins.Point{}
	maps.Copy(outside, options.Outside)
	var errs []error
	asked := sets.New[string]()
	for _, name := range enabledNames(profile.Plugins) {
		// Berth's own plugins take precedence over out-of-tree plugins with the same name, and need
		// no probe.
		_, inTree := plugins.Lookup(name)
		if _, known := outside[name]; known || inTree || asked.Has(name) {
			continue
		}
		asked.Insert(name)
		// Probe may create the plugin with its arguments, so an error may concern the arguments.
		points, known, err := options.Probe(*profile.SchedulerName, name, outsideArgs(profile, name))
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", path, err))
		} else if known {
			outside[name] = points
		}
	}

	return outside, flattenErrors(errs)
}

// enabledNames lists the plugins that are enabled anywhere, with repetitions.
func enabledNames(p *configv1.Plugins) (names []string) {
	for _, set := range allSets(p) {
		for _, plugin := range set.Enabled {
			names = append(names, plugin.Name)
		}
	}
	return names
}

// allSets returns MultiPoint and the plugin sets of all points.
func allSets(p *configv1.Plugins) []*configv1.PluginSet {
	atPoint := func(point plugins.Point) *configv1.PluginSet { return pluginSet(p, point) }
	return append([]*configv1.PluginSet{&p.MultiPoint}, rules.Mapped(plugins.AllPoints, atPoint)...)
}

// outsideArgs returns an out-of-tree plugin's arguments in the profile, undecoded.
func outsideArgs(profile *configv1.KubeSchedulerProfile, name string) runtime.Object {
	for i := range profile.PluginConfig {
		if args := &profile.PluginConfig[i].Args; profile.PluginConfig[i].Name == name {
			if args.Object != nil {
				return args.Object
			}
			if args.Raw != nil {
				return &runtime.Unknown{Raw: args.Raw, ContentType: runtime.ContentTypeJSON}
			}
		}
	}
	return nil
}

// argumentsOf returns the plugins' arguments, by plugin name. Four plugins also get the state of
// feature gates, which upstream's plugins read themselves.
func argumentsOf(profile *configv1.KubeSchedulerProfile, options Options) map[string]any {
	args := map[string]any{
		"TaintToleration":  &plugins.TaintTolerationArgs{Compare: options.CompareTolerations},
		"NodeVolumeLimits": &plugins.NodeVolumeLimitsArgs{AllowMissing: options.AllowMissingDrivers},
	}
	for i := range profile.PluginConfig {
		// Raw arguments belong to out-of-tree plugins, which read them themselves (Arguments,
		// outsideArgs).
		if object := profile.PluginConfig[i].Args.Object; object != nil {
			args[profile.PluginConfig[i].Name] = object
		}
	}
	// The file's arguments are wrapped together with the state of the gate.
	spread, _ := args["PodTopologySpread"].(*configv1.PodTopologySpreadArgs)
	args["PodTopologySpread"] = &plugins.Gated[configv1.PodTopologySpreadArgs]{Args: spread, On: options.CompareTolerations}
	devices, _ := args["DynamicResources"].(*configv1.DynamicResourcesArgs)
	args["DynamicResources"] = &plugins.Gated[configv1.DynamicResourcesArgs]{Args: devices, On: options.PreemptDevices}
	return args
}

// ignoredByExtenders lists the resources managed only by extenders. NodeResourcesFit ignores them
// in all profiles, instead of the resources listed in its arguments.
func (c *Config) ignoredByExtenders() (ignored []string) {
	for i := range c.Spec.Extenders {
		for _, resource := range c.Spec.Extenders[i].ManagedResources {
			if resource.IgnoredByScheduler {
				ignored = append(ignored, resource.Name)
			}
		}
	}
	return ignored
}

// fitArgs returns the profile's arguments of NodeResourcesFit, for changes. If the profile has
// none, it adds the default arguments to the profile.
func fitArgs(profile *configv1.KubeSchedulerProfile) *configv1.NodeResourcesFitArgs {
	for i := range profile.PluginConfig {
		if args, ok := profile.PluginConfig[i].Args.Object.(*configv1.NodeResourcesFitArgs); ok {
			return args
		}
	}
	args := &configv1.NodeResourcesFitArgs{}
	plugins.SetArgsDefaults(args)
	// Only Object is set: encoding it creates the raw form.
	added := configv1.PluginConfig{Name: "NodeResourcesFit"}
	added.Args.Object = args
	profile.PluginConfig = append(profile.PluginConfig, added)
	return args
}

// validateFitArgs checks the arguments of NodeResourcesFit if the profile enables it. If the
// profile does not enable the plugin, upstream does not check these arguments, unlike the arguments
// of other plugins. Upstream also lets extenders change them before the check.
func validateFitArgs(path *field.Path, profile *configv1.KubeSchedulerProfile) error {
	if !slices.Contains(enabledNames(mergePlugins(profile.Plugins)), "NodeResourcesFit") {
		return nil
	}
	for i := range profile.PluginConfig {
		if args, ok := profile.PluginConfig[i].Args.Object.(*configv1.NodeResourcesFitArgs); ok {
			return plugins.ValidateArgs(path.Index(i).Child("args"), args)
		}
	}
	return nil
}

// addNote adds a note on an ineffective field of the file.
func (c *Config) addNote(path *field.Path, format string, args ...any) {
	c.Notes = append(c.Notes, fmt.Sprintf("%s: %s", path, fmt.Sprintf(format, args...)))
}

// noteIneffective notes ineffective fields of a valid profile. Upstream does not report such
// fields.
func (c *Config) noteIneffective(path *field.Path, profile *configv1.KubeSchedulerProfile, made *plugins.Profile,
	outside map[string]plugins.Point) {
	// 0 requests Berth's usual behavior.
	if p := profile.PercentageOfNodesToScore; p != nil && *p > 0 {
		c.addNote(path.Child("percentageOfNodesToScore"), "has no effect: every node is considered for every pod")
	}
	// Arguments of a plugin that is not enabled are valid, but have no effect.
	enabled := sets.New[string]()
	for _, names := range made.At {
		enabled.Insert(names...)
	}

	// Sorted, so that notes have the same order every time.
	for _, name := range sets.List(enabled) {
		// The scheduler itself implements these plugins if their feature gates are on, whether or
		// not a profile enables them.
		if entry, inTree := plugins.Lookup(name); inTree && entry.Optional && entry.New == nil {
			c.addNote(path.Child("plugins"), "plugin %q has no effect: --feature-gates enables pod groups", name)
		}
	}

	for i := range profile.PluginConfig {
		if name := profile.PluginConfig[i].Name; !enabled.Has(name) {
			c.addNote(path.Child("pluginConfig").Index(i), "plugin %q is not enabled", name)
		}
		if a, ok := profile.PluginConfig[i].Args.Object.(*configv1.DefaultPreemptionArgs); ok &&
			(*a.MinCandidateNodesPercentage != 10 || *a.MinCandidateNodesAbsolute != 100) {
			c.addNote(path.Child("pluginConfig").Index(i).Child("args"), "has no effect: every node is considered for preemption")
		}
	}

	if profile.Plugins == nil {
		return
	}
	c.noteUnknownDisabled(path.Child("plugins", "multiPoint", "disabled"), profile.Plugins.MultiPoint.Disabled, outside)
	for _, point := range plugins.AllPoints {
		c.noteUnknownDisabled(path.Child("plugins", point.String(), "disabled"), pluginSet(profile.Plugins, point).Disabled, outside)
	}
	c.noteSplit(path.Child("plugins"), made)
}

// noteSplit notes plugins enabled at the second of two related extension points, but not at the
// first. kube-scheduler then fails every pod, because the first point has stored no state. The few
// plugins that need no state are not noted.
func (c *Config) noteSplit(path *field.Path, made *plugins.Profile) {
	for _, pair := range []struct {
		first, second plugins.Point
		without       []string
	}{
		{plugins.PreFilter, plugins.Filters, []string{"NodeAffinity"}},
		{plugins.PreScore, plugins.Score, []string{"NodeAffinity", "NodeResourcesFit", "NodeResourcesBalancedAllocation", "VolumeBinding"}},
	} {
		for _, name := range made.At[pair.second] {
			entry, inTree := plugins.Lookup(name)
			if inTree && entry.Points&pair.first != 0 && !made.Has(pair.first, name) && !slices.Contains(pair.without, name) {
				c.addNote(path.Child(pair.first.String()),
					"plugin %q is at %s without %s: it works all the same, where kube-scheduler would fail every pod",
					name, pair.second, pair.first)
			}
		}
	}
}

// noteUnknownDisabled notes unknown plugins under disabled, because a misspelt name leaves the
// intended plugin enabled. Upstream does not report such names.
func (c *Config) noteUnknownDisabled(path *field.Path, disabled []configv1.Plugin, outside map[string]plugins.Point) {
	for i, plugin := range disabled {
		_, inTree := plugins.Lookup(plugin.Name)
		if _, known := outside[plugin.Name]; plugin.Name != "*" && !inTree && !known {
			c.addNote(path.Index(i), "there is no plugin %q", plugin.Name)
		}
	}
}
