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

// Formats are those of every answer, beside the one for people. JSONPath stands for
// jsonpath=TEMPLATE. Commands may have further ones, such as name and wide.
var Formats = []string{"json", "yaml", JSONPath}

// JSONPath is how kubectl calls the format that picks values from a document.
const JSONPath = "jsonpath"

// Named is a document whose subjects can be listed as TYPE/NAME, as kubectl -o name does.
type Named interface{ Names() []string }

// Check reports as an error that Write does not know a format: it must be one of the
// allowed, or none for people. jsonpath needs a template that parses. It is for the
// time before an answer is computed, which may take minutes.
func Check(format string, allowed ...string) error {
	kind, template, given := strings.Cut(format, "=")
	switch {
	case format == "":
		return nil
	// Only jsonpath takes something behind an equals sign.
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

// Choice names formats in a sentence: "json, yaml or jsonpath=TEMPLATE". There have
// to be at least two.
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

// parse parses a jsonpath template. Missing keys are no error, as in kubectl: they
// are left out.
func parse(template string) (*jsonpath.JSONPath, error) {
	path := jsonpath.New("output").AllowMissingKeys(true)
	return path, path.Parse(template)
}

// pick writes what a jsonpath template picks from the document, as kubectl does:
// without a newline at the end. Nothing is written if the template fails half-way.
func pick(out io.Writer, template string, document any) error {
	path, err := parse(template)
	if err != nil {
		return err
	}
	text, err := json.Marshal(document)
	if err != nil {
		return err
	}
	var fields any // as in the JSON answer: a struct's own fields may be of types that write themselves
	if err := utiljson.Unmarshal(text, &fields); err != nil {
		return err
	}
	// Written as a whole or not at all.
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
