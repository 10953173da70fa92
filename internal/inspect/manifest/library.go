// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// The fallback for YAML not read by block.go and flow.go: anchors and aliases, tags, folded text,
// keys that are not words, text beyond ASCII. The library builds its own tree; this file copies it,
// and bounds the expansion of a small document.

// maxNodes bounds the number of values in a document after aliases are expanded. A million values
// take some fifty megabytes.
const maxNodes = 1 << 20

// mostRepeated bounds the values, and the keys of merged mappings, repeated by aliases: a constant,
// plus a number per byte of the document. A template shared by a hundred containers is far below
// the bound. A crafted document that expands far beyond its length ("billion laughs") exceeds it.
func mostRepeated(text string) int { return 4096 + 16*len(text) }

// fault is an error at one line of the input's file.
type fault struct {
	line int32
	text string
}

// parseLibrary reads any YAML with the library. line is the text's line in its file. It returns nil
// on success; for an empty document, the tree is empty.
func parseLibrary(t *tree, text string, line int32) *fault {
	t.reset()
	var document yaml.Node
	// The library may report a line beyond the end of the file; clamp it.
	last := line + int32(strings.Count(strings.TrimSuffix(text, "\n"), "\n"))
	if err := yaml.Unmarshal([]byte(text), &document); err != nil {
		f := syntaxFault(err, line)
		f.line = min(f.line, last)
		return f
	}
	// The document has only comments.
	if len(document.Content) == 0 {
		return nil
	}
	c := converter{t: t, base: line - 1, last: last, repeats: mostRepeated(text)}
	if err := c.convertNode(document.Content[0], "", 0); err != nil {
		return &fault{c.at, err.Error()}
	}
	return nil
}

// yamlLine matches the beginning of the library's errors.
var yamlLine = regexp.MustCompile(`^yaml: (?:unmarshal errors:\n  )?(?:line (\d+): )?`)

// syntaxFault translates the library's line number from the chunk to the file, and adds advice to
// the most frequent error.
func syntaxFault(err error, line int32) *fault {
	text := err.Error()
	// The line is relative to the chunk, which begins somewhere in the file.
	if m := yamlLine.FindStringSubmatch(text); m != nil {
		text = text[len(m[0]):]
		if n, err := strconv.Atoi(m[1]); err == nil {
			line += int32(n) - 1
		}
	}
	if text == "found character that cannot start any token" {
		text += ": YAML is indented by spaces, not by tabs, and a text that begins with @, ` or % is put in quotes"
	}
	return &fault{line, "not YAML or JSON: " + text}
}

// converter copies the library's nodes into a tree. It expands aliases and merged keys, and refuses
// tags other than !!str.
type converter struct {
	t *tree
	// base is added to the library's lines, which are counted from 1.
	base int32
	last int32 // last line of the text; the library also counts Unicode's line breaks
	at   int32 // line of the value being converted

	repeats int // remaining number of repetitions
	inAlias int // number of aliases around the value being converted
}

var errRepeats = errors.New("aliases (*name, <<) repeat too much: write the values out, or split the document")

// countRepeat counts a repeated value or merged key, and returns an error if there are too many.
func (c *converter) countRepeat() error {
	if c.repeats--; c.repeats < 0 {
		return errRepeats
	}
	return nil
}

// lineOf returns the line of a value in its file.
func (c *converter) lineOf(y *yaml.Node) int32 { return min(c.base+int32(y.Line), c.last) }

