package policy

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	kjson "sigs.k8s.io/json"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/engine/config/document"
)

// Version is the only apiVersion that is read, and Kind the only kind. Both have to be given: a
// file of another kind would otherwise be read as an empty policy.
const (
	Version = "descheduler/v1alpha2"
	Kind    = "DeschedulerPolicy"
)

// Priorities resolves the name of a priority class. nil, or known false, means that there is no
// such class; then a policy that names one is refused.
type Priorities func(name string) (value int32, known bool)

// Load reads a file. Read says how. Errors name the path as it was given.
func Load(path string, priorities Priorities) (*rebalance.Policy, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return Read(path, text, priorities)
}

// reader reads one file. It keeps the first error.
//
// A file is read in two passes: as YAML nodes, which know their lines, and then part by part into
// typed arguments. A fault does not stop the reading, but only the first one is returned.
type reader struct {
	// file is what messages begin with.
	file   string
	policy *rebalance.Policy
	// priorities may be nil: then names of priority classes are not known.
	priorities Priorities
	second     *rebalance.Goal // of the plugin that is being read; see another
	err        error
}

// Read reads a policy. Messages refer to it as file.
//
// The policy is nil only if the text is no YAML, is empty, or has an alias that contains itself;
// with any other error it must not be used either.
//
// Notes have the form FILE:LINE: text, as errors do.
func Read(file string, text []byte, priorities Priorities) (*rebalance.Policy, error) {
	var whole yaml.Node
	if err := yaml.Unmarshal(text, &whole); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	r := &reader{file: file, policy: &rebalance.Policy{}, priorities: priorities}
	if len(whole.Content) == 0 {
		return nil, fmt.Errorf("%s: is empty; must be a %s", file, Kind)
	}
	// Aliases have to be resolved first: everything after it looks at nodes, and would not find the
	// keys of a merge.
	if r.resolveAliases(whole.Content[0], map[*yaml.Node]bool{}); r.err != nil {
		return nil, r.err
	}
	// After aliases are resolved, since a merge may bring a key that is there.
	r.checkUnique(whole.Content[0])
	r.readTop(whole.Content[0])
	// It is the last note, also if the first document has faults.
	r.noteUnread(text)
	return r.policy, r.err
}

// noteUnread notes a document behind the first. One that is empty says nothing. The descheduler
// reads the first and says nothing.
func (r *reader) noteUnread(text []byte) {
	const words = "only the first document is read, as by the descheduler"
	switch line, found := document.Second(string(text)); {
	case line > 0:
		r.addNote(&yaml.Node{Line: line}, words)
	case found:
		r.policy.Notes = append(r.policy.Notes, r.file+": "+words)
	}
}

// resolveAliases puts the nodes that aliases and merge keys stand for in their place. within are
// the nodes around this one, which it must not stand for. Without that check, an alias to its own
// mapping would never end. It changes the nodes in place: an aliased value is shared by all places
// that name it, and is only read from then on.
func (r *reader) resolveAliases(n *yaml.Node, within map[*yaml.Node]bool) {
	within[n] = true
	defer delete(within, n)
	n.Anchor = ""
	for i, child := range n.Content {
		if child.Kind == yaml.AliasNode {
			if within[child.Alias] {
				r.setError(child, "*%s: stands for what it is part of", child.Value)
				return
			}
			n.Content[i] = child.Alias
		}
		r.resolveAliases(n.Content[i], within)
	}
	if n.Kind == yaml.MappingNode {
		mergeKeys(n)
	}
}

// mergeKeys puts the pairs of merge keys in their place; those that the mapping has itself count.
//
//	base: &base {a: 1, b: 2}
//	args: {<<: *base, b: 3}      -> {b: 3, a: 1}
//
// Of several that are merged, the first that has a key counts, as YAML says.
func mergeKeys(n *yaml.Node) {
	var own, merged []*yaml.Node
	keys := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		switch {
		case key.Tag != "!!merge":
			own, keys[key.Value] = append(own, key, value), true
		case value.Kind == yaml.SequenceNode:
			merged = append(merged, value.Content...)
		default:
			merged = append(merged, value)
		}
	}

	for _, from := range merged {
		for i := 0; i+1 < len(from.Content) && from.Kind == yaml.MappingNode; i += 2 {
			if key := from.Content[i]; !keys[key.Value] {
				own, keys[key.Value] = append(own, key, from.Content[i+1]), true
			}
		}
	}
	n.Content = own
}

