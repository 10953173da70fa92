package manifest

import (
	"errors"
	"reflect"
)

// Decode reads one document, YAML or JSON, into what into points to, as strictly as manifests:
// every fault has its line and field, and an unknown field is a fault. name is how faults refer to
// the document.
func Decode(name string, text []byte, into any) error {
	p := &parser{decoder: newDecoder()}
	c := chunk{text: string(text), line: 1}
	if !p.read(c) {
		if fault := parseLibrary(&p.tree, c.text, c.line); fault != nil {
			return &Error{File: name, Line: int(fault.line), Text: fault.text}
		}
	}
	if len(p.tree.nodes) == 0 {
		return &Error{File: name, Line: 1, Text: "nothing stands there"}
	}
	p.decoder.reset(&p.tree)
	value := reflect.ValueOf(into).Elem()
	planOf(value.Type())(p.decoder, 0, value)
	var faults []error
	for _, list := range [][]problem{p.decoder.faults, p.decoder.unknown} {
		for _, f := range list {
			faults = append(faults, &Error{File: name, Line: int(f.line), Field: f.path, Text: f.text})
		}
	}
	return errors.Join(faults...)
}
