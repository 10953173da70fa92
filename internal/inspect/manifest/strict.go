package manifest

import (
	"errors"
	"io"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Decode reads one document, YAML or JSON, into what into points to, as strictly as manifests:
// every fault has its line and field, and an unknown field is a fault. name is how faults refer to
// the document.
func Decode(name string, text []byte, into any) error {
	p := &parser{decoder: newDecoder()}
	c := chunk{text: string(text), line: 1}
	if !p.readTree(c) {
		if fault := parseLibrary(&p.tree, c.text, c.line); fault != nil {
			return &Error{File: name, Line: int(fault.line), Text: fault.text}
		}
	}

	if len(p.tree.nodes) == 0 {
		return &Error{File: name, Line: 1, Text: "nothing stands there"}
	}
	p.decoder.resetFor(&p.tree)
	value := reflect.ValueOf(into).Elem()
	planOf(value.Type())(p.decoder, 0, value)
	var faults []error
	if line := secondDocument(c.text); line > 0 {
		faults = append(faults, &Error{File: name, Line: line, Text: "a second document, where one is expected"})
	}

	for _, list := range [][]problem{p.decoder.faults, p.decoder.unknown} {
		for _, f := range list {
			faults = append(faults, &Error{File: name, Line: int(f.line), Field: f.path, Text: f.text})
		}
	}
	return errors.Join(faults...)
}

// Lines returns the lines of the elements of the list that a document has at a key.
func Lines(text []byte, key string) (lines []int) {
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil || len(document.Content) == 0 {
		return nil
	}
	fields := document.Content[0].Content
	for i := 0; i+1 < len(fields); i += 2 {
		if fields[i].Value == key {
			for _, element := range fields[i+1].Content {
				lines = append(lines, element.Line)
			}
		}
	}
	return lines
}

// secondDocument returns the line of a second document, 0 if there is none but empty ones. Of one
// that cannot be read no line is known; it returns the first.
func secondDocument(text string) int {
	documents := yaml.NewDecoder(strings.NewReader(text))
	for first := true; ; first = false {
		var document yaml.Node
		switch err := documents.Decode(&document); {
		case errors.Is(err, io.EOF), err != nil && first:
			return 0
		case err != nil:
			return 1
		case !first && document.Content[0].Tag != "!!null":
			return document.Content[0].Line
		}
	}
}
