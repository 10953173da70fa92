// Package document examines YAML files before they are decoded: whether there is a second document,
// for readers that take only one, and how large a file is once its aliases are expanded.
package document

import (
	"errors"
	"io"
	"math"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Second reports whether a text has a second document, and on which line: 0 if it cannot be read.
// Documents that are empty are none. Of a first one that cannot be read, its reader tells. A
// separator without anything behind it, as editors and generators leave it, is no second document.
func Second(text string) (line int, found bool) {
	documents := yaml.NewDecoder(strings.NewReader(text))
	// Empty documents in between are skipped.
	for first := true; ; first = false {
		var document yaml.Node
		switch err := documents.Decode(&document); {
		// The end, or a first document that the caller's own reader will complain about.
		case errors.Is(err, io.EOF), err != nil && first:
			return 0, false
		case err != nil:
			return 0, true
		case !first && document.Content[0].Tag != "!!null":
			return document.Content[0].Line, true
		}
	}
}

// Expanded returns how many values a text has once its aliases are expanded, at most math.MaxInt32;
// 0 if it cannot be read. A few hundred bytes of nested aliases can stand for billions of values.
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

// expanded counts the values of a node. known has those of anchored nodes; a node that contains
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
