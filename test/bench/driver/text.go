// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// Mark returns a mark that shows whether a goal is reached.
func Mark(reached bool) string {
	if reached {
		return " ✓"
	}
	return " ✗"
}

// Table writes rows as an aligned Markdown table with an optional title. The first row is the
// header. Without further rows it writes nothing.
func Table(w io.Writer, title string, rows [][]string) {
	if len(rows) < 2 {
		return
	}
	if title != "" {
		fmt.Fprintf(w, "\n## %s\n\n", title)
	}

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

// Short formats a duration with three significant digits, or in whole seconds from 1000 s on.
func Short(d time.Duration) string {
	const most = 999.5 // would be shown as 1e+03
	switch micros, seconds := float64(d)/float64(time.Microsecond), d.Seconds(); {
	case micros < most:
		return fmt.Sprintf("%.3g µs", micros)
	case micros/1000 < most:
		return fmt.Sprintf("%.3g ms", micros/1000)
	case seconds < most:
		return fmt.Sprintf("%.3g s", seconds)
	default:
		return fmt.Sprintf("%.0f s", seconds)
	}
}

// Mebibytes formats an amount of memory.
func Mebibytes(bytes int64) string { return fmt.Sprintf("%d MiB", (bytes+1<<19)>>20) }

// Thousands formats a number with separated thousands.
func Thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Quantile returns the q-quantile of the sorted values, or the zero value for an empty list.
func Quantile[T any](sorted []T, q float64) (at T) {
	if len(sorted) == 0 {
		return at
	}
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}