// convertNode copies one value, under a key. It also copies the targets of aliases, so a cycle of
// aliases ends at maxDepth.
func (c *converter) convertNode(y *yaml.Node, key string, depth int) error {
	c.at = c.lineOf(y)
	if depth > maxDepth || len(c.t.nodes) > maxNodes {
		return errors.New("nested too deeply")
	}

	if c.inAlias > 0 {
		if err := c.countRepeat(); err != nil {
			return err
		}
	}

	switch y.Kind {
	case yaml.AliasNode:
		// All values below are copied for each alias, and count as repeated.
		c.inAlias++
		defer func() { c.inAlias-- }()
		return c.convertNode(y.Alias, key, depth+1)
	case yaml.ScalarNode:
		isString := y.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) != 0
		// A tag may change the type of a value, but nodes of a tree have no tags. Only !!str is
		// accepted.
		if y.Style&yaml.TaggedStyle != 0 {
			if isString = y.Tag == "!!str"; !isString {
				return fmt.Errorf("tag %s: is not supported", y.Tag)
			}
		}
		c.t.add(node{key: key, text: y.Value, quoted: isString, line: c.at})
		return nil
	case yaml.SequenceNode:
		children := c.t.childrenOf(c.t.add(node{kind: sequenceNode, key: key, line: c.at}))
		for _, item := range y.Content {
			child := int32(len(c.t.nodes))
			if err := c.convertNode(item, "", depth+1); err != nil {
				return err
			}
			children.appendChild(child)
		}
		return nil
	case yaml.MappingNode:
		return c.convertMapping(y, key, depth)
	}

	return fmt.Errorf("unknown kind of YAML node %d", y.Kind)
}

// convertMapping copies a mapping. Merged keys are added last, whatever the position of "<<",
// because the mapping's own keys take precedence.
func (c *converter) convertMapping(y *yaml.Node, key string, depth int) error {
	self := c.t.add(node{kind: mappingNode, key: key, line: c.at})
	children := c.t.childrenOf(self)
	var merged []*yaml.Node
	for i := 0; i+1 < len(y.Content); i += 2 {
		name, value := y.Content[i], y.Content[i+1]
		// A key may also be an alias.
		for name.Kind == yaml.AliasNode {
			name = name.Alias
		}
		c.at = c.lineOf(name)
		if name.Kind != yaml.ScalarNode {
			return errors.New("a key must be a string")
		}
		if name.Tag == "!!merge" {
			merged = append(merged, mergedMappings(value)...)
			continue
		}
		line, child := c.at, int32(len(c.t.nodes))
		if err := c.convertNode(value, name.Value, depth+1); err != nil {
			return err
		}
		c.t.nodes[child].line = line
		children.appendChild(child)
	}

	return c.mergeKeys(self, &children, merged, depth)
}

// mergedMappings returns the mappings to which a "<<:" refers: one mapping, or several in a list.
func mergedMappings(y *yaml.Node) []*yaml.Node {
	for y.Kind == yaml.AliasNode {
		y = y.Alias
	}
	if y.Kind != yaml.SequenceNode {
		return []*yaml.Node{y}
	}
	var list []*yaml.Node
	for _, item := range y.Content {
		for item.Kind == yaml.AliasNode {
			item = item.Alias
		}
		list = append(list, item)
	}
	return list
}

// mergeKeys adds the keys missing from the mapping itself, each from the first merged mapping with
// that key. Merges within merged mappings are not followed.
func (c *converter) mergeKeys(self int32, children *appender, merged []*yaml.Node, depth int) error {
	if len(merged) == 0 {
		return nil
	}
	has := map[string]bool{}
	for n := c.t.nodes[self].first; n != 0; n = c.t.nodes[n].next {
		has[c.t.nodes[n].key] = true
	}

	// Merged keys and their values count as repeated.
	c.inAlias++
	defer func() { c.inAlias-- }()
	for _, from := range merged {
		if err := c.countRepeat(); err != nil {
			return err
		}
		// An alias of a list or a word cannot be merged.
		if from.Kind != yaml.MappingNode {
			return errors.New("<<: must be a mapping")
		}
		for i := 0; i+1 < len(from.Content); i += 2 {
			if err := c.countRepeat(); err != nil {
				return err
			}
			name := from.Content[i]
			if name.Tag == "!!merge" { // YAML merges these keys as well
				return errors.New("<<: may not merge a mapping that has a << itself: write its keys out")
			}
			// Keys of the mapping itself, and of mappings merged before, take precedence.
			if name.Kind != yaml.ScalarNode || name.Tag == "!!merge" || has[name.Value] {
				continue
			}
			child := int32(len(c.t.nodes))
			if err := c.convertNode(from.Content[i+1], name.Value, depth+1); err != nil {
				return err
			}
			has[name.Value] = true
			children.appendChild(child)
		}
	}

	return nil
}
