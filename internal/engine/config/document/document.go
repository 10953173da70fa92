// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package document examines YAML files before they are decoded: whether they contain a second
// document, for readers that expect a single document, and their size with expanded aliases.
package document

import (
	"errors"
	"io"
	"math"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Second reports whether a text has a second document. line is the first line of that document, or
// 0 if the document cannot be read. Empty documents do not count. An unreadable first document is
// reported by its reader. A separator with nothing behind it, often added by editors and
// generators, does not begin a second document.
func Second(text string) (line int, found bool) {
	documents := yaml.NewDecoder(strings.NewReader(text))
	// Empty documents in between are skipped.
	for first := true; ; first = false {
		var document yaml.Node
		switch err := documents.Decode(&document); {
		// There is no further document, or the first document is unreadable and will be reported by
		// the caller's reader.
		case errors.Is(err, io.EOF), err != nil && first:
			return 0, false
		case err != nil:
			return 0, true
		case !first && document.Content[0].Tag != "!!null":
			return document.Content[0].Line, true
		}
	}
}

// Expanded returns the number of values in a text with expanded aliases, at most math.MaxInt32; 0
// if the text cannot be read. A few hundred bytes of nested aliases can expand to billions of
// values.
func Expanded(text string) (values int) {
	documents := yaml.NewDecoder(strings.NewReader(text))
	for {
		var document yaml.Node
		if documents.Decode(&document) != nil {
			return values
		}
		values = min(values+expanded(&document, map[*yaml.Node]int{}), math.MaxInt32)
	}
}

// expanded counts the values of a node. known holds the counts of anchored nodes; a node containing
// itself counts as endless.
func expanded(n *yaml.Node, known map[*yaml.Node]int) int {
	if n.Kind == yaml.AliasNode {
		return expanded(n.Alias, known)
	}
	if count, ok := known[n]; ok {
		return count
	}
	if n.Anchor != "" {
		known[n] = math.MaxInt32
	}
	count := 1
	for _, child := range n.Content {
		count = min(count+expanded(child, known), math.MaxInt32)
	}
	if n.Anchor != "" {
		known[n] = count
	}
	return count
}