// checkUnique refuses keys that a mapping has twice: one of the values would be passed over.
func (r *reader) checkUnique(n *yaml.Node) {
	lines := map[string]int{}
	for i, child := range n.Content {
		// A mapping's content has keys at even positions, and values at odd ones.
		if n.Kind == yaml.MappingNode && i%2 == 0 {
			if line, twice := lines[child.Value]; twice {
				r.setError(child, "%s: is already given in line %d", child.Value, line)
			}
			lines[child.Value] = child.Line
		}
		r.checkUnique(child)
	}
}

// setError keeps an error with the line of a node, unless there is one already: the first is the
// most likely to explain the others.
func (r *reader) setError(at *yaml.Node, format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%s:%d: %s", r.file, at.Line, fmt.Sprintf(format, args...))
	}
}

// addNote notes something that is read and has no effect, with its line.
func (r *reader) addNote(at *yaml.Node, format string, args ...any) {
	r.policy.Notes = append(r.policy.Notes, fmt.Sprintf("%s:%d: %s", r.file, at.Line, fmt.Sprintf(format, args...)))
}

// field is a key with its value.
type field struct {
	name  string
	key   *yaml.Node
	value *yaml.Node
}

// listItems are those of a list; null is an empty one. Other kinds are refused. what names the list
// in the error.
func (r *reader) listItems(n *yaml.Node, what string) []*yaml.Node {
	if n.Kind != yaml.SequenceNode && n.Tag != "!!null" {
		r.setError(n, "%s: must be a list", what)
	}
	return n.Content
}

// listFields returns the keys and values of a mapping in the order of the file; none for null.
// Other kinds are refused.
func (r *reader) listFields(n *yaml.Node, what string) (list []field) {
	if n.Kind == yaml.ScalarNode && (n.Tag == "!!null" || n.Value == "") {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		r.setError(n, "%s: must be a mapping", what)
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		list = append(list, field{n.Content[i].Value, n.Content[i], n.Content[i+1]})
	}
	return list
}

// decodeStrictly reads a value strictly: unknown fields are refused, and so is another case of a
// known one. into is a pointer. Several faults of one value are one error.
func (r *reader) decodeStrictly(n *yaml.Node, what string, into any) {
	// YAML nodes have no strict decoder that knows JSON tags, so the value goes through JSON.
	text, err := yaml.Marshal(n)
	if err == nil {
		text, err = sigsyaml.YAMLToJSON(text)
	}
	if err == nil {
		var strict []error
		if strict, err = kjson.UnmarshalStrict(text, into); err == nil {
			err = errors.Join(strict...)
		}
	}
	if err != nil {
		r.setError(n, "%s: %s", what, strings.ReplaceAll(strings.TrimPrefix(err.Error(), "json: "), "\n", "; "))
	}
}

// readLimit reads a number of evictions; nil is no limit. A number below 0 is refused by its type.
func (r *reader) readLimit(f field) *int {
	var number *uint
	r.decodeStrictly(f.value, f.name, &number)
	return toLimit(number)
}

// toLimit returns a number of evictions as an int; nil stays nil, which is no limit.
func toLimit(number *uint) *int {
	if number == nil {
		return nil
	}
	n := int(min(*number, math.MaxInt))
	return &n
}

