// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
)

// Version and Kind are the only supported apiVersion and kind. Both are required: otherwise a file
// of another kind would be read as an empty policy.
const (
	Version = "descheduler/v1alpha2"
	Kind    = "DeschedulerPolicy"
)

// Priorities resolves the name of a priority class. If Priorities is nil, or known is false, the
// class does not exist, and a policy naming it is refused.
type Priorities func(name string) (value int32, known bool)

// Load reads a file, as described for Read. Errors include the path.
func Load(path string, priorities Priorities) (*rebalance.Policy, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return Read(path, text, priorities)
}

// Read reads a policy. Messages refer to it as file.
//
// The policy is nil only if the text is invalid YAML, is empty, or has an alias that contains
// itself; with any other error it must not be used either.
//
// Notes have the form FILE:LINE: text, like errors.
func Read(file string, text []byte, priorities Priorities) (*rebalance.Policy, error) {
	var whole yaml.Node
	if err := yaml.Unmarshal(text, &whole); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	r := &reader{file: file, policy: &rebalance.Policy{}, priorities: priorities}
	if len(whole.Content) == 0 {
		return nil, fmt.Errorf("%s: is empty; must be a %s", file, Kind)
	}
	// Aliases must be resolved first: all later steps read YAML nodes, and would not find the keys
	// of a merge.
	if r.resolveAliases(whole.Content[0], map[*yaml.Node]bool{}); r.err != nil {
		return nil, r.err
	}
	// This follows the resolution of aliases, since a merge may introduce a duplicate key.
	r.checkUnique(whole.Content[0])
	r.readTop(whole.Content[0])
	// This is the last note, even if the first document has faults.
	r.noteUnread(text)
	return r.policy, r.err
}

// readLimit reads a number of evictions; nil means unlimited. The unsigned type refuses negative
// numbers.
func (r *reader) readLimit(f field) *int {
	var number *uint
	r.decodeStrictly(f.value, f.name, &number)
	return toLimit(number)
}

// toLimit returns a number of evictions as an int; nil stays nil and means unlimited.
func toLimit(number *uint) *int {
	if number == nil {
		return nil
	}
	return new(int(min(*number, math.MaxInt)))
}

// readTop reads the top level of a policy. Unknown keys are noted, not refused, because the
// descheduler ignores them. The order of keys does not matter; version and kind are checked after
// all keys have been read.
func (r *reader) readTop(n *yaml.Node) {
	var profiles *yaml.Node
	version, kind := false, false
	p := r.policy
	for _, f := range r.listFields(n, Kind) {
		switch f.name {
		// v1alpha1 is not supported: it has strategies instead of profiles of plugins.
		case "apiVersion":
			version = f.value.Value == Version
		case "kind":
			kind = f.value.Value == Kind
		case "nodeSelector":
			var text string
			r.decodeStrictly(f.value, f.name, &text)
			selector, err := labels.Parse(text)
			if err != nil {
				r.setError(f.value, "nodeSelector: %v", err)
			}
			p.Nodes = selector
		case "maxNoOfPodsToEvictPerNode":
			p.Limits.PerNode = r.readLimit(f)
		case "maxNoOfPodsToEvictPerNamespace":
			p.Limits.PerNamespace = r.readLimit(f)
		case "maxNoOfPodsToEvictTotal":
			p.Limits.Total = r.readLimit(f)
		case "gracePeriodSeconds":
			r.decodeStrictly(f.value, f.name, &p.GracePeriod)
		case "profiles":
			profiles = f.value
		// Berth does not need these features.
		case "metricsProviders", "metricsCollector", "evictionFailureEventNotification":
			r.addNote(f.key, "%s has no equivalent: room is counted by requests, and refusals are in the plan", f.name)
		default:
			r.addNote(f.key, "%s is not a field of %s; the descheduler ignores it, too", f.name, Kind)
		}
	}
	if !version || !kind {
		r.setError(n, "must be apiVersion: %s, kind: %s", Version, Kind)
		return
	}
	// A policy without profiles is valid, and moves nothing.
	if profiles == nil {
		return
	}
	// The descheduler runs the deschedule plugins of all profiles before the balance plugins of
	// any.
	var balance []rebalance.Goal
	for _, profile := range r.listItems(profiles, "profiles") {
		balance = append(balance, r.readProfile(profile)...)
	}
	p.Goals = append(p.Goals, balance...)
}

