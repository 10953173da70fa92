// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/world/disruption"
)

// Write prints the plan of a drain in human-readable form. It prints a line for each departing pod.
// Staying pods are grouped by reason, since many pods often share a reason.
func (d *Draining) Write(out io.Writer, nodes []string) error {
	page := answer.NewPage(out)
	page.Heading("%s to evict from %s", answer.Count(len(d.Pods), "pod"), strings.Join(nodes, ", "))
	rows, silent := [][]string{{"POD", "FROM", "TO", "NOTE"}}, map[string]bool{}
	for i := range d.Pods {
		p := &d.Pods[i]
		to, note := p.To, p.Waits
		if len(p.Or) > 0 {
			to += " or " + answer.Count(len(p.Or), "other")
		}
		if silent[p.From] = p.Held; p.Held {
			to, note = cmp.Or(to, "(none yet)"), andWaits("stays in Terminating", p.Waits)
		}
		switch {
		// The worst outcome takes precedence: losing a pod matters more than leaving one pending.
		case p.Lost:
			to, note = "-", andWaits(cmp.Or(p.Fails, "no controller recreates it"), p.Waits)
		case p.Stranded != "":
			to, note = "(pending)", andWaits(p.Stranded, p.Waits)
		case p.Surge != nil:
			note = fmt.Sprintf("once one more replica of %s is ready", p.Surge.Scaled)
		case p.NoSurge != "" && p.Waits == "":
			note = "cannot surge: " + p.NoSurge
		}
		rows = append(rows, []string{p.Namespace + "/" + p.Name, p.From, to, note})
	}

	if len(d.Pods) > 0 {
		page.Table("", rows)
	}
	reasons := map[string][]string{}
	for _, k := range d.Ignored {
		reasons[k.Why] = append(reasons[k.Why], k.Namespace+"/"+k.Name)
	}

	for _, why := range slices.Sorted(maps.Keys(reasons)) {
		page.Line("%s: %s", why, answer.List(len(reasons[why]), func(i int) string { return reasons[why][i] }))
	}
	if len(d.Ending) > 0 {
		page.Line("already being deleted: %s",
			answer.List(len(d.Ending), func(i int) string { return d.Ending[i].Namespace + "/" + d.Ending[i].Name }))
	}
	for _, k := range d.Ending {
		silent[k.Node] = silent[k.Node] || k.Held
	}
	for _, node := range slices.Sorted(maps.Keys(silent)) {
		if silent[node] {
			page.Line("%s", disruption.WhyHeld(node))
		}
	}
	return page.Flush()
}

// andWaits appends to a pod's outcome the reason why it does not leave yet.
func andWaits(note, waits string) string {
	if waits == "" {
		return note
	}
	return note + "; " + waits
}

// RollAnswer is the output of berth drain --roll: the plan and, after its execution, the outcome.
// Its JSON is read by scripts. Pods in it are plain values, so that the planner's types may change.
type RollAnswer struct {
	APIVersion string      `json:"apiVersion"`
	Kind       string      `json:"kind"`
	Nodes      int         `json:"nodes"`
	Pods       int         `json:"pods"`
	Moves      int         `json:"moves"`
	Again      []Moved     `json:"again,omitempty"`
	Turns      []RollTurn  `json:"turns"`
	Result     *RollResult `json:"result,omitempty"`
}

// RollTurn is a turn of a RollAnswer.
type RollTurn struct {
	Zone    string    `json:"zone,omitempty"`
	Nodes   []string  `json:"nodes"`
	Opens   []string  `json:"opens,omitempty"`
	Pods    []RollPod `json:"pods"`
	Refused []RollPod `json:"refused,omitempty"`
	Ignored []RollPod `json:"ignored,omitempty"`
	Ending  []RollPod `json:"ending,omitempty"`
}

// RollPod is a pod of a RollTurn. The fields set depend on its list: Why for staying pods, Held for
// terminating and departing pods, the remaining fields for departing ones.
type RollPod struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid,omitempty"`
	Owner     string    `json:"owner,omitempty"`
	From      string    `json:"from"`
	To        string    `json:"to,omitempty"`
	Or        []string  `json:"or,omitempty"`
	// Surge is the scaled object as KIND/NAME, if one more replica is started first.
	Surge    string `json:"surge,omitempty"`
	NoSurge  string `json:"noSurge,omitempty"`
	Waits    string `json:"waits,omitempty"`
	Stranded string `json:"stranded,omitempty"`
	Lost     bool   `json:"lost,omitempty"`
	Fails    string `json:"fails,omitempty"`
	Held     bool   `json:"held,omitempty"`
	Why      string `json:"why,omitempty"`
}

// RollResult is the outcome of a roll.
type RollResult struct {
	Rolled  int      `json:"rolled"`
	Evicted int      `json:"evicted"`
	InTurn  []string `json:"inTurn,omitempty"`
	Stopped string   `json:"stopped,omitempty"`
}

