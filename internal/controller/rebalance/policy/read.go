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

// Version is the only apiVersion that is read, and Kind the only kind.
const (
	Version = "descheduler/v1alpha2"
	Kind    = "DeschedulerPolicy"
)

// Priorities resolves the name of a priority class.
type Priorities func(name string) (value int32, known bool)

// Load reads a file.
func Load(path string, priorities Priorities) (*rebalance.Policy, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return Read(path, text, priorities)
}

// reader reads one file. It keeps the first error.
type reader struct {
	file       string
	policy     *rebalance.Policy
	priorities Priorities
	second     *rebalance.Goal // of the plugin that is being read; see another
	err        error
}

// Read reads a policy. Messages refer to it as file.
func Read(file string, text []byte, priorities Priorities) (*rebalance.Policy, error) {
	var whole yaml.Node
	if err := yaml.Unmarshal(text, &whole); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	r := &reader{file: file, policy: &rebalance.Policy{}, priorities: priorities}
	if len(whole.Content) == 0 {
		return nil, fmt.Errorf("%s: is empty; must be a %s", file, Kind)
	}
	if r.resolveAliases(whole.Content[0], map[*yaml.Node]bool{}); r.err != nil {
		return nil, r.err
	}
	r.checkUnique(whole.Content[0])
	r.readTop(whole.Content[0])
	r.noteUnread(text)
	return r.policy, r.err
}

// noteUnread notes a document behind the first. One that is empty says nothing.
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
// the nodes around this one, which it must not stand for.
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
		if n.Kind == yaml.MappingNode && i%2 == 0 {
			if line, twice := lines[child.Value]; twice {
				r.setError(child, "%s: is already given in line %d", child.Value, line)
			}
			lines[child.Value] = child.Line
		}
		r.checkUnique(child)
	}
}

func (r *reader) setError(at *yaml.Node, format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%s:%d: %s", r.file, at.Line, fmt.Sprintf(format, args...))
	}
}

func (r *reader) addNote(at *yaml.Node, format string, args ...any) {
	r.policy.Notes = append(r.policy.Notes, fmt.Sprintf("%s:%d: %s", r.file, at.Line, fmt.Sprintf(format, args...)))
}

// field is a key with its value.
type field struct {
	name  string
	key   *yaml.Node
	value *yaml.Node
}

// listItems are those of a list; null is an empty one.
func (r *reader) listItems(n *yaml.Node, what string) []*yaml.Node {
	if n.Kind != yaml.SequenceNode && n.Tag != "!!null" {
		r.setError(n, "%s: must be a list", what)
	}
	return n.Content
}

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
// known one.
func (r *reader) decodeStrictly(n *yaml.Node, what string, into any) {
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

// readLimit reads a number of evictions; nil is no limit.
func (r *reader) readLimit(f field) *int {
	var number *uint
	r.decodeStrictly(f.value, f.name, &number)
	return toLimit(number)
}

func toLimit(number *uint) *int {
	if number == nil {
		return nil
	}
	n := int(min(*number, math.MaxInt))
	return &n
}

func (r *reader) readTop(n *yaml.Node) {
	var profiles *yaml.Node
	version, kind := false, false
	p := r.policy
	for _, f := range r.listFields(n, Kind) {
		switch f.name {
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
	if profiles == nil {
		return
	}
	var balance []rebalance.Goal
	for _, profile := range r.listItems(profiles, "profiles") {
		balance = append(balance, r.readProfile(profile)...)
	}
	p.Goals = append(p.Goals, balance...) // all deschedule plugins run before all balance plugins
}

// readProfile reads one profile. Goals of deschedule plugins are added to the policy, those of
// balance plugins are returned.
func (r *reader) readProfile(n *yaml.Node) (balance []rebalance.Goal) {
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
		if plugin == evictorName {
			continue
		}
		args, configured := configs[plugin]
		read, known := catalog[plugin]
		switch {
		case !known:
			r.setError(f.value, "%s: no such plugin; known are %s", plugin, strings.Join(pluginNames(), ", "))
			return nil
		case !configured:
			r.setError(f.value, "%s: is enabled, but has no pluginConfig", plugin)
			return nil
		case f.name != read.point:
			r.setError(f.value, "%s: is a %s plugin, not a %s plugin", plugin, read.point, f.name)
			return nil
		}
		goals := []rebalance.Goal{{Name: plugin, Profile: name, Line: f.value.Line, Evictor: evictor}}
		r.second = nil
		read.into(r, &goals[0], args)
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

func (r *reader) pluginConfig(n *yaml.Node, into map[string]*yaml.Node) {
	for _, item := range r.listItems(n, "pluginConfig") {
		name := ""
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
		if into[name] != nil {
			r.setError(item, "%s: its pluginConfig is already given in line %d", name, into[name].Line)
		}
		into[name] = args
	}
}

// readPlugins returns the enabled plugins, each with the name of its extension point.
func (r *reader) readPlugins(n *yaml.Node) (list []field) {
	for _, point := range r.listFields(n, "plugins") {
		switch point.name {
		case "deschedule", "balance", "filter", "preevictionfilter":
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

// readSelector reads a label selector of a policy; nil is none.
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

func pluginNames() []string {
	list := []string{evictorName}
	for name := range catalog {
		list = append(list, name)
	}
	slices.Sort(list)
	return list
}
