// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package answer writes the output of Berth's commands: as a document for programs, or as columns
// for people.
package answer

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"sigs.k8s.io/yaml"
)

// Write writes a document in one of Formats, or as names if it is Named; any other format means the
// text form, which the function people writes. The document's JSON tags are its public form: JSON,
// YAML and jsonpath share the same fields.
func Write(out io.Writer, format string, document any, people func(*Page)) error {
	// jsonpath is the only format with an argument.
	if template, ok := strings.CutPrefix(format, JSONPath+"="); ok {
		return pick(out, template, document)
	}
	switch format {
	case "name":
		if named, ok := document.(Named); ok {
			return writeNames(out, named.Names())
		}
	case "json":
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		// Messages contain <none> and &&, and are read by people and shells.
		encoder.SetEscapeHTML(false)
		return encoder.Encode(document)
	case "yaml":
		text, err := yaml.Marshal(document)
		if err == nil {
			_, err = out.Write(text)
		}
		return err
	}

	page := NewPage(out)
	people(page)
	return page.Flush()
}

// Most is the number of items named before the rest is counted. A list of ten fits on a screen
// together with its context.
const Most = 10

// List names the first Most of n things and counts the rest: "a, b, c, and 3 more". It calls name
// only for the things that it names.
func List(n int, name func(i int) string) string {
	var names []string
	for i := range n {
		if i == Most {
			names = append(names, fmt.Sprintf("and %d more", n-Most))
			break
		}
		names = append(names, name(i))
	}
	return strings.Join(names, ", ")
}

// Mapped returns the results of a function for the elements of a list, in order; nil for an empty
// list.
func Mapped[T, U any](list []T, of func(T) U) (results []U) {
	for _, element := range list {
		results = append(results, of(element))
	}
	return results
}

// Shown returns the first [Most] elements of a list, or all of them with wide.
func Shown[T any](list []T, wide bool) []T {
	if wide {
		return list
	}
	return list[:min(len(list), Most)]
}

// Grouped groups the elements of a list with equal keys. Groups are in the order of their first
// elements.
func Grouped[T any, K comparable](list []T, key func(T) K) (groups [][]T) {
	at := map[K]int{}
	for _, element := range list {
		k := key(element)
		if _, known := at[k]; !known {
			at[k] = len(groups)
			groups = append(groups, nil)
		}
		groups[at[k]] = append(groups[at[k]], element)
	}
	return groups
}
