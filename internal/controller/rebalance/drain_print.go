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
