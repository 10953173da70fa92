// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"encoding/json"
	"strconv"
)

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
