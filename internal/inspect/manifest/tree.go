// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"encoding/json"
	"strconv"
	"strings"
)

// The form of a document between parsing and decoding. Three parsers fill it (block.go, flow.go and
// library.go), and decode.go and appendJSON read it, independently of each other.

// nodeKind is the kind of a value. resolveType later decides whether a scalar is a number or a
// string.
type nodeKind uint8

const (
	scalarNode nodeKind = iota
	mappingNode
	sequenceNode
)

// node is one value of a document. Its children are linked: first is the index of the first child,
// and next is the index of the next sibling. 0 ends a list, because the root is never a child. For
// example, {a: [x, "1"]} is
//
//	0: mapping            first 1
//	1: sequence  key a    first 2
//	2: scalar    text x   next 3
//	3: scalar    text 1   quoted
//
// Indexes instead of pointers let one slice hold the document, without an allocation for each
// value.
type node struct {
	kind        nodeKind
	quoted      bool   // scalar in quotes or a block, always a string
	line        int32  // line of the value, or of its key
	key         string // key within a mapping
	text        string // text of a scalar
	first, next int32
}

// tree is a document. Its texts are substrings of the document's text, and it can be reset and
// refilled without allocating. Node 0 is the root; a tree without nodes is an empty document. A
// decoder must copy the texts that it keeps.
type tree struct {
	nodes []node
}

// reset empties the tree and keeps its memory.
func (t *tree) reset() { t.nodes = t.nodes[:0] }

// add adds a node without linking it, and returns its index. It invalidates pointers into nodes.
func (t *tree) add(n node) int32 {
	t.nodes = append(t.nodes, n)
	return int32(len(t.nodes) - 1)
}

// appender adds children to one node, in order. It remembers the last child, so that adding takes
// constant time.
type appender struct {
	t            *tree
	parent, last int32
}

// childrenOf returns an appender for a node without children.
func (t *tree) childrenOf(parent int32) appender { return appender{t: t, parent: parent} }

// appendChild links an added node as the next child.
func (a *appender) appendChild(child int32) {
	if a.last == 0 {
		a.t.nodes[a.parent].first = child
	} else {
		a.t.nodes[a.last].next = child
	}
	a.last = child
}

// childOf returns the child of a mapping under the key; if the key occurs more than once, the
// first. It returns 0 without such a child, and for nodes other than mappings. The search is
// linear.
func (t *tree) childOf(n int32, key string) int32 {
	if t.nodes[n].kind != mappingNode {
		return 0
	}
	for c := t.nodes[n].first; c != 0; c = t.nodes[c].next {
		if t.nodes[c].key == key {
			return c
		}
	}
	return 0
}

// textOf returns the scalar under a key of a mapping, or "".
func (t *tree) textOf(n int32, key string) string {
	if c := t.childOf(n, key); c != 0 && t.nodes[c].kind == scalarNode {
		return t.nodes[c].text
	}
	return ""
}

// findPath follows a field path in validation's format, such as spec.taints[0].effect or
// limits[nvidia.com/gpu], to the last existing element, where a missing field is reported. For
// example, if a container lacks resources, the path spec.containers[0].resources.limits leads to
// containers[0].
func (t *tree) findPath(from int32, path string) int32 {
	at := from
	for path != "" {
		var step string
		child := int32(0)
		switch {
		case path[0] == '[':
			end := strings.IndexByte(path, ']')
			if end < 0 {
				return at
			}
			step, path = path[1:end], path[end+1:]
			// Brackets hold an index or, in a mapping, a key: limits[cpu].
			if i, err := strconv.Atoi(step); err == nil && t.nodes[at].kind == sequenceNode {
				for child = t.nodes[at].first; child != 0 && i > 0; i-- {
					child = t.nodes[child].next
				}
			} else {
				child = t.childOf(at, step)
			}
		default:
			path = strings.TrimPrefix(path, ".")
			// A map's key can contain dots: status.capacity.example.com/gpu.
			if child = t.childOf(at, path); child != 0 {
				return child
			}
			end := strings.IndexAny(path, ".[")
			if end < 0 {
				end = len(path)
			}
			step, path = path[:end], path[end:]
			child = t.childOf(at, step)
		}
		if child == 0 {
			return at
		}
		at = child
	}
	return at
}

// appendJSON appends a value as JSON, in the form that kubectl sends to the API server: plain
// scalars get their type in YAML 1.1, and quoted scalars are strings. Mappings keep their order and
// duplicate keys.
func (t *tree) appendJSON(out []byte, n int32) []byte {
	node := &t.nodes[n]
	switch node.kind {
	case mappingNode, sequenceNode:
		open, end := byte('{'), byte('}')
		if node.kind == sequenceNode {
			open, end = '[', ']'
		}
		out = append(out, open)
		for c := node.first; c != 0; c = t.nodes[c].next {
			// A comma precedes every child but the first.
			if c != node.first {
				out = append(out, ',')
			}
			if node.kind == mappingNode {
				out = append(appendString(out, t.nodes[c].key), ':')
			}
			out = t.appendJSON(out, c)
		}
		return append(out, end)
	}

	// A quoted "1" stays a string; a plain 1 becomes a number below.
	if node.quoted {
		return appendString(out, node.text)
	}
	switch resolveType(node.text) {
	case nullScalar:
		return append(out, "null"...)
	case boolScalar:
		return strconv.AppendBool(out, parseBool(node.text))
	case intScalar, floatScalar:
		return append(out, formatNumber(node.text)...)
	}

	return appendString(out, node.text)
}

// appendString appends a text as a JSON string.
func appendString(out []byte, text string) []byte {
	quoted, err := json.Marshal(text)
	if err != nil { // unreachable: a string always marshals
		return append(out, `""`...)
	}
	return append(out, quoted...)
}
