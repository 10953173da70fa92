// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// Write writes the forecast in one of answer.Formats, or as names, and otherwise as text. Format
// wide lists every pod; otherwise long lists are summarized.
func (f *Forecast) Write(out io.Writer, format string) error {
	return answer.Write(out, format, f, func(text *answer.Page) { printer{text, format == "wide"}.printForecast(f) })
}

// printer prints one forecast. wide lists every pod.
type printer struct {
	*answer.Page
	wide bool
}

// most is the number of pods listed before the rest is summarized.
const most = answer.Most

// printForecast prints all non-empty parts of a forecast.
func (p printer) printForecast(f *Forecast) {
	for _, words := range f.Operations {
		p.Heading("what if: %s", words)
	}
	p.printRefused(f.Refused())
	p.Line("%s", f.Summary())
	p.printChosen(f.Chosen)
	p.printFills(f.Fills)
	// The line of the original pod gives the interval in which its replacements leave again. With
	// -o wide, list every single departure.
	leaving := slices.DeleteFunc(slices.Clone(f.Leaving), func(l Leaving) bool { return l.Again && !p.wide })
	if len(leaving) > 0 {
		p.Line("")
		p.printTable(leaving)
	}

	p.printDrains(f.Drains)
	p.printEvictions(f.Evictions)
	p.printRebalances(f.Rebalances)
	if f.Provision != nil { // the plan reports the placed and the unplaced pods
		f.Provision.Print(p.Page, p.wide)
	} else {
		p.printPlaced(f.placedByThis())
		p.printPending(slices.DeleteFunc(slices.Clone(f.Pending), func(w Waiting) bool { return w.Anyway }))
	}

	p.printBudgets(f.Budgets)
	if len(f.Later) > 0 {
		n := len(f.Later)
		p.Line("\n%s %s evicted later, the first after %s.", answer.Count(n, "more pod"), verbFor(n, "is", "are"), textOf(f.Later[0].After))
	}

	p.printAside("Pods that leave anyway, with or without this:", f.Anyway)
	p.printAside("Pods that stay because of this, and leave without it:", f.Spared)
	p.printUtilisation(f)
	if f.Provision == nil {
		p.pendingAnyway(slices.DeleteFunc(slices.Clone(f.Pending), func(w Waiting) bool { return !w.Anyway }))
	}
	for _, note := range f.Notes {
		p.Line("note: %s", note)
	}

	renamed := func(l Leaving) bool { return l.Next != nil && l.Next.Name != l.Name }
	if slices.ContainsFunc(f.Leaving, renamed) || slices.ContainsFunc(f.placedByThis(), func(p Placed) bool { return !p.Before }) {
		p.Line("\nThe names of new pods are placeholders.") // controllers generate other names in a cluster
	}
	if f.Source.From != "" {
		p.Line("\n%s. Nothing was written.", f.Source)
	}
}

// printRefused prints the pods that keep drains from starting. It comes first, because it makes the
// other parts irrelevant.
func (p printer) printRefused(list []simulate.Blocked) {
	if len(list) == 0 {
		return
	}
	// One reason may keep several nodes from being drained.
	names := sets.List(sets.New(answer.Mapped(list, func(b simulate.Blocked) string { return b.Node })...))
	p.Alarm("kubectl drain refuses to begin on %s because of %s. The nodes are cordoned, and nothing is drained.",
		answer.List(len(names), func(i int) string { return names[i] }), answer.Count(len(list), "pod"))
	// Hundreds of pods are usually refused for one or two reasons.
	byMessage := map[string][]string{}
	for _, b := range list {
		byMessage[b.Message] = append(byMessage[b.Message], b.Namespace+"/"+b.Name+" on "+b.Node)
	}

	for _, message := range slices.Sorted(maps.Keys(byMessage)) {
		p.Line("  %s:", message)
		p.printNames(byMessage[message])
	}
	p.Line("")
}

