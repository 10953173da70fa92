// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/util/jsonpath"
)

// Formats lists the formats of every document, in addition to the text for people. JSONPath
// represents jsonpath=TEMPLATE. Commands may accept further formats, such as name and wide.
var Formats = []string{"json", "yaml", JSONPath}

// JSONPath is kubectl's name for the format that extracts values from a document.
const JSONPath = "jsonpath"

// Named is a document with subjects to list as TYPE/NAME, like kubectl -o name.
type Named interface{ Names() []string }

// Check returns an error if Write does not support the format: it must be one of the allowed, or
// empty for text. jsonpath requires a template that parses. Call it before computing the document,
// which may take minutes.
func Check(format string, allowed ...string) error {
	kind, template, given := strings.Cut(format, "=")
	switch {
	case format == "":
		return nil
	// Only jsonpath accepts an argument after an equals sign.
	case !slices.Contains(allowed, kind) || given && kind != JSONPath:
		return fmt.Errorf("%q: must be %s", format, Choice(allowed))
	case kind == JSONPath && template == "":
		return fmt.Errorf("%q: needs a template: jsonpath={.kind}", format)
	case kind == JSONPath:
		if _, err := parse(template); err != nil {
			return fmt.Errorf("%q: %w", format, err)
		}
	}
	return nil
}

// Choice lists formats for a sentence: "json, yaml or jsonpath=TEMPLATE". It requires at least two.
func Choice(formats []string) string {
	words := slices.Clone(formats)
	for i, word := range words {
		if word == JSONPath {
			words[i] = word + "=TEMPLATE"
		}
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// parse parses a jsonpath template. As in kubectl, missing keys are omitted rather than an error.
func parse(template string) (*jsonpath.JSONPath, error) {
	path := jsonpath.New("output").AllowMissingKeys(true)
	return path, path.Parse(template)
}

// pick writes the values extracted from the document by a jsonpath template. Like kubectl, it does
// not append a newline. It writes no output if the template fails half-way.
func pick(out io.Writer, template string, document any) error {
	path, err := parse(template)
	if err != nil {
		return err
	}
	text, err := json.Marshal(document)
	if err != nil {
		return err
	}
	var fields any // as in the JSON document: a struct's fields may have their own marshallers
	if err := utiljson.Unmarshal(text, &fields); err != nil {
		return err
	}
	// Buffer the output, to write it completely or not at all.
	var picked bytes.Buffer
	if err := path.Execute(&picked, fields); err != nil {
		return fmt.Errorf("--output jsonpath=%s: %w", template, err)
	}
	_, err = picked.WriteTo(out)
	return err
}

// writeNames writes one name per line.
func writeNames(out io.Writer, names []string) error {
	for _, name := range names {
		if _, err := fmt.Fprintln(out, name); err != nil {
			return err
		}
	}
	return nil
}
