// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"bufio"
	"fmt"
	"html"
	"io"
	"time"

	"github.com/berth-k8s/berth/internal/answer"
)

// The geometry of the drawn timeline, in pixels, and its limits and colours.
const (
	pictureWidth  = 960
	panelHeight   = 140
	panelGap      = 34
	marginLeft    = 70
	marginRight   = 170
	marginTop     = 66
	plotWidth     = pictureWidth - marginLeft - marginRight
	mostMarks     = 40
	markRows      = 3 // rows for the names of steps
	markHeight    = 13
	letterWidth   = 7
	colourGood    = "#2b7a4b"
	colourWarn    = "#c77d0a"
	colourBad     = "#b3261e"
	colourNeutral = "#3b5b92"
)

// line is one curve of a panel: its value at each sample.
type line struct {
	name, colour string
	value        func(*Sample) int
}

// panel is one diagram. Its lines share an axis, up to the highest value of any of them.
type panel struct {
	title string
	lines []line
}

// panels are the diagrams from top to bottom. Evictions are cumulative, so their curve only rises.
var panels = []panel{
	{"nodes", []line{
		{"ready", colourGood, func(s *Sample) int { return s.Nodes - s.NotReady }},
		{"tainted", colourWarn, func(s *Sample) int { return s.Tainted }},
	}},
	{"pods", []line{
		{"on nodes", colourNeutral, func(s *Sample) int { return s.Running }},
		{"pending", colourWarn, func(s *Sample) int { return s.Pending }},
	}},
	{"evictions so far", []line{
		{"evicted", colourBad, func(s *Sample) int { return s.Evicted }},
	}},
}

// SVG draws the timeline: nodes, pods and evictions over time, and the times of operations. The
// time axis ends at until. The picture contains no scripts and loads nothing, so it can be embedded
// in a web page or a repository, and it follows the reader's dark colour scheme. Without samples,
// the diagrams are empty.
func (s *Simulation) SVG(out io.Writer, until time.Duration) error {
	b := bufio.NewWriter(out)
	height := marginTop + len(panels)*(panelHeight+panelGap) + 10
	fmt.Fprintf(b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" `+
		`aria-label="what happened to nodes and pods over %s" `+
		`font-family="system-ui, sans-serif" font-size="12">`+"\n",
		pictureWidth, height, pictureWidth, height, until)
	b.WriteString("<style>text{fill:#333}.grid{stroke:#ddd}.mark{stroke:#888;stroke-dasharray:3 " +
		"3}.bg{fill:#fff}@media(prefers-color-scheme:dark){text{fill:#ddd}.grid{stroke:#444}.bg{fill:#16181d}}</style>\n")
	fmt.Fprintf(b, `<rect class="bg" width="%d" height="%d"/>`+"\n", pictureWidth, height)
	s.drawMarks(b, until, height)
	for i := range panels {
		s.drawPanel(b, &panels[i], marginTop+i*(panelHeight+panelGap), until)
	}
	b.WriteString("</svg>\n")
	return b.Flush()
}

// timeToX returns the position of a time on the time axis, in pixels.
func timeToX(at, until time.Duration) float64 {
	if until == 0 {
		return marginLeft
	}
	return marginLeft + plotWidth*float64(at)/float64(until)
}

// drawMarks draws the failures and recoveries of zones and nodes, and other operations: one mark
// per time. A name is written in the first row without overlap, or omitted if every row overlaps.
// Marks beyond mostMarks are omitted, because they would cover the picture.
func (s *Simulation) drawMarks(b *bufio.Writer, until time.Duration, height int) {
	last, drawn := Seconds(-1), 0
	var ends [markRows]float64 // right end of the text in each row
	for i := range s.Timeline {
		e := &s.Timeline[i]
		if !e.Step || e.After == last {
			continue
		}
		last = e.After
		if drawn++; drawn > mostMarks {
			return
		}
		at := timeToX(time.Duration(e.After), until)
		fmt.Fprintf(b, `<line class="mark" x1="%.1f" x2="%.1f" y1="%d" y2="%d"/>`+"\n", at, at, markRows*markHeight, height-panelGap)
		for row := range ends {
			if at >= ends[row] {
				ends[row] = at + float64(len(e.Kind)*letterWidth)
				fmt.Fprintf(b, `<text x="%.1f" y="%d" font-size="10">%s</text>`+"\n", at+2, markHeight*(row+1), html.EscapeString(e.Kind))
				break
			}
		}
	}
}

// drawPanel draws one diagram, with the final values at its right. The curves are steps: a sample
// holds until the next one.
func (s *Simulation) drawPanel(b *bufio.Writer, p *panel, top int, until time.Duration) {
	highest := 1
	for i := range s.Samples {
		for _, l := range p.lines {
			highest = max(highest, l.value(&s.Samples[i]))
		}
	}
	y := func(n int) float64 { return float64(top+panelHeight) - panelHeight*float64(n)/float64(highest) }
	fmt.Fprintf(b, `<text x="%d" y="%d" font-weight="bold">%s</text>`+"\n", marginLeft, top-6, p.title)
	for _, n := range []int{0, highest / 2, highest} {
		fmt.Fprintf(b, `<line class="grid" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/><text x="%d" y="%.1f" text-anchor="end">%d</text>`+"\n",
			marginLeft, marginLeft+plotWidth, y(n), y(n), marginLeft-6, y(n)+4, n)
	}
	for i := range 5 {
		at := until * time.Duration(i) / 4
		fmt.Fprintf(b, `<text x="%.1f" y="%d" text-anchor="middle" font-size="10">%s</text>`+"\n", timeToX(at, until),
			top+panelHeight+13, answer.Duration(at.Round(time.Second)))
	}
	for i, l := range p.lines {
		fmt.Fprintf(b, `<path fill="none" stroke="%s" stroke-width="1.8" d="`, l.colour)
		previous := 0
		for j := range s.Samples {
			sample := &s.Samples[j]
			n, at := l.value(sample), timeToX(time.Duration(sample.After), until)
			switch {
			case j == 0: // the first sample holds from the beginning
				fmt.Fprintf(b, "M%d %.1f", marginLeft, y(n))
				if at > marginLeft {
					fmt.Fprintf(b, "H%.1f", at)
				}
			case n != previous:
				fmt.Fprintf(b, "H%.1fV%.1f", at, y(n))
			}
			previous = n
		}
		fmt.Fprintf(b, `H%d"/>`+"\n", marginLeft+plotWidth)
		const lineHeight = 16
		fmt.Fprintf(b, `<text x="%d" y="%d" style="fill:%s">%s: %d at the end</text>`+"\n", marginLeft+plotWidth+8,
			top+lineHeight*(i+1), l.colour, l.name, previous)
	}
}
