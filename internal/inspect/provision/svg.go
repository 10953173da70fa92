// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"bufio"
	"cmp"
	"fmt"
	"html"
	"io"
	"slices"
	"strings"

	"github.com/berth-k8s/berth/internal/answer"
)

// The geometry of the picture, in pixels, and its colours.
const (
	pictureWidth = 960
	margin       = 24
	tilesLeft    = 320 // left edge of the nodes, after their description
	headHeight   = 74
	rowGap       = 14
	tileGap      = 3
	barHeight    = 17
	barWidth     = 420 // of the longest bar; its text is behind it
	colourCPU    = "#3b5b92"
	colourMemory = "#c77d0a"
)

// tileOf returns the drawn size of a node: smaller for many nodes. Thousands of nodes still fit on
// one screen.
func tileOf(nodes int) int {
	switch {
	case nodes <= 150:
		return 28
	case nodes <= 800:
		return 16
	default:
		return 8
	}
}

// WriteSVG draws the nodes of the plan by type, each filled with CPU and memory as requested by its
// pods, and the effects of its exchanges as bars.
//
// It is one file without scripts, fonts or links, and follows the reader's light or dark mode. A
// tooltip on each node shows its name. The colours of CPU and memory also differ in brightness.
func (p *Plan) WriteSVG(out io.Writer) error {
	lots := sorted(p.Nodes)
	tile := tileOf(len(p.Nodes))
	each := (pictureWidth - margin - tilesLeft) / (tile + tileGap) // nodes per line
	heightOf := func(l *lot) int {
		return max((len(l.nodes)+each-1)/each*(tile+tileGap), 30) + rowGap
	}
	height := headHeight + margin
	for _, l := range lots {
		height += heightOf(l)
	}
	bars := p.Replaced.bars()
	height += len(bars) * barHeight
	if len(p.Pending) > 0 {
		height += 24
	}

	b := bufio.NewWriter(out)
	fmt.Fprintf(b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="%s" `+
		`font-family="system-ui, sans-serif" font-size="12">`+"\n",
		pictureWidth, height, pictureWidth, height, html.EscapeString(p.headline()))
	b.WriteString("<style>text{fill:#333}.dim{fill:#777}.node{fill:#f3f4f6;stroke:#b8bcc4}.bg{fill:#fff}" +
		"@media(prefers-color-scheme:dark){text{fill:#ddd}.dim{fill:#999}.node{fill:#22252c;stroke:#555b66}.bg{fill:#16181d}}</style>\n")
	fmt.Fprintf(b, `<rect class="bg" width="%d" height="%d"/>`+"\n", pictureWidth, height)
	p.drawHead(b)

	top := headHeight
	for _, l := range lots {
		l.draw(b, top, tile, each)
		top += heightOf(l)
	}
	for _, bar := range bars {
		fmt.Fprintf(b, `<text x="%d" y="%d">%s</text><rect class="bar" x="%d" y="%d" width="%.1f" height="12" fill="%s"/><text class="dim" x="%.1f" y="%d">%s</text>`+"\n",
			margin, top+11, html.EscapeString(shortened(bar.name)), tilesLeft, top+1, bar.length, bar.colour, tilesLeft+6+bar.length, top+11, bar.text)
		top += barHeight
	}
	if len(p.Pending) > 0 {
		fmt.Fprintf(b, `<text x="%d" y="%d">%s</text>`+"\n", margin, top+16, p.staying())
	}
	b.WriteString("</svg>\n")
	return b.Flush()
}

// changeBar is a value before or after exchanges.
type changeBar struct {
	name, text, colour string
	length             float64
}

// bars lists the numbers of nodes by type before and after all exchanges, and the costs after each
// of them. r may be nil.
func (r *Replaced) bars() (list []changeBar) {
	if r == nil || len(r.Exchanges) == 0 {
		return nil
	}
	most, cost := 0, r.Before
	for _, t := range r.Types {
		most = max(most, t.Before, t.After)
	}

	scale := barWidth / float64(most)
	for _, t := range r.Types {
		name := strings.TrimSuffix(dash(t.Type)+", "+t.CapacityType, ", ")
		list = append(list, changeBar{name, fmt.Sprintf("%d today", t.Before), colourMemory, scale * float64(t.Before)},
			changeBar{"", fmt.Sprintf("%d afterwards", t.After), colourCPU, scale * float64(t.After)})
	}
	list = append(list, changeBar{"Cost per hour", fmt.Sprintf("%.4g today", cost), colourMemory, barWidth})
	for i, e := range r.Exchanges {
		cost -= e.Hour
		text := fmt.Sprintf("%.4g after exchange %d, %s", cost, i+1, answer.Count(len(e.Moves), "move"))
		list = append(list, changeBar{"", text, colourCPU, barWidth * cost / r.Before})
	}
	return list
}

// headline summarizes the plan in a line. It is also the picture's alternative text.
func (p *Plan) headline() string {
	switch {
	case len(p.Nodes) > 0:
		return fmt.Sprintf("%s for %s: %.4g an hour, %.0f a month", answer.Count(len(p.Nodes), "new node"),
			answer.Count(p.Pods, "pod"), p.Hour, p.Month)
	case len(p.Pending) > 0:
		return "No node of the catalog helps"
	case p.Replaced != nil:
		return p.Replaced.summary()
	default:
		return "Nothing is pending: no node is needed"
	}
}

// drawHead draws the headline, the quality of the plan, and the legend.
func (p *Plan) drawHead(b io.Writer) {
	fmt.Fprintf(b, `<text x="%d" y="30" font-size="16" font-weight="bold">%s</text>`+"\n", margin, html.EscapeString(p.headline()))
	if len(p.Nodes) == 0 {
		return
	}
	fmt.Fprintf(b, `<text class="dim" x="%d" y="50">%s</text>`+"\n", margin, html.EscapeString(p.bound()))
	for i, of := range []struct{ name, colour string }{{"CPU that pods request", colourCPU}, {"memory", colourMemory}} {
		at := pictureWidth - margin - 240 + 160*i
		fmt.Fprintf(b, `<rect x="%d" y="41" width="10" height="10" fill="%s"/><text x="%d" y="50">%s</text>`+"\n",
			at, of.colour, at+15, of.name)
	}
}

// draw draws the lot's description and each of its nodes, the fullest first.
//
// A node is a square with two bars rising from its lower edge: CPU on the left, memory on the
// right. top is the upper edge of the lot, tile is the side of a square, and each is the number of
// squares per line.
func (l *lot) draw(b io.Writer, top, tile, each int) {
	name := fmt.Sprintf("%d × %s", len(l.nodes), cmp.Or(l.Type, l.Pool))
	more := slices.DeleteFunc([]string{l.Zone, l.CapacityType, fmt.Sprintf("%.4g an hour each", l.Price)},
		func(text string) bool { return text == "" })
	fmt.Fprintf(b, `<text x="%d" y="%d" font-weight="bold">%s</text><text class="dim" x="%d" y="%d">%s</text>`+"\n",
		margin, top+12, html.EscapeString(shortened(name)), margin, top+27, html.EscapeString(shortened(strings.Join(more, ", "))))

	fullest := slices.SortedStableFunc(slices.Values(l.nodes), func(a, b Node) int { return cmp.Compare(b.CPU+b.Memory, a.CPU+a.Memory) })
	for i, n := range fullest {
		x, y := tilesLeft+i%each*(tile+tileGap), top+i/each*(tile+tileGap)
		fmt.Fprintf(b, `<g><title>%s: %s, CPU %.0f %%, memory %.0f %%</title><rect class="node" x="%d" y="%d" width="%d" height="%d"/>`,
			html.EscapeString(n.Name), answer.Count(len(n.Pods), "pod"), n.CPU, n.Memory, x, y, tile, tile)
		// Leave a pixel around the bars for the outline of the node.
		half := float64(tile)/2 - 1
		for side, of := range []struct {
			percent float64
			colour  string
		}{{n.CPU, colourCPU}, {n.Memory, colourMemory}} {
			full := float64(tile-2) * min(of.percent, 100) / 100
			fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`,
				float64(x)+1+half*float64(side), float64(y+tile-1)-full, half, full, of.colour)
		}
		fmt.Fprintln(b, "</g>")
	}
}

// shortened truncates a text that would overlap the nodes. It assumes that 44 characters fit in
// front of the nodes, in any font.
func shortened(text string) string {
	const most = 44
	if letters := []rune(text); len(letters) > most {
		return string(letters[:most-1]) + "…"
	}
	return text
}
