// Package answer writes what Berth's commands say: as a document for programs, or as columns for
// people.
package answer

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"sigs.k8s.io/yaml"
)

// Write writes a document in one of Formats, or as names if it is Named; with any
// other format people writes it. The document's JSON tags are its public form: the
// same fields go to JSON, YAML and jsonpath.
func Write(out io.Writer, format string, document any, people func(*Page)) error {
	// The only format with an argument.
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
		// Messages have <none> and && in them, which are read by people and shells.
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

// Most is how many of many things are named before the rest is only counted. A list
// of ten fits on a screen with what is around it.
const Most = 10

// List names the first Most of n things and counts the rest: "a, b, c, and 3 more".
// name is called for those that are named only.
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