// readProfile reads one profile. It adds the goals of deschedule plugins to the policy, and returns
// the goals of balance plugins.
//
// Only enabled plugins become goals, and each of them must have a pluginConfig. If two profiles
// enable the same plugin, there is a goal for each profile.
//
//	enabled LowNodeUtilization and PodLifeTime   PodLifeTime goes into the policy immediately,
//	                                             LowNodeUtilization is returned for later
func (r *reader) readProfile(n *yaml.Node) (balance []rebalance.Goal) {
	// The keys of a profile may have any order, so all are read before they are combined.
	name := ""
	configs := map[string]*yaml.Node{}
	var enabled []field // extension point and plugin
	for _, f := range r.listFields(n, "profile") {
		switch f.name {
		case "name":
			name = f.value.Value
		case "pluginConfig":
			r.pluginConfig(f.value, configs)
		case "plugins":
			enabled = r.readPlugins(f.value)
		default:
			r.addNote(f.key, "profiles: %s is not a field; the descheduler ignores it, too", f.name)
		}
	}
	evictor := r.readEvictor(configs[evictorName])
	for _, f := range enabled {
		plugin := f.value.Value
		// DefaultEvictor is a filter rather than a goal, and its arguments have already been read.
		if plugin == evictorName {
			continue
		}
		args, configured := configs[plugin]
		read, known := catalog[plugin]
		switch {
		case !known:
			r.setError(f.value, "%s: unknown plugin; known plugins: %s", plugin, strings.Join(pluginNames(), ", "))
			return nil
		// The descheduler requires arguments for each enabled plugin, even if empty.
		case !configured:
			r.setError(f.value, "%s: is enabled, but has no pluginConfig", plugin)
			return nil
		case f.name != read.point:
			r.setError(f.value, "%s: is a %s plugin, not a %s plugin", plugin, read.point, f.name)
			return nil
		}
		// The goal carries the plugin's name and line, which plans and messages refer to.
		goals := []rebalance.Goal{{Name: plugin, Profile: name, Line: f.value.Line, Evictor: evictor}}
		// r.second belongs to a single plugin.
		r.second = nil
		read.translate(r, &goals[0], args)
		// Both goals have the plugin's name, so limits treat them as one.
		if r.second != nil {
			goals = append(goals, *r.second)
		}
		if read.point == "balance" {
			balance = append(balance, goals...)
		} else {
			r.policy.Goals = append(r.policy.Goals, goals...)
		}
	}
	return balance
}

// pluginConfig collects the arguments of plugins by name, and refuses duplicates. An entry without
// args has empty arguments.
func (r *reader) pluginConfig(n *yaml.Node, into map[string]*yaml.Node) {
	for _, item := range r.listItems(n, "pluginConfig") {
		name := ""
		// An entry may consist of only a name: its arguments are empty then, and faults in them
		// have the entry's line.
		args := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Line: item.Line}
		for _, f := range r.listFields(item, "pluginConfig") {
			switch f.name {
			case "name":
				name = f.value.Value
			case "args":
				args = f.value
			default:
				r.addNote(f.key, "pluginConfig: %s next to args has no effect; the descheduler ignores it, too", f.name)
			}
		}

		if _, known := catalog[name]; !known && name != evictorName {
			r.setError(item, "%s: unknown plugin; known plugins: %s", name, strings.Join(pluginNames(), ", "))
		}
		// A second entry would silently replace the first.
		if into[name] != nil {
			r.setError(item, "%s: its pluginConfig is already given in line %d", name, into[name].Line)
		}
		into[name] = args
	}
}

// readPlugins returns the enabled plugins, each with the name of its extension point.
//
//	plugins: {deschedule: {enabled: [PodLifeTime]}}   -> {deschedule, PodLifeTime}
func (r *reader) readPlugins(n *yaml.Node) (list []field) {
	for _, point := range r.listFields(n, "plugins") {
		switch point.name {
		// Only deschedule and balance have goals. A plugin other than the evictor at a filter point
		// is refused later, with its own line.
		case "deschedule", "balance", "filter", "preevictionfilter":
		// The descheduler reads these points, and calls no plugin at them.
		case "presort", "sort":
			r.addNote(point.key, "plugins: %s has no effect in the descheduler, and none here", point.name)
			continue
		default:
			r.addNote(point.key, "plugins: %s is not an extension point; names are in lower case, and the descheduler ignores it, too",
				point.name)
			continue
		}
		for _, set := range r.listFields(point.value, point.name) {
			switch set.name {
			case "enabled":
				for _, plugin := range r.listItems(set.value, "plugins: "+point.name+".enabled") {
					if plugin.Kind != yaml.ScalarNode {
						r.setError(plugin, "plugins: %s.enabled: must be a list of names", point.name)
						return nil
					}
					// The evictor is inherently a filter, so enabling it at filter or
					// preevictionfilter has no effect.
					if point.name == "deschedule" || point.name == "balance" || plugin.Value != evictorName {
						list = append(list, field{point.name, point.key, plugin})
					}
				}
			default:
				r.addNote(set.key, "plugins: %s.%s has no effect in the descheduler, and none here", point.name, set.name)
			}
		}
	}

	return list
}

// readSelector reads a label selector of a policy, or nil without one. An empty selector selects
// everything, as in Kubernetes.
func (r *reader) readSelector(at *yaml.Node, s *metav1.LabelSelector) labels.Selector {
	if s == nil {
		return nil
	}
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		r.setError(at, "labelSelector: %v", err)
	}
	return selector
}

// pluginNames returns the names of all known plugins, sorted, for messages.
func pluginNames() []string {
	list := slices.AppendSeq([]string{evictorName}, maps.Keys(catalog))
	slices.Sort(list)
	return list
}
