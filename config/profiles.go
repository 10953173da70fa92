package config

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-k8s/berth/plugins"
)

// makeProfiles makes the plugins that the file asks for.
func (c *Config) makeProfiles(options Options) error {
	if p := *c.Spec.PercentageOfNodesToScore; p > 0 {
		c.note(field.NewPath("percentageOfNodesToScore"), "has no effect: every node is considered for every pod")
	}
	ignored := c.ignoredByExtenders()
	var errs []error
	for i := range c.Spec.Profiles {
		profile, path := &c.Spec.Profiles[i], field.NewPath("profiles").Index(i)
		at, weights, err := resolve(path, profile, options.Outside)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if len(ignored) > 0 && slices.Contains(at[plugins.Filters], "NodeResourcesFit") {
			fitArgs(profile).IgnoredResources = ignored
		}
		made, err := plugins.NewProfile(*profile.SchedulerName, at, weights, arguments(profile, options))
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", path, err))
			continue
		}
		c.Profiles = append(c.Profiles, made)
		c.noteIneffective(path, profile, made, options)
	}
	return flat(errs)
}

// arguments are those of the plugins by name.
func arguments(profile *configv1.KubeSchedulerProfile, options Options) map[string]any {
	args := map[string]any{"TaintToleration": &plugins.TaintTolerationArgs{Compare: options.CompareTolerations}}
	for i := range profile.PluginConfig {
		if object := profile.PluginConfig[i].Args.Object; object != nil {
			args[profile.PluginConfig[i].Name] = object
		}
	}
	return args
}

// ignoredByExtenders lists the resources that extenders look after alone. NodeResourcesFit ignores them, in place of those that
// its arguments list.
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

// fitArgs returns the profile's arguments of NodeResourcesFit, which are added if there are none.
func fitArgs(profile *configv1.KubeSchedulerProfile) *configv1.NodeResourcesFitArgs {
	for i := range profile.PluginConfig {
		if args, ok := profile.PluginConfig[i].Args.Object.(*configv1.NodeResourcesFitArgs); ok {
			return args
		}
	}
	args := &configv1.NodeResourcesFitArgs{}
	plugins.SetArgsDefaults(args)
	added := configv1.PluginConfig{Name: "NodeResourcesFit"}
	added.Args.Object = args
	profile.PluginConfig = append(profile.PluginConfig, added)
	return args
}

func (c *Config) note(path *field.Path, format string, args ...any) {
	c.Notes = append(c.Notes, fmt.Sprintf("%s: %s", path, fmt.Sprintf(format, args...)))
}

// noteIneffective tells what of a good profile has no effect: upstream is silent on it.
func (c *Config) noteIneffective(path *field.Path, profile *configv1.KubeSchedulerProfile, made *plugins.Profile, options Options) {
	if p := profile.PercentageOfNodesToScore; p != nil && *p > 0 {
		c.note(path.Child("percentageOfNodesToScore"), "has no effect: every node is considered for every pod")
	}
	enabled := sets.New[string]()
	for _, names := range made.At {
		enabled.Insert(names...)
	}
	for i := range profile.PluginConfig {
		if name := profile.PluginConfig[i].Name; !enabled.Has(name) {
			c.note(path.Child("pluginConfig").Index(i), "plugin %q is not enabled", name)
		}
		if a, ok := profile.PluginConfig[i].Args.Object.(*configv1.DefaultPreemptionArgs); ok && (*a.MinCandidateNodesPercentage != 10 || *a.MinCandidateNodesAbsolute != 100) {
			c.note(path.Child("pluginConfig").Index(i).Child("args"), "has no effect: every node is considered for preemption")
		}
	}
	if profile.Plugins == nil {
		return
	}
	c.noteUnknownDisabled(path.Child("plugins", "multiPoint", "disabled"), profile.Plugins.MultiPoint.Disabled, options)
	for _, point := range plugins.AllPoints {
		c.noteUnknownDisabled(path.Child("plugins", point.String(), "disabled"), pluginSet(profile.Plugins, point).Disabled, options)
	}
	c.noteSplit(path.Child("plugins"), made)
}

// noteSplit tells of plugins that are enabled at the second of two extension points that belong together, and not at the first.
// kube-scheduler fails every pod for want of what the first leaves behind, but for a few plugins that do without.
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
				c.note(path.Child(pair.first.String()), "plugin %q is at %s without %s: it works all the same, where kube-scheduler would fail every pod",
					name, pair.second, pair.first)
			}
		}
	}
}

func (c *Config) noteUnknownDisabled(path *field.Path, disabled []configv1.Plugin, options Options) {
	for i, plugin := range disabled {
		_, inTree := plugins.Lookup(plugin.Name)
		if _, outside := options.Outside[plugin.Name]; plugin.Name != "*" && !inTree && !outside {
			c.note(path.Index(i), "there is no plugin %q", plugin.Name)
		}
	}
}