// Answer returns the plan as a document. Result is nil: the caller sets it after carrying out the
// roll.
func (r *Roll) Answer() *RollAnswer {
	a := &RollAnswer{APIVersion: "berth.dev/v1alpha1", Kind: "Roll", Pods: r.Pods, Moves: r.Moves, Again: r.Again, Turns: []RollTurn{}}
	for i := range r.Turns {
		t := &r.Turns[i]
		turn := RollTurn{Zone: t.Zone, Nodes: t.Nodes, Opens: t.Opens, Pods: []RollPod{}, Refused: keptOf(t.Refused),
			Ignored: keptOf(t.Ignored), Ending: keptOf(t.Ending)}
		for k := range t.Pods {
			turn.Pods = append(turn.Pods, rollPodOf(&t.Pods[k]))
		}
		a.Nodes += len(t.Nodes)
		a.Turns = append(a.Turns, turn)
	}
	return a
}

// rollPodOf describes a departing pod.
func rollPodOf(p *Departure) RollPod {
	pod := RollPod{
		Namespace: p.Namespace, Name: p.Name, UID: p.UID, Owner: p.Owner, From: p.From, To: p.To, Or: p.Or,
		NoSurge: p.NoSurge, Waits: p.Waits, Stranded: p.Stranded, Lost: p.Lost, Fails: p.Fails, Held: p.Held,
	}
	if p.Surge != nil {
		pod.Surge = p.Surge.Scaled.String()
	}
	return pod
}

// keptOf describes staying pods, with the reasons.
func keptOf(list []Kept) (pods []RollPod) {
	for _, k := range list {
		pods = append(pods, RollPod{Namespace: k.Namespace, Name: k.Name, UID: k.UID, From: k.Node, Why: k.Why, Held: k.Held})
	}
	return pods
}

// Write prints the answer in the given format; by default, it prints the plan as text.
func (a *RollAnswer) Write(out io.Writer, format string) error {
	return answer.Write(out, format, a, func(page *answer.Page) {
		page.Heading("%s to roll in %s: %s leave, %s", answer.Count(a.Nodes, "node"),
			answer.Count(len(a.Turns), "turn"), answer.Count(a.Pods, "pod"), answer.Count(a.Moves, "move"))
		rows := [][]string{{"TURN", "NODES", "ZONE", "PODS", "SURGE", "NOTE"}}
		type remark struct{ why, pod string }
		var remarks []remark
		note := func(why, pod string) { remarks = append(remarks, remark{why, pod}) }

		for i := range a.Turns {
			rows = append(rows, a.Turns[i].tableRow(i+1, note))
		}
		if len(a.Turns) > 0 {
			page.Table("", rows)
		}

		for _, same := range answer.Grouped(remarks, func(r remark) string { return r.why }) {
			page.Line("%s: %s", same[0].why, answer.List(len(same), func(i int) string { return same[i].pod }))
		}
		if len(a.Again) > 0 {
			page.Line("leave more than once: %s",
				answer.List(len(a.Again), func(i int) string { return a.Again[i].Namespace + "/" + a.Again[i].Name }))
		}
	})
}

// tableRow returns a turn's row of the table. note collects remarks on pods.
func (t *RollTurn) tableRow(number int, note func(why, pod string)) []string {
	surges, stranded := 0, 0
	for i := range t.Pods {
		p := &t.Pods[i]
		switch name := p.Namespace + "/" + p.Name; {
		case p.Lost:
			note(cmp.Or(p.Fails, "no controller recreates it"), name)
		case p.Stranded != "":
			stranded++
			note("pending: "+p.Stranded, name)
		case p.Surge != "":
			surges++
		case p.NoSurge != "" && p.Waits == "":
			note("cannot surge: "+p.NoSurge, name)
		}
	}

	for _, p := range slices.Concat(t.Pods, t.Ending) {
		if p.Held {
			note(disruption.WhyHeld(p.From), p.Namespace+"/"+p.Name)
		}
	}
	for i := range t.Refused {
		note(t.Refused[i].Why, t.Refused[i].Namespace+"/"+t.Refused[i].Name)
	}
	var notes []string
	if stranded > 0 {
		notes = append(notes, fmt.Sprintf("%d pending", stranded))
	}

	if len(t.Refused) > 0 {
		notes = append(notes, fmt.Sprintf("%d refused", len(t.Refused)))
	}
	if len(t.Opens) > 0 {
		notes = append(notes, answer.Count(len(t.Opens), "node")+" of later turns opened")
	}

	return []string{fmt.Sprint(number), strings.Join(t.Nodes, " "), t.Zone, fmt.Sprint(len(t.Pods)),
		fmt.Sprint(surges), strings.Join(notes, "; ")}
}