// printNames lists some names, and counts the rest.
func (p printer) printNames(list []string) {
	for i, name := range list {
		// The output must fit on a screen; long lists require -o wide.
		if i == most && !p.wide {
			p.Line("    and %d more (-o wide lists them all)", len(list)-most)
			return
		}
		p.Line("    %s", name)
	}
}

// printTable prints a table of departing pods, or of the first of them: time, origin, cause and
// fate.
func (p printer) printTable(list []Leaving) {
	rows := [][]string{{"AFTER", "POD", "FROM", "BECAUSE", "THEN"}}
	for _, l := range answer.Shown(list, p.wide) {
		because := string(l.Cause)
		// For these causes the detail is the node, already shown in its column.
		if l.Detail != "" && l.Cause != simulate.ByDrain && l.Cause != simulate.ByNodeRemoval {
			because += " " + l.Detail
		}
		rows = append(rows, []string{textOf(l.After), l.Namespace + "/" + l.Name, l.Node, because, l.thenText()})
	}
	p.Table("  ", rows)
	if len(list) > most && !p.wide {
		p.Line("  and %d more (-o wide lists them all): %s", len(list)-most, byController(list[most:]))
	}
}

// printAside prints pods that leave regardless of the operations, or only without them, under a
// title.
func (p printer) printAside(title string, list []Leaving) {
	if len(list) == 0 {
		return
	}
	p.Line("\n%s", title)
	p.printTable(list)
}

// printPlaced prints the pods that find a node because of the operations.
func (p printer) printPlaced(list []Placed) {
	answer.Section(p.Page, "  ", []string{"AFTER", "PLACED", "ON", ""}, answer.Shown(list, p.wide), func(placed Placed) []string {
		// Replacements are not listed here, so the pod was either pending or is new.
		note := "new"
		if placed.Before {
			note = "was pending"
		}
		return []string{textOf(placed.After), placed.Namespace + "/" + placed.Name, placed.Node, note}
	})
	if len(list) > most && !p.wide {
		p.Line("  and %d more", len(list)-most)
	}
}

// printDrains prints the causes that prevent drains from completing, or delay them.
func (p printer) printDrains(list []Drain) {
	for _, d := range list {
		// printRefused already prints refused drains at the top.
		if len(d.Refused) > 0 {
			continue
		}
		p.printBlocked("Held by a disruption budget to the end:", d.Blocked)
		p.printBlocked("Held by a disruption budget for a while:", d.Waited)
		if n := len(d.Ignored); n > 0 {
			p.Line("\n%s: of DaemonSets, or static.", answer.Count(n, "pod")+" "+verbFor(n, "stays where it is", "stay where they are"))
		}
		if n := len(d.Terminating); n > 0 {
			p.Line("\n%s already: kubectl waits until %s ended.", answer.Count(n, "pod")+" "+
				verbFor(n, "is terminating", "are terminating"), verbFor(n, "it has", "they have"))
		}
	}
}

// printRebalances prints the outcomes of rebalances.
func (p printer) printRebalances(list []*simulate.Moved) {
	for _, m := range list {
		p.Line("\nRebalance: %s.", answer.Count(m.Moves, "move"))
		if m.Elsewhere > 0 {
			p.Warning("  %s elsewhere than planned.", answer.Count(m.Elsewhere, "successor")+" "+verbFor(m.Elsewhere, "lands", "land"))
		}

		if m.Stopped != "" {
			p.Warning("  It stops: %s.", m.Stopped)
		}
		if len(m.Empties) > 0 {
			p.Line("  Empty, with the taint %s:NoSchedule: %s", rebalance.EmptyingTaint,
				answer.List(len(m.Empties), func(i int) string { return m.Empties[i] }))
		}

		for i, s := range m.Stays {
			if i == most && !p.wide {
				p.Line("  and %d more that stay", len(m.Stays)-most)
				break
			}
			name := "node " + s.Node
			if s.Name != "" {
				name = s.Namespace + "/" + s.Name
			}
			p.Line("  %s stays: %s: %s", name, s.Code, s.Message)
		}
	}
}

