// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
)

// Terminal is an output read by a person: text is wrapped at its width, and headings are
// highlighted. Pipes and files are not wrapped, so that lines stay intact for grep and awk.
type Terminal struct {
	io.Writer
	// Width is in columns; 0 disables wrapping.
	Width int
	// Styled allows bold and colours.
	Styled bool
}

// TerminalOf returns the terminal behind out, or a Terminal with only a Writer for any other
// output. It respects NO_COLOR and TERM=dumb.
func TerminalOf(out io.Writer) Terminal {
	switch to := out.(type) {
	case Terminal:
		return to
	case *os.File:
		if width, _, err := term.GetSize(int(to.Fd())); err == nil && term.IsTerminal(int(to.Fd())) {
			// TERM identifies text-only terminals.
			kind := os.Getenv("TERM")
			styled := os.Getenv("NO_COLOR") == "" && kind != "dumb" && kind != ""
			return Terminal{Writer: out, Width: width, Styled: styled}
		}
	}
	return Terminal{Writer: out}
}

// Page is the text form of a document. It is buffered: Flush returns write errors. Text from a
// cluster may be passed unescaped; see Visible. Page does not implement io.Writer, so that no
// caller can bypass the escaping.
type Page struct {
	out    *bufio.Writer
	width  int
	styled bool
}

// narrowest is the width in columns below which wrapping does not help readability.
const narrowest = 40

// NewPage begins a page. The caller must call Flush to write its end.
func NewPage(out io.Writer) *Page {
	to := TerminalOf(out)
	if to.Width > 0 {
		to.Width = max(to.Width, narrowest)
	}
	return &Page{bufio.NewWriter(to.Writer), to.Width, to.Styled}
}

// Flush writes the buffered text. It returns the first error of writing the page.
func (p *Page) Flush() error { return p.out.Flush() }

const (
	bold   = "\x1b[1m"
	yellow = "\x1b[33m"
	red    = "\x1b[31m"
	plain  = "\x1b[0m"
)

// Line writes a line, wrapped if it is too long. Continuation lines are indented by two more
// columns. Line breaks in the text begin new lines.
func (p *Page) Line(format string, args ...any) { p.lines("", fmt.Sprintf(format, args...)) }

// Command writes a command to be copied: on one line, regardless of its length.
func (p *Page) Command(indent, command string) { p.styledLine("", indent+command) }

// Heading writes a line in bold, on terminals with styles.
func (p *Page) Heading(format string, args ...any) { p.lines(bold, fmt.Sprintf(format, args...)) }

// Warning writes a line for the user's attention.
func (p *Page) Warning(format string, args ...any) { p.lines(yellow, fmt.Sprintf(format, args...)) }

// Alarm writes a line reporting a serious problem.
func (p *Page) Alarm(format string, args ...any) { p.lines(bold+red, fmt.Sprintf(format, args...)) }

// lines writes each line of a text, wrapped and styled.
func (p *Page) lines(style, text string) {
	for line := range strings.SplitSeq(text, "\n") {
		indent := len(line) - len(strings.TrimLeft(line, " "))
		for i, part := range wrap(line[indent:], p.room(indent), p.room(indent+2)) {
			if i == 1 {
				indent += 2
			}
			p.styledLine(style, strings.Repeat(" ", indent)+part)
		}
	}
}

// styledLine writes one line without wrapping. Every line of a page passes through it, so control
// characters from a cluster never reach a terminal.
func (p *Page) styledLine(style, text string) {
	text = Visible(strings.TrimRight(text, " "))
	if p.styled && style != "" && text != "" {
		text = style + text + plain
	}
	p.out.WriteString(text)
	p.out.WriteByte('\n')
}

// Visible escapes control characters, including characters that reverse the direction of text, in
// the syntax of Go string literals: text from a cluster must neither control the terminal nor
// appear as different text. Names of schedulers and messages of conditions are arbitrary text.
func Visible(text string) string {
	steers := func(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) }
	if strings.IndexFunc(text, steers) < 0 {
		return text
	}
	var seen strings.Builder
	for _, r := range text {
		if quoted := strconv.QuoteRune(r); steers(r) {
			seen.WriteString(quoted[1 : len(quoted)-1])
		} else {
			seen.WriteRune(r)
		}
	}
	return seen.String()
}

// room returns the number of columns after an indent; 0 means unlimited.
func (p *Page) room(indent int) int {
	if p.width == 0 {
		return 0
	}
	return max(p.width-indent, narrowest/2)
}

// wrap breaks a text between words. The parameter first limits the columns of the first line, and
// rest limits the columns of each following line. A longer word stays whole, because it is a name
// to copy. If first is 0, the text is not broken.
func wrap(text string, first, rest int) (lines []string) {
	if first == 0 || utf8.RuneCountInString(text) <= first {
		return []string{text}
	}
	line, room := "", first
	for word := range strings.SplitSeq(text, " ") {
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) <= room:
			line += " " + word
		default:
			lines, line, room = append(lines, line), word, rest
		}
	}
	return append(lines, line)
}

const (
	// gap is the distance between the columns of a table.
	gap = 3
	// besides is the minimum width of the last column next to the other columns.
	besides = 30
)

