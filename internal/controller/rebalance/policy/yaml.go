// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
	kjson "sigs.k8s.io/json"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/engine/config/document"
)

// reader reads one file. It keeps the first error.
//
// A file is read in two passes: first as YAML nodes, which have line numbers, and then part by part
// into typed arguments. A fault does not stop the reading, but only the first one is returned.
type reader struct {
	// file is the prefix of messages.
	file   string
	policy *rebalance.Policy
	// priorities may be nil: then names of priority classes are unknown.
	priorities Priorities
	second     *rebalance.Goal // second goal of the plugin being read; see anotherGoal
	err        error
}

// noteUnread notes a non-empty second document. The descheduler reads the first document and
// silently ignores the rest.
func (r *reader) noteUnread(text []byte) {
	const words = "only the first document is read, as by the descheduler"
	switch line, found := document.Second(string(text)); {
	case line > 0:
		r.addNote(&yaml.Node{Line: line}, words)
	case found:
		r.policy.Notes = append(r.policy.Notes, r.file+": "+words)
	}
}

// resolveAliases replaces aliases and merge keys with their nodes. within holds the enclosing
// nodes, which an alias must not refer to; without that check, an alias to its own mapping would
// never end. It changes the nodes in place: an aliased value is shared by all its uses, and is
// read-only from then on.
func (r *reader) resolveAliases(n *yaml.Node, within map[*yaml.Node]bool) {
	within[n] = true
	defer delete(within, n)
	n.Anchor = ""
	for i, child := range n.Content {
		if child.Kind == yaml.AliasNode {
			if within[child.Alias] {
				r.setError(child, "*%s: refers to a value that contains it", child.Value)
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

// mergeKeys replaces merge keys with the pairs of their mappings; the mapping's own keys take
// precedence.
//
//	base: &base {a: 1, b: 2}
//	args: {<<: *base, b: 3}      -> {b: 3, a: 1}
//
// If several mappings are merged, the first one with a key wins, as specified by YAML.
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

// checkUnique refuses duplicate keys in a mapping: one of the values would be ignored.
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

// setError records an error with the line of a node, unless there is one already: the first error
// is the most likely cause of the rest.
func (r *reader) setError(at *yaml.Node, format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%s:%d: %s", r.file, at.Line, fmt.Sprintf(format, args...))
	}
}

// addNote notes a key that is read but ignored, with its line.
func (r *reader) addNote(at *yaml.Node, format string, args ...any) {
	r.policy.Notes = append(r.policy.Notes, fmt.Sprintf("%s:%d: %s", r.file, at.Line, fmt.Sprintf(format, args...)))
}

// field is a key with its value.
type field struct {
	name  string
	key   *yaml.Node
	value *yaml.Node
}

// listItems returns the items of a list; null is an empty list. Other kinds are refused. what names
// the list in the error.
func (r *reader) listItems(n *yaml.Node, what string) []*yaml.Node {
	if n.Kind != yaml.SequenceNode && n.Tag != "!!null" {
		r.setError(n, "%s: must be a list", what)
	}
	return n.Content
}

// listFields returns the keys and values of a mapping in file order; none for null. Other kinds are
// refused.
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

// decodeStrictly reads a value strictly: unknown fields are refused, and so are known fields in a
// different case. into is a pointer. Several faults of one value are one error.
func (r *reader) decodeStrictly(n *yaml.Node, what string, into any) {
	// YAML nodes lack a strict decoder that supports JSON tags, so the value goes through JSON.
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
