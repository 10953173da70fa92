// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Error is a fault of the input. It prints as
//
//	nodes.yaml:14: spec.taints[0].effect: "NoRun": must be NoSchedule, PreferNoSchedule or NoExecute
type Error struct {
	File string
	// Line is the line in File, from 1.
	Line int
	// Object identifies the faulty object if the line is ambiguous: a single line of JSON can have
	// many.
	Object string
	// Field is the path of the field, "" if the fault does not concern a field.
	Field string
	// Text describes the fault, usually with the value and the allowed values.
	Text string
}

// Error formats the error as one line. If File is empty, it omits file and line.
func (e *Error) Error() string {
	text := e.Text
	for _, where := range []string{e.Field, e.Object} {
		if where != "" {
			text = where + ": " + text
		}
	}
	if e.File == "" {
		return text
	}
	return fmt.Sprintf("%s:%d: %s", e.File, e.Line, text)
}

// Errors holds the faults of the input, in its order, and prints one per line. If there are more
// than maxErrors faults, the last entry has the number of further faults.
type Errors []*Error

// Error formats all errors, one per line.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i, err := range e {
		lines[i] = err.Error()
	}
	return strings.Join(lines, "\n")
}

// fromValidation rewords an error of the API server's validation: the value first, then the allowed
// values. Upstream's own text begins with the field and "Unsupported value"; here the field
// precedes the text, and determines the line.
func fromValidation(t *tree, root int32, err *field.Error) problem {
	var text string
	switch err.Type {
	case field.ErrorTypeRequired:
		text = joinWithColon("required", err.Detail)
	case field.ErrorTypeForbidden:
		text = joinWithColon("forbidden", err.Detail)
	case field.ErrorTypeDuplicate:
		text = joinWithColon(formatValue(err.BadValue), joinWithColon("given twice", err.Detail))
	case field.ErrorTypeNotSupported:
		text = joinWithColon(formatValue(err.BadValue), "must be "+listAlternatives(err.Detail))
	case field.ErrorTypeNotFound:
		text = joinWithColon(formatValue(err.BadValue), cmp.Or(err.Detail, "not found"))
	default:
		text = joinWithColon(formatValue(err.BadValue), err.Detail)
	}
	if err.Detail == "not a valid selector operator" {
		// Upstream's message omits the allowed values in this case.
		text = joinWithColon(formatValue(err.BadValue), "must be "+oneOf(operatorsAt(err.Field)))
	}
	return problem{line: t.nodes[t.findPath(root, err.Field)].line, path: err.Field, text: text}
}

// operatorsAt returns the operators allowed in a selector, by the path of an operator: node
// selectors also match numbers and fields.
func operatorsAt(path string) []string {
	switch {
	case strings.Contains(path, "matchFields"):
		return []string{"In", "NotIn"}
	case strings.Contains(path, "nodeSelectorTerms") || strings.Contains(path, ".preference."):
		return []string{"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"}
	}
	return []string{"In", "NotIn", "Exists", "DoesNotExist"}
}

// joinWithColon joins two texts by a colon, unless one is empty.
func joinWithColon(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + ": " + b
}

// formatValue prints a value as in the input: strings in quotes, other values as JSON. Long values
// are truncated.
func formatValue(value any) string {
	if value == nil {
		return ""
	}
	v := reflect.ValueOf(value)
	// Validation passes some values by pointer; print the pointee.
	if v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}

	if v.Kind() == reflect.String {
		return strconv.Quote(v.String())
	}
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprint(value)
	}

	// A fault in a selector or a template would otherwise print all of it.
	const enough = 200
	if len(text) > enough {
		return string(text[:enough]) + "..."
	}
	return string(text)
}

// listAlternatives turns `supported values: "A", "B", "C"` into `A, B or C`. It returns other
// details unchanged.
func listAlternatives(detail string) string {
	list, found := strings.CutPrefix(detail, "supported values: ")
	if !found {
		return detail
	}
	words := strings.Split(list, ", ")
	for i, word := range words {
		if plain, err := strconv.Unquote(word); err == nil {
			words[i] = plain
		}
	}
	return oneOf(words)
}

// oneOf formats alternatives: A, B or C.
func oneOf(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
}

// warnings reports each kind of warning once, with its first place and its count, because a newer
// API server may add a field to all objects. order has the keys by first occurrence.
type warnings struct {
	order []string
	first map[string]string
	count map[string]int
}

// addProblem adds a warning about a field, or increments the count of a similar one.
func (w *warnings) addProblem(file, kind string, p problem) {
	if w.first == nil {
		w.first, w.count = map[string]string{}, map[string]int{}
	}
	// The same field of other objects or other items yields the same warning.
	key := kind + " " + indices.Replace(p.path) + p.text
	if w.count[key]++; w.count[key] == 1 {
		w.order = append(w.order, key)
		w.first[key] = fmt.Sprintf("%s:%d: %s %s: %s, ignored", file, p.line, kind, p.path, p.text)
	}
}

// indices removes the digits from a path, so that the paths of all items of a list are equal.
var indices = strings.NewReplacer("0", "", "1", "", "2", "", "3", "", "4", "", "5", "", "6", "", "7", "", "8", "", "9", "")

// listLines returns one line per kind of warning.
func (w *warnings) listLines() []string {
	var lines []string
	for _, key := range w.order {
		line := w.first[key]
		if n := w.count[key]; n > 1 {
			line += fmt.Sprintf(" (%d times)", n)
		}
		lines = append(lines, line)
	}
	return slices.Clip(lines)
}