// Table writes rows, the first as a heading. If the rows are too wide, it wraps the last column. If
// that column would be too narrow, it is moved below the other columns of the row. (A tabwriter
// would leave spaces after empty cells at the end.)
func (p *Page) Table(indent string, rows [][]string) { p.table(indent, rows, bold) }

// Section writes an empty line and a table with a row for each element. It writes nothing for an
// empty list.
func Section[T any](p *Page, indent string, heading []string, list []T, row func(T) []string) {
	if len(list) > 0 {
		p.Line("")
		p.Table(indent, append([][]string{heading}, Mapped(list, row)...))
	}
}

// Rows is Table without a heading.
func (p *Page) Rows(indent string, rows [][]string) { p.table(indent, rows, "") }

// table writes rows, the first one styled.
func (p *Page) table(indent string, rows [][]string, first string) {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	// The last column has the long texts, and begins after all other columns.
	offset := len(indent) // of the last column
	for _, width := range widths[:max(0, len(widths)-1)] {
		offset += width + gap
	}
	last := len(widths) - 1
	// Without a width, everything fits.
	fits := p.width == 0 || last < 0 || offset+widths[last] <= p.width
	beside := fits || p.width-offset >= besides
	for i, row := range rows {
		style := ""
		if i == 0 {
			style = first
		}
		switch {
		case fits || len(row) <= last || row[last] == "" || offset+utf8.RuneCountInString(row[last]) <= p.width:
			p.row(style, indent, row, widths)
		case beside && longestWord(row[last]) <= p.width-offset:
			lines := wrap(row[last], p.width-offset, p.width-offset)
			p.row(style, indent, append(row[:last:last], lines[0]), widths)
			for _, line := range lines[1:] {
				p.styledLine(style, strings.Repeat(" ", offset)+line)
			}
		default:
			p.row(style, indent, row[:last], widths)
			p.lines(style, indent+"    "+row[last])
		}
	}
}

// longestWord returns the width of the longest word of a text. Wrapping never breaks a word.
func longestWord(text string) (most int) {
	for word := range strings.SplitSeq(text, " ") {
		most = max(most, utf8.RuneCountInString(word))
	}
	return most
}

// row writes cells at their columns. Cells that do not fit into the line continue below, indented.
func (p *Page) row(style, indent string, row []string, widths []int) {
	line := []byte(indent)
	at := len(indent)
	for i, cell := range row {
		width := utf8.RuneCountInString(cell)
		// Write the collected line, and continue below with the cell.
		if p.width > 0 && cell != "" && at+width > p.width && at > len(indent)+4 {
			if strings.TrimSpace(string(line)) != "" {
				p.styledLine(style, string(line))
			}
			line, at = []byte(indent+"    "), len(indent)+4
		}
		if p.width > 0 && cell != "" && at+width > p.width { // on a separate line, but still too wide
			parts := wrap(cell, p.width-at, p.width-len(indent)-4)
			for _, part := range parts[:len(parts)-1] {
				p.styledLine(style, string(line)+part)
				line, at = []byte(indent+"    "), len(indent)+4
			}
			cell = parts[len(parts)-1]
			width = utf8.RuneCountInString(cell)
		}
		line = append(line, cell...)
		fill := max(widths[i]-width, 0) + gap
		line = append(line, strings.Repeat(" ", fill)...)
		at += width + fill
	}
	p.styledLine(style, string(line))
}

// Count formats a number with its noun, given in the singular: 1 pod, 2 pods, 3 classes, 2
// policies.
func Count(n int, one string) string {
	if n == 1 || n == -1 {
		return strconv.Itoa(n) + " " + one
	}
	return strconv.Itoa(n) + " " + Plural(one)
}

// Plural returns the plural of a regular English noun: pod, pods; policy, policies; class, classes.
func Plural(one string) string {
	switch {
	case strings.HasSuffix(one, "y") && !strings.ContainsAny(one[len(one)-2:len(one)-1], "aeou"):
		return one[:len(one)-1] + "ies"
	case strings.HasSuffix(one, "s") || strings.HasSuffix(one, "x"):
		return one + "es"
	}
	return one + "s"
}

// Duration formats a duration for people: 45s, 5m, 1h30m, 2d3h. It omits minutes from a day
// upwards, and seconds from an hour upwards. It rounds to the printed units, so 59.96s becomes 1m
// rather than 60s.
func Duration(d time.Duration) string {
	const day = 24 * time.Hour
	switch tenths, seconds, minutes := d.Round(time.Second/10), d.Round(time.Second), d.Round(time.Minute); {
	case d < 0:
		return "-" + Duration(-d)
	case d < time.Second && d > 0:
		return d.Round(time.Millisecond).String()
	case tenths < time.Minute:
		return strconv.FormatFloat(tenths.Seconds(), 'f', -1, 64) + "s"
	case seconds < time.Hour:
		return units(seconds, time.Minute, "m", time.Second, "s")
	case minutes < day:
		return units(minutes, time.Hour, "h", time.Minute, "m")
	}
	return units(d.Round(time.Hour), day, "d", time.Hour, "h")
}

// units formats a duration in two units, omitting the second one if it is zero.
func units(d, large time.Duration, one string, small time.Duration, other string) string {
	text := strconv.Itoa(int(d/large)) + one
	if rest := d % large / small; rest > 0 {
		text += strconv.Itoa(int(rest)) + other
	}
	return text
}