// printBlocked prints pods held by a budget, under a title.
func (p printer) printBlocked(title string, list []simulate.Blocked) {
	if len(list) == 0 {
		return
	}
	p.Line("\n%s", title)
	for i, b := range list {
		if i == most && !p.wide {
			p.Line("  and %d more", len(list)-most)
			break
		}
		// For a pod that was evicted in the end, add the time until its eviction.
		held := ""
		if b.For > 0 {
			held = " (" + textOf(b.For) + ")"
		}
		p.Line("  %s/%s on %s: %s%s", b.Namespace, b.Name, b.Node, b.Message, held)
	}
}

// printChosen prints the cheapest nodes to lose, with their costs.
func (p printer) printChosen(list []simulate.Cost) {
	// The columns are in order of the costs' importance, except that the number of pods is first
	// for readability.
	heading := []string{"CHEAPEST TO DRAIN", "PODS TO MOVE", "LOST", "HELD BY BUDGETS", "PENDING", "SUM OF PRIORITIES"}
	answer.Section(p.Page, "  ", heading, list, func(c simulate.Cost) []string {
		return []string{c.Node, fmt.Sprint(c.Evicted), fmt.Sprint(c.Lost), fmt.Sprint(c.Blocked), fmt.Sprint(c.Pending), fmt.Sprint(c.Priority)}
	})
}

// printFills prints the number of added pods that found room, and their nodes, the fullest node
// first.
func (p printer) printFills(list []simulate.Fill) {
	for i := range list {
		f := &list[i]
		p.Line("\n%s like %s %s room, on %s:", answer.Count(f.Placed, "pod"), f.Like, verbFor(f.Placed, "finds", "find"),
			answer.Count(len(f.Nodes), "node"))
		// The fullest nodes first, then by name.
		names := slices.SortedFunc(maps.Keys(f.Nodes), func(a, b string) int {
			return cmp.Or(cmp.Compare(f.Nodes[b], f.Nodes[a]), cmp.Compare(a, b))
		})
		for i, name := range names {
			if i == most && !p.wide {
				p.Line("  and %s", answer.Count(len(names)-most, "more node"))
				break
			}
			p.Line("  %5d  %s", f.Nodes[name], name)
		}

		if f.Stops != "" {
			p.Line("The next one finds none: %s", f.Stops)
		}
	}
}

// printBudgets prints the budgets that hold pods back or are violated.
func (p printer) printBudgets(list []Budget) {
	for _, b := range list {
		what := "holds back"
		switch {
		case b.Broken && b.Blocks:
			what = "holds back, or is violated by the loss of,"
		case b.Broken:
			what = "is violated by the loss of"
		}
		p.Line("\nDisruption budget %s/%s %s %s.", b.Namespace, b.Name, what,
			answer.List(len(b.Pods), func(i int) string { return b.Pods[i] }))
	}
}

// printUtilisation prints the cluster's utilisation now, without the operations, and with them.
func (p printer) printUtilisation(f *Forecast) {
	rows := [][]string{{"", "NODES", "EMPTY", "PODS", "PENDING", "CPU", "MEMORY"}}
	for i, u := range []*Utilisation{&f.Utilisation.Before, f.Utilisation.Without, &f.Utilisation.After} {
		if u == nil {
			continue
		}
		rows = append(rows, []string{
			// The row "without" is omitted if nothing happens without the operations.
			[]string{"now", "without", "then"}[i], fmt.Sprint(u.Nodes), fmt.Sprint(u.Empty), fmt.Sprint(u.Pods), fmt.Sprint(u.Pending),
			u.CPU.formatAmount(func(n int64) string { return resource.NewMilliQuantity(n, resource.DecimalSI).String() }),
			u.Memory.formatAmount(func(n int64) string { return plugins.Amount(v1.ResourceMemory, n&^(1<<20-1)) }),
		})
	}
	p.Line("")
	p.Table("  ", rows)
}

// formatAmount formats the amount as requested of allocatable; write formats a number with its
// unit.
func (a *Amount) formatAmount(write func(int64) string) string {
	return fmt.Sprintf("%s of %s (%.1f%%)", write(a.Requested), write(a.Allocatable), a.Percent)
}