// readTop reads the top of a policy. Unknown keys are noted, not refused, because the descheduler
// passes over them. The order of keys does not matter; version and kind are checked when all have
// been seen.
func (r *reader) readTop(n *yaml.Node) {
	var profiles *yaml.Node
	version, kind := false, false
	p := r.policy
	for _, f := range r.listFields(n, Kind) {
		switch f.name {
		// v1alpha1 is not read: it has strategies, not profiles of plugins.
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
		// Berth does without what these configure.
		case "metricsProviders", "metricsCollector", "evictionFailureEventNotification":
			r.addNote(f.key, "%s has no equivalent: room is counted by requests, and refusals are in the plan", f.name)
		default:
			r.addNote(f.key, "%s is not a field of %s; the descheduler passes over it, too", f.name, Kind)
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
	p.Goals = append(p.Goals, balance...) // all deschedule plugins run before all balance plugins
}

// readProfile reads one profile. Goals of deschedule plugins are added to the policy, those of
// balance plugins are returned.
//
// Plugins count only if they are enabled and configured. Two profiles may enable the same plugin:
// each becomes a goal.
//
//	enabled LowNodeUtilization and PodLifeTime   PodLifeTime goes into the policy at once,
//	                                             LowNodeUtilization is returned for later
func (r *reader) readProfile(n *yaml.Node) (balance []rebalance.Goal) {
	// The order of keys in a profile is free, so all are read before they are put together.
	name := ""
	configs := map[string]*yaml.Node{}
	var enabled []field // point and plugin
	for _, f := range r.listFields(n, "profile") {
		switch f.name {
		case "name":
			name = f.value.Value
		case "pluginConfig":
			r.pluginConfig(f.value, configs)
		case "plugins":
			enabled = r.readPlugins(f.value)
		default:
			r.addNote(f.key, "profiles: %s is not a field; the descheduler passes over it, too", f.name)
		}
	}
	evictor := r.readEvictor(configs[evictorName])
	for _, f := range enabled {
		plugin := f.value.Value
		// It is a filter, and no goal: its arguments have been read.
		if plugin == evictorName {
			continue
		}
		args, configured := configs[plugin]
		read, known := catalog[plugin]
		switch {
		case !known:
			r.setError(f.value, "%s: no such plugin; known are %s", plugin, strings.Join(pluginNames(), ", "))
			return nil
		// The descheduler needs the arguments of each plugin that is enabled, be they empty.
		case !configured:
			r.setError(f.value, "%s: is enabled, but has no pluginConfig", plugin)
			return nil
		case f.name != read.point:
			r.setError(f.value, "%s: is a %s plugin, not a %s plugin", plugin, read.point, f.name)
			return nil
		}
		// The goal carries the plugin's name and line, by which plans and messages refer to it.
		goals := []rebalance.Goal{{Name: plugin, Profile: name, Line: f.value.Line, Evictor: evictor}}
		// It belongs to one plugin.
		r.second = nil
		read.into(r, &goals[0], args)
		// Both goals have the plugin's name: to limits they are one.
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

// pluginConfig collects the arguments of plugins by name, configured twice is refused. An entry
// without args has empty ones.
func (r *reader) pluginConfig(n *yaml.Node, into map[string]*yaml.Node) {
	for _, item := range r.listItems(n, "pluginConfig") {
		name := ""
		// An entry may have a name alone: its arguments are empty then, and faults in them have the
		// entry's line.
		args := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Line: item.Line}
		for _, f := range r.listFields(item, "pluginConfig") {
			switch f.name {
			case "name":
				name = f.value.Value
			case "args":
				args = f.value
			default:
				r.addNote(f.key, "pluginConfig: %s stands beside args and has no effect; the descheduler passes over it, too", f.name)
			}
		}

		if _, known := catalog[name]; !known && name != evictorName {
			r.setError(item, "%s: no such plugin; known are %s", name, strings.Join(pluginNames(), ", "))
		}
		// The second would replace the first without a word.
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
		// Only the first two have goals. A plugin other than the evictor at one of the others is
		// refused later, with its own line.
		case "deschedule", "balance", "filter", "preevictionfilter":
		// The descheduler reads these points, and calls no plugin at them.
		case "presort", "sort":
			r.addNote(point.key, "plugins: %s does nothing in the descheduler, and nothing here", point.name)
			continue
		default:
			r.addNote(point.key, "plugins: %s is not an extension point; names are in lower case, and the descheduler "+
				"passes over it, too", point.name)
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
					// The evictor is a filter by itself, so to enable it at filter or
					// preevictionfilter changes nothing.
					if point.name == "deschedule" || point.name == "balance" || plugin.Value != evictorName {
						list = append(list, field{point.name, point.key, plugin})
					}
				}
			default:
				r.addNote(set.key, "plugins: %s.%s does nothing in the descheduler, and nothing here", point.name, set.name)
			}
		}
	}

	return list
}

// readSelector reads a label selector of a policy; nil is none. An empty selector selects
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

// pluginNames are the names of all plugins that are known, sorted, for messages.
func pluginNames() []string {
	list := []string{evictorName}
	for name := range catalog {
		list = append(list, name)
	}
	slices.Sort(list)
	return list
}
