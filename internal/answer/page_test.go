// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"
)

func page(width int, styled bool, write func(*Page)) string {
	var out bytes.Buffer
	p := NewPage(Terminal{&out, width, styled})
	write(p)
	_ = p.Flush()
	return out.String()
}

var wide = [][]string{
	{"NAME", "NODE", "WHY"},
	{"default/web-1", "<none>", "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated taint(s). preemption: not eligible."},
	{"default/a-pod-with-quite-a-long-name-5d9f7", "node-1", ""},
}

// TestTablesKeepToTheWidth verifies that wrappable text never exceeds the screen, and that in a
// pipe every row is one line.
func TestTablesKeepToTheWidth(t *testing.T) {
	for _, width := range []int{60, 80, 100, 120} {
		text := page(width, false, func(p *Page) { p.Table("  ", wide) })
		for line := range strings.Lines(text) {
			if len(line) > width+1 {
				t.Errorf("%d columns: %d in %q", width, len(line), line)
			}
		}
		if got, want := strings.Join(strings.Fields(text), " "), "not eligible."; !strings.Contains(got, want) {
			t.Errorf("%d columns: no %q in\n%s", width, want, text)
		}
	}
	if text := page(0, false, func(p *Page) { p.Table("", wide) }); strings.Count(text, "\n") != len(wide) {
		t.Errorf("in a pipe:\n%s", text)
	}
}

func TestLinesWrapUnderTheirIndent(t *testing.T) {
	got := page(40, false, func(p *Page) { p.Line("  %s", "one two three four five six seven eight nine ten") })
	if want := "  one two three four five six seven\n    eight nine ten\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestCommandsAreOneLine verifies that commands are not wrapped, because a wrapped command could
// not be copied.
func TestCommandsAreOneLine(t *testing.T) {
	const command = "kubectl patch deployment web -n default -p '{}'"
	if got := page(40, false, func(p *Page) { p.Command("  ", command) }); got != "  "+command+"\n" {
		t.Errorf("%q", got)
	}
}

// TestStyles verifies that styles are written only to terminals, and do not count as width.
func TestStyles(t *testing.T) {
	write := func(p *Page) { p.Heading("Pods"); p.Table("", [][]string{{"A", "B"}, {"1", "2"}}) }
	if got := page(0, false, write); strings.Contains(got, "\x1b") {
		t.Errorf("without styles: %q", got)
	}
	if got, want := page(80, true, write), "\x1b[1mPods\x1b[0m\n\x1b[1mA   B\x1b[0m\n1   2\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestRowsHaveNoHeading verifies that rows without a heading are not highlighted.
func TestRowsHaveNoHeading(t *testing.T) {
	if got, want := page(80, true, func(p *Page) { p.Rows("", [][]string{{"A", "B"}, {"1", "2"}}) }), "A   B\n1   2\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestControlCharactersAreWritten verifies that text from a cluster, such as the name of a
// scheduler, cannot control the terminal.
func TestControlCharactersAreWritten(t *testing.T) {
	evil := "a\x1b]0;title\x07b\u009bc\u202ed"
	got := page(80, true, func(p *Page) { p.Line("%s", evil); p.Rows("", [][]string{{evil, evil}}) })
	if line := `a\x1b]0;title\ab\u009bc\u202ed`; got != line+"\n"+line+"   "+line+"\n" {
		t.Errorf("%q", got)
	}
}

// TestAPageIsNoWriter verifies that only the methods of a page write to it, and that all of them
// make control characters visible.
func TestAPageIsNoWriter(t *testing.T) {
	var p any = NewPage(&bytes.Buffer{})
	switch p.(type) {
	case io.Writer, io.StringWriter, io.ByteWriter, io.ReaderFrom:
		t.Error("text can be written to a page around Visible")
	}

	// Any text from a cluster may contain control characters.
	evil := "\x1b[2J"
	got := page(80, false, func(p *Page) {
		p.Line("%s", evil)
		p.Command("  ", evil)
		p.Heading("%s", evil)
		p.Warning("%s", evil)
		p.Alarm("%s", evil)
		p.Table("", [][]string{{evil}, {evil}})
		p.Rows("", [][]string{{evil}})
	})
	if strings.Contains(got, "\x1b") || strings.Count(got, `\x1b[2J`) != 8 {
		t.Errorf("%q", got)
	}
}

func TestDurationsAsPeopleSayThem(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 300 * time.Millisecond: "300ms", 1500 * time.Millisecond: "1.5s", 45 * time.Second: "45s", 300 * time.Second: "5m", 330 * time.Second: "5m30s",
		5400 * time.Second: "1h30m", 2 * time.Hour: "2h", 51 * time.Hour: "2d3h", 48 * time.Hour: "2d",
		59960 * time.Millisecond: "1m", 3599600 * time.Millisecond: "1h", 24*time.Hour - 20*time.Second: "1d", -time.Minute: "-1m",
	} {
		if got := Duration(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}

func TestCounts(t *testing.T) {
	for want, got := range map[string]string{
		"1 pod": Count(1, "pod"), "0 pods": Count(0, "pod"), "2 policies": Count(2, "policy"), "3 classes": Count(3, "class"), "2 days": Count(2, "day"),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
