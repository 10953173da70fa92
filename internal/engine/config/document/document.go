// Package document looks behind the first document of a YAML file, for readers that take only one.
package document

import (
	"errors"
	"io"
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
