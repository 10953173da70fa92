// Package table writes what was measured, beside the goals.
package table

import (
	"fmt"
	"io"
	"strings"
)

// Mark shows whether a goal is reached.
func Mark(reached bool) string {
	if reached {
		return " ✓"
	}
	return " ✗"
}

// Write writes rows as a table that is one in Markdown, too; the first is the head.
func Write(w io.Writer, rows [][]string) {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], len([]rune(cell)))
		}
	}

	for i, row := range rows {
		for k, cell := range row {
			fmt.Fprintf(w, "| %s%s ", cell, strings.Repeat(" ", widths[k]-len([]rune(cell))))
		}
		fmt.Fprintln(w, "|")
		if i == 0 {
			for k := range row {
				fmt.Fprintf(w, "| %s ", strings.Repeat("-", widths[k]))
			}
			fmt.Fprintln(w, "|")
		}
	}
}
