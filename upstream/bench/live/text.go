package live

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// mark shows whether a goal is reached.
func mark(reached bool) string {
	if reached {
		return " ✓"
	}
	return " ✗"
}

func writeTable(w io.Writer, rows [][]string) {
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

// short shows three digits and the unit.
func short(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%.3g µs", float64(d)/float64(time.Microsecond))
	case d < time.Second:
		return fmt.Sprintf("%.3g ms", float64(d)/float64(time.Millisecond))
	}
	return fmt.Sprintf("%.3g s", d.Seconds())
}

func mebibytes(bytes int64) string { return fmt.Sprintf("%d MiB", (bytes+1<<19)>>20) }

func thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
