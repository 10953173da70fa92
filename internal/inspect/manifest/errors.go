// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-k8s/berth/internal/engine/config/document"
	"github.com/berth-k8s/berth/internal/engine/rules"
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
	return strings.Join(rules.Mapped(e, (*Error).Error), "\n")
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

// Decode reads one YAML or JSON document into the value to which into points. It is as strict as
// Read: every fault has its line and field, and an unknown field is a fault. name identifies the
// document in faults. Decode is for files without API objects: scenarios, policies, catalogs.
//
// Despite errors it fills in all readable values, so that a caller can distinguish a file of
// another kind from a faulty file.
func Decode(name string, text []byte, into any) error {
	p := &parser{decoder: newDecoder()}
	c := chunk{text: string(text), line: 1}
	if !p.readTree(c) {
		if fault := parseLibrary(&p.tree, c.text, c.line); fault != nil {
			return &Error{File: name, Line: int(fault.line), Text: fault.text}
		}
	}

	if len(p.tree.nodes) == 0 {
		return &Error{File: name, Line: 1, Text: "is empty"}
	}
	p.decoder.resetFor(&p.tree)
	value := reflect.ValueOf(into).Elem()
	planOf(value.Type())(p.decoder, 0, value)
	var faults []error
	// A second document would be ignored silently, and is usually a mistake.
	if line, found := document.Second(c.text); found {
		faults = append(faults, &Error{File: name, Line: max(line, 1), Text: "a second document, where one is expected"})
	}

	for _, list := range [][]problem{p.decoder.faults, p.decoder.unknown} {
		for _, f := range list {
			faults = append(faults, &Error{File: name, Line: int(f.line), Field: f.path, Text: f.text})
		}
	}
	return errors.Join(faults...)
}

// Lines returns the lines, from 1, of the elements of a list at a top-level key of a document. It
// returns nil if the text cannot be parsed or lacks such a list.
func Lines(text []byte, key string) (lines []int) {
	var whole yaml.Node
	if err := yaml.Unmarshal(text, &whole); err != nil || len(whole.Content) == 0 {
		return nil
	}
	fields := whole.Content[0].Content
	for i := 0; i+1 < len(fields); i += 2 {
		if fields[i].Value == key {
			for _, element := range fields[i+1].Content {
				lines = append(lines, element.Line)
			}
		}
	}
	return lines
}
