package whatif

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/simulate"
)

// Write writes the forecast in one of answer.Formats; any other is for people. wide lists every pod where the other sums up.
func (f *Forecast) Write(out io.Writer, format string, wide bool) error {
	return answer.Write(out, format, f, func(text *bufio.Writer) {
		printer{text, wide}.forecast(f)
	})
}

type printer struct {
	*bufio.Writer
	wide bool
}

// most is how many pods are listed before the rest is summed up.
const most = answer.Most

func (p printer) line(format string, args ...any) { fmt.Fprintf(p, format+"\n", args...) }

func (p printer) columns(rows [][]string) { answer.Columns(p.Writer, "  ", rows) }

func (p printer) forecast(f *Forecast) {
	for _, words := range f.Operations {
		p.line("what if: %s", words)
	}
	p.line("%s", f.Summary())
	p.chosen(f.Chosen)
	p.fills(f.Fills)
	p.leaving(f.Leaving)
	p.drains(f.Drains)
	p.placed(f.Placed)
	p.pending(f.Pending)
	p.budgets(f.Budgets)
	if len(f.Later) > 0 {
		p.line("\n%s, the first after %s.", f.later(), f.Later[0].After)
	}
	p.utilisation(f)
	for _, note := range f.Notes {
		p.line("note: %s", note)
	}
	if f.Source.From != "" {
		p.line("\n%s. Nothing was written.", f.Source)
	}
}

// Summary says it in one line.
func (f *Forecast) Summary() string {
	var leaving, lost, returning, waits int
	for _, l := range f.Leaving {
		if l.Again {
			continue
		}
		leaving++
		switch {
		case l.Fate == simulate.Lost:
			lost++
		case l.Next != nil && l.Next.Node != "":
			returning++
		}
	}
	for _, w := range f.Pending {
		if !w.Before {
			waits++
		}
	}
	text := fmt.Sprintf("Leaving their nodes: %d (finding another place: %d, lost: %d). Newly left pending: %d.", leaving, returning, lost, waits)
	if len(f.Placed) > 0 {
		text += fmt.Sprintf(" Placed beside these: %d.", len(f.Placed))
	}
	return text
}

func (p printer) leaving(all []Leaving) {
	list := slices.DeleteFunc(slices.Clone(all), func(l Leaving) bool { return l.Again && !p.wide })
	if len(list) == 0 {
		return
	}
	rows := [][]string{{"AFTER", "LEAVES", "FROM", "BECAUSE", "THEN"}}
	for i := range list {
		if i == most && !p.wide {
			break
		}
		l := &list[i]
		because := string(l.Cause)
		if l.Detail != "" && l.Cause != simulate.ByDrain && l.Cause != simulate.ByNodeRemoval {
			because += " " + l.Detail
		}
		rows = append(rows, []string{l.After.String(), l.Namespace + "/" + l.Name, l.Node, because, l.then()})
	}
	p.line("")
	p.columns(rows)
	if len(list) > most && !p.wide {
		p.line("  and %d more (-o wide lists them all): %s", len(list)-most, byController(list[most:]))
	}
}

// later says who is still to go when the forecast ends.
func (f *Forecast) later() string {
	if f.Settled {
		return fmt.Sprintf("%d pods have come back to where they may not stay, and would go again", len(f.Later))
	}
	return fmt.Sprintf("%d more are to be evicted later", len(f.Later))
}

// then says what becomes of the pod.
func (l *Leaving) then() string {
	switch {
	case l.Fate == simulate.Lost:
		return "is lost: nothing makes it again"
	case l.Fate == simulate.Stays:
		return "stays Terminating until its node answers or is removed"
	case l.Next == nil:
		return "ends"
	case l.Next.Node == "":
		return "pending as " + l.Next.Name
	case l.Next.Name == l.Name:
		return "to " + l.Next.Node
	}
	return "to " + l.Next.Node + " as " + l.Next.Name
}

// byController sums up pods by who made them.
func byController(list []Leaving) string {
	counts := map[string]int{}
	for i := range list {
		counts[cmp.Or(list[i].Controller, "without a controller")]++
	}
	var words []string
	for name, n := range counts {
		words = append(words, fmt.Sprintf("%d of %s", n, name))
	}
	slices.Sort(words)
	return strings.Join(words, ", ")
}

