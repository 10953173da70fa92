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

// Terminal is where a person reads: text is wrapped at its width, and headings stand
// out. What is piped or written to a file is not wrapped, so that a line stays a line
// for grep and awk.
type Terminal struct {
	io.Writer
	// Width is in columns; 0 does not wrap.
	Width int
	// Styled allows bold and colours.
	Styled bool
}

// TerminalOf is the terminal that is written to; of anything else the zero value
// around it. NO_COLOR and TERM=dumb are respected.
func TerminalOf(out io.Writer) Terminal {
	switch to := out.(type) {
	case Terminal:
		return to
	case *os.File:
		if width, _, err := term.GetSize(int(to.Fd())); err == nil && term.IsTerminal(int(to.Fd())) {
			// Terminals that cannot do more than text say so.
			kind := os.Getenv("TERM")
			styled := os.Getenv("NO_COLOR") == "" && kind != "dumb" && kind != ""
			return Terminal{Writer: out, Width: width, Styled: styled}
		}
	}
	return Terminal{Writer: out}
}

// Page is what people read of an answer. It is buffered: errors of writing come from
// Flush. Text from a cluster may be passed as it is; see Visible. A page is no
// io.Writer, so that nothing gets around that.
type Page struct {
	out    *bufio.Writer
	width  int
	styled bool
}

// narrowest is the width in columns below which wrapping makes nothing easier to
// read.
const narrowest = 40

// NewPage begins a page. It is to be flushed, or its end is lost.
func NewPage(out io.Writer) *Page {
	to := TerminalOf(out)
	if to.Width > 0 {
		to.Width = max(to.Width, narrowest)
	}
	return &Page{bufio.NewWriter(to.Writer), to.Width, to.Styled}
}

// Flush writes what is buffered. It returns the first error of writing the page.
func (p *Page) Flush() error { return p.out.Flush() }

const (
	bold   = "\x1b[1m"
	yellow = "\x1b[33m"
	red    = "\x1b[31m"
	plain  = "\x1b[0m"
)

// Line writes a line, wrapped where it is too long. What wraps is indented by two
// columns more. Line breaks in the text begin new lines.
func (p *Page) Line(format string, args ...any) { p.lines("", fmt.Sprintf(format, args...)) }

// Command writes a command that is to be copied: on one line, however long it is.
func (p *Page) Command(indent, command string) { p.styledLine("", indent+command) }

// Heading writes a line in bold, on terminals with styles.
func (p *Page) Heading(format string, args ...any) { p.lines(bold, fmt.Sprintf(format, args...)) }

// Warning writes a line that asks for attention.
func (p *Page) Warning(format string, args ...any) { p.lines(yellow, fmt.Sprintf(format, args...)) }

// Alarm writes a line that says that something cannot be done.
func (p *Page) Alarm(format string, args ...any) { p.lines(bold+red, fmt.Sprintf(format, args...)) }

// lines writes each line of a text, wrapped and in a style.
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

// styledLine writes one line as it is, without wrapping. All of a page goes through it,
// so no control character of a cluster's reaches a terminal.
func (p *Page) styledLine(style, text string) {
	text = Visible(strings.TrimRight(text, " "))
	if p.styled && style != "" && text != "" {
		text = style + text + plain
	}
	p.out.WriteString(text)
	p.out.WriteByte('\n')
}

// Visible writes control characters as Go does in quotes, and those that reverse the
// direction of text: what comes from a cluster must neither steer the terminal nor
// read as something else. Names of schedulers and messages of conditions can be any
// text.
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

// room is how many columns are left behind an indent; 0: as many as wanted.
func (p *Page) room(indent int) int {
	if p.width == 0 {
		return 0
	}
	return max(p.width-indent, narrowest/2)
}

// wrap cuts a text between words so that its first line is at most first and the
// others at most rest columns wide. A longer word stays whole, for it is a name that
// somebody may want to copy. With first 0, nothing is cut.
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
	// gap stands between the columns of a table.
	gap = 3
	// besides is how much room the last column needs to be read beside the others.
	besides = 30
)

// Table writes rows one below the other, the first as their heading. Where they are
// too wide, the last column is wrapped beside the others or, where it would be too
// narrow for that, stands below them. (A tabwriter leaves spaces behind empty cells
// at the end.)
func (p *Page) Table(indent string, rows [][]string) { p.table(indent, rows, bold) }

// Rows is Table without a heading.
func (p *Page) Rows(indent string, rows [][]string) { p.table(indent, rows, "") }

// table writes rows, the first of them in a style.
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
	// The widths of all columns but the last say where that begins. It is the one
	// with the long texts.
	offset := len(indent) // of the last column
	for _, width := range widths[:max(0, len(widths)-1)] {
		offset += width + gap
	}
	last := len(widths) - 1
	// Everything fits where there is no width.
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

// longestWord is the width of the longest word of a text, which wrapping does not
// cut.
func longestWord(text string) (most int) {
	for word := range strings.SplitSeq(text, " ") {
		most = max(most, utf8.RuneCountInString(word))
	}
	return most
}

// row writes cells at their columns. Those for which the line has no room go on
// below, indented.
func (p *Page) row(style, indent string, row []string, widths []int) {
	line := []byte(indent)
	at := len(indent)
	for i, cell := range row {
		width := utf8.RuneCountInString(cell)
		// What has been collected is written, and the cell goes on below.
		if p.width > 0 && cell != "" && at+width > p.width && at > len(indent)+4 {
			if strings.TrimSpace(string(line)) != "" {
				p.styledLine(style, string(line))
			}
			line, at = []byte(indent+"    "), len(indent)+4
		}
		if p.width > 0 && cell != "" && at+width > p.width { // it has lines of its own, and is too wide for one
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

// Count writes a number and what it counts, which is given for one: 1 pod, 2 pods, 3 classes, 2
// policies.
func Count(n int, one string) string {
	if n == 1 || n == -1 {
		return strconv.Itoa(n) + " " + one
	}
	return strconv.Itoa(n) + " " + Plural(one)
}

// Plural is the plural of an English noun that has a regular one: pod, pods; policy,
// policies; class, classes.
func Plural(one string) string {
	switch {
	case strings.HasSuffix(one, "y") && !strings.ContainsAny(one[len(one)-2:len(one)-1], "aeou"):
		return one[:len(one)-1] + "ies"
	case strings.HasSuffix(one, "s") || strings.HasSuffix(one, "x"):
		return one + "es"
	}
	return one + "s"
}

// Duration writes a duration as people say it: 45s, 5m, 1h30m, 2d3h. Of a day or more
// minutes are left out, of an hour or more seconds. It is rounded to what is written,
// so 59.96s is 1m and not 60s.
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

// units writes a duration in two units, the second one only if there is something of
// it.
func units(d, large time.Duration, one string, small time.Duration, other string) string {
	text := strconv.Itoa(int(d/large)) + one
	if rest := d % large / small; rest > 0 {
		text += strconv.Itoa(int(rest)) + other
	}
	return text
}
