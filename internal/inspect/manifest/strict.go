// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"errors"
	"reflect"

	"go.yaml.in/yaml/v3"

	"github.com/berth-k8s/berth/internal/engine/config/document"
)

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
