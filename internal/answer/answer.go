// Package answer writes what Berth's commands say: as a document for programs, or as columns for people.
package answer

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"sigs.k8s.io/yaml"
)

// Formats are those that Write knows beside the one for people.
var Formats = []string{"json", "yaml"}

// Write writes a document in one of the formats, or with any other lets people write it.
func Write(out io.Writer, format string, document any, people func(*bufio.Writer)) error {
	switch format {
	case "json":
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		encoder.SetEscapeHTML(false)
		return encoder.Encode(document)
	case "yaml":
		text, err := yaml.Marshal(document)
		if err == nil {
			_, err = out.Write(text)
		}
		return err
	}
	buffered := bufio.NewWriter(out)
	people(buffered)
	return buffered.Flush()
}

// Columns writes rows one below the other. (A tabwriter leaves spaces behind empty cells at the end.)
func Columns(out *bufio.Writer, indent string, rows [][]string) {
	const gap = 3
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var line []byte
	for _, row := range rows {
		line = append(line[:0], indent...)
		for i, cell := range row {
			line = append(line, cell...)
			line = append(line, bytes.Repeat([]byte{' '}, widths[i]-utf8.RuneCountInString(cell)+gap)...)
		}
		out.Write(bytes.TrimRight(line, " "))
		out.WriteByte('\n')
	}
}

// Most is how many of many things are named before the rest is only counted.
const Most = 10

// List names the first of n things and counts the rest.
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
