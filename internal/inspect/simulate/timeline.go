// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"bufio"
	"fmt"
	"html"
	"io"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/answer"
)

// Event is an event of the simulated time: one line of the timeline. It concerns a pod or a pod
// group (Name is set), a node or a zone.
type Event struct {
	After Seconds `json:"after"`
	// Kind is a stable CamelCase name, such as NodeFailed, TaintAdded, PodEvicted, PodPlaced,
	// PodPending, PodGroupPending.
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"` // name of the pod or the pod group
	Node      string `json:"node,omitempty"`
	Zone      string `json:"zone,omitempty"`
	Message   string `json:"message,omitempty"`
	// Step is set for a direct effect of a scenario step, as opposed to a later consequence.
	Step bool `json:"step,omitempty"`
}

// Sample is the state of the cluster after a change: one point of the drawn curves. It holds until
// the next one.
type Sample struct {
	After Seconds `json:"after"`
	// Nodes counts all nodes, NotReady counts the nodes without a True Ready condition in the API,
	// and Tainted counts the nodes with a taint that repels pods.
	Nodes    int `json:"nodes"`
	NotReady int `json:"notReady"`
	Tainted  int `json:"tainted"`
	Running  int `json:"running"` // pods on nodes
	Pending  int `json:"pending"`
	Evicted  int `json:"evicted"` // total so far
}

// report collects the result. All components write to it, each when it makes a change. The timeline
// and the samples are in order of time.
type report struct {
	clock    *clock
	said     *Simulation
	timed    bool // time may pass, so there is a timeline
	timeline []Event
	samples  []Sample
	// stepping is set while a scenario step runs; events get its value as Step.
	stepping bool
	// touched is set after a change not recorded in the cluster's log, such as the creation of a
	// pending pod. The next runStep then takes a sample and clears touched.
	touched bool
	failed  error // an operation of the scenario failed, or a decision panicked
}

// addEvent adds an event with the current time to the timeline. Without a timeline, it does
// nothing.
func (r *report) addEvent(e Event) {
	if !r.timed {
		return
	}
	e.After, e.Step = Seconds(r.clock.now), r.stepping
	r.timeline = append(r.timeline, e)
}

// addDecision adds a decision about the pod to the result. It returns the entry, which the caller
// may complete until the next entry is added, or nil for a quiet pod. together means that an event
// covers the whole group, so addDecision adds none for the pod.
func (r *report) addDecision(p *pod, said Pod, together bool) *Pod {
	p.refusal = said.Message
	if p.quiet {
		return nil
	}
	said.Namespace, said.Name, said.After = p.Namespace(), p.Name(), Seconds(r.clock.now)
	if said.Victims == nil {
		said.Victims = []Name{}
	}
	r.said.Pods = append(r.said.Pods, said)
	switch {
	case said.Node != "":
		r.addEvent(Event{Kind: "PodPlaced", Namespace: said.Namespace, Name: said.Name, Node: said.Node})
	case len(said.Victims) == 0 && !together:
		r.addEvent(Event{Kind: "PodPending", Namespace: said.Namespace, Name: said.Name, Message: said.Message})
	}
	return &r.said.Pods[len(r.said.Pods)-1]
}

// recordTaints reports added and removed taints. A taint is identified by key and effect; a changed
// value is not reported.
func (r *report) recordTaints(node string, before, after []v1.Taint) {
	missing := func(in []v1.Taint, t *v1.Taint) bool {
		return !slices.ContainsFunc(in, func(o v1.Taint) bool { return o.MatchTaint(t) })
	}
	for i := range after {
		if missing(before, &after[i]) {
			r.addEvent(Event{Kind: "TaintAdded", Node: node, Message: after[i].ToString()})
		}
	}
	for i := range before {
		if missing(after, &before[i]) {
			r.addEvent(Event{Kind: "TaintRemoved", Node: node, Message: before[i].ToString()})
		}
	}
}

// addSample adds the state of the cluster and replaces an earlier sample of the same time. It omits
// a sample equal to the previous one.
func (r *report) addSample(s Sample) {
	s.After, s.Evicted = Seconds(r.clock.now), len(r.said.Evictions)
	if last := len(r.samples) - 1; last >= 0 {
		switch before := r.samples[last]; {
		case before.After == s.After:
			r.samples = r.samples[:last]
		default:
			before.After = s.After
			if before == s {
				return
			}
		}
	}
	r.samples = append(r.samples, s)
}

// Timeline returns the events so far, in order of time. Callers must not modify it.
func (w *World) Timeline() []Event { return w.report.timeline }

// groupPending is the kind of the event of a waiting pod group.
const groupPending = "PodGroupPending"

// Where returns the subject of an event: a pod, a pod group, a node or a zone, named like in
// kubectl. It omits the namespace default. An event without such a subject yields "-".
func (e *Event) Where() string {
	switch {
	case e.Kind == groupPending:
		return "podgroup/" + strings.TrimPrefix(e.Namespace+"/", "default/") + e.Name
	case e.Name != "":
		return "pod/" + strings.TrimPrefix(e.Namespace+"/", "default/") + e.Name
	case e.Node != "":
		return "node/" + e.Node
	case e.Zone != "":
		return "zone/" + e.Zone
	}
	return "-"
}

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