func (p printer) placed(list []Placed) {
	if len(list) == 0 {
		return
	}
	rows := [][]string{{"AFTER", "PLACED", "ON", ""}}
	for i, placed := range list {
		if i == most && !p.wide {
			break
		}
		note := "new"
		if placed.Before {
			note = "waits now"
		}
		rows = append(rows, []string{placed.After.String(), placed.Namespace + "/" + placed.Name, placed.Node, note})
	}
	p.line("")
	p.columns(rows)
	if len(list) > most && !p.wide {
		p.line("  and %d more", len(list)-most)
	}
}

func (p printer) pending(list []Waiting) {
	if len(list) == 0 {
		return
	}
	rows := [][]string{{"PENDING", "", "WHY"}}
	for i, w := range list {
		if i == most && !p.wide {
			break
		}
		note := "new"
		if w.Before {
			note = "as now"
		}
		rows = append(rows, []string{w.Namespace + "/" + w.Name, note, w.Message})
	}
	p.line("")
	p.columns(rows)
	if len(list) > most && !p.wide {
		p.line("  and %d more", len(list)-most)
	}
}

func (p printer) drains(list []Drain) {
	for _, d := range list {
		p.blocked("kubectl drain would refuse to begin:", d.Refused)
		p.blocked("Held by a disruption budget to the end:", d.Blocked)
		p.blocked("Held by a disruption budget for a while:", d.Waited)
		if len(d.Ignored) > 0 {
			p.line("\n%d pods stay where they are: of DaemonSets, or static.", len(d.Ignored))
		}
	}
}

func (p printer) blocked(title string, list []simulate.Blocked) {
	if len(list) == 0 {
		return
	}
	p.line("\n%s", title)
	for i, b := range list {
		if i == most && !p.wide {
			p.line("  and %d more", len(list)-most)
			break
		}
		held := ""
		if b.For > 0 {
			held = " (" + b.For.String() + ")"
		}
		p.line("  %s/%s on %s: %s%s", b.Namespace, b.Name, b.Node, b.Message, held)
	}
}

func (p printer) chosen(list []simulate.Cost) {
	if len(list) == 0 {
		return
	}
	rows := [][]string{{"CHEAPEST TO LOSE", "PODS TO MOVE", "LOST", "HELD BY BUDGETS", "PENDING", "SUM OF PRIORITIES"}}
	for _, c := range list {
		rows = append(rows, []string{c.Node, fmt.Sprint(c.Evicted), fmt.Sprint(c.Lost), fmt.Sprint(c.Blocked), fmt.Sprint(c.Pending), fmt.Sprint(c.Priority)})
	}
	p.line("")
	p.columns(rows)
}

func (p printer) fills(list []simulate.Fill) {
	for i := range list {
		f := &list[i]
		p.line("\n%d pods like %s find room, on %d nodes:", f.Placed, f.Like, len(f.Nodes))
		names := make([]string, 0, len(f.Nodes))
		for name := range f.Nodes {
			names = append(names, name)
		}
		slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(f.Nodes[b], f.Nodes[a]), cmp.Compare(a, b)) })
		for i, name := range names {
			if i == most && !p.wide {
				p.line("  and %d more nodes", len(names)-most)
				break
			}
			p.line("  %5d  %s", f.Nodes[name], name)
		}
		if f.Stops != "" {
			p.line("The next one does not: %s", f.Stops)
		}
	}
}

func (p printer) budgets(list []Budget) {
	for _, b := range list {
		what := "stands in the way of"
		if b.Broken {
			what = "is broken by the loss of"
		}
		p.line("\nDisruption budget %s/%s %s %s.", b.Namespace, b.Name, what, answer.List(len(b.Pods), func(i int) string { return b.Pods[i] }))
	}
}

func (p printer) utilisation(f *Forecast) {
	rows := [][]string{{"", "NODES", "EMPTY", "PODS", "PENDING", "CPU", "MEMORY"}}
	for i, u := range []*Utilisation{&f.Utilisation.Before, &f.Utilisation.After} {
		rows = append(rows, []string{
			[]string{"now", "then"}[i], fmt.Sprint(u.Nodes), fmt.Sprint(u.Empty), fmt.Sprint(u.Pods), fmt.Sprint(u.Pending),
			u.CPU.text(func(n int64) string { return resource.NewMilliQuantity(n, resource.DecimalSI).String() }),
			u.Memory.text(func(n int64) string { return resource.NewQuantity(n&^(1<<20-1), resource.BinarySI).String() }),
		})
	}
	p.line("")
	p.columns(rows)
}

func (a *Amount) text(write func(int64) string) string {
	return fmt.Sprintf("%s of %s (%.1f%%)", write(a.Requested), write(a.Allocatable), a.Percent)
}
