// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// Names returns the pods that leave because of the operations, and the newly pending pods, each
// once.
func (f *Forecast) Names() (names []string) {
	listed := map[simulate.Name]bool{}
	add := func(namespace, name string) {
		if pod := (simulate.Name{Namespace: namespace, Name: name}); !listed[pod] {
			listed[pod] = true
			names = append(names, "pod/"+name)
		}
	}

	for i := range f.Leaving {
		// Names of replacements exist in no cluster.
		if !f.Leaving[i].Again {
			add(f.Leaving[i].Namespace, f.Leaving[i].Name)
		}
	}

	for i := range f.Pending {
		if !f.Pending[i].Anyway {
			add(f.Pending[i].Namespace, f.Pending[i].Name)
		}
	}
	return names
}

// Summary returns one line: the effect of the operations, and the number of events that happen
// anyway. For example:
//
//	3 pods leave their nodes: 2 rescheduled, 1 pending. 1 more pod is pending.
func (f *Forecast) Summary() string {
	count := map[string]int{}
	leaving, pending := 0, 0
	for i := range f.Leaving {
		l := &f.Leaving[i]
		// Count only its first departure.
		if l.Again {
			continue
		}
		leaving++
		switch {
		case l.Fate == simulate.Lost:
			count["lost"]++
		case l.Fate == simulate.Stays:
			count["stuck"]++
		case l.Fate == simulate.Waits:
			count["not recreated yet"]++
		case l.Fate == simulate.Fails || l.Fate == simulate.IndexFails:
			count["failed"]++
		case l.Next == nil:
			count["ended"]++
		case l.Next.Node != "":
			count["rescheduled"]++
		default:
			count["pending"]++
		}
	}

	for _, w := range f.Pending {
		if !w.Anyway {
			pending++
		}
	}

	// This is a valid result, and often the desired one.
	text := "No pod leaves its node"
	if leaving > 0 {
		text = answer.Count(leaving, "pod") + " " + verbFor(leaving, "leaves its node", "leave their nodes") + ": "
		var words []string
		// From best to worst.
		for _, fate := range []string{"rescheduled", "pending", "not recreated yet", "lost", "failed", "stuck", "ended"} {
			if count[fate] > 0 {
				words = append(words, fmt.Sprintf("%d %s", count[fate], fate))
			}
		}
		text += strings.Join(words, ", ")
	}

	text += "."
	if pending > 0 {
		text += fmt.Sprintf(" %s %s pending.", answer.Count(pending, "more pod"), verbFor(pending, "is", "are"))
	} else {
		text += " No more pods are pending."
	}

	if n := len(f.placedByThis()); n > 0 {
		text += fmt.Sprintf(" %s %s a node.", answer.Count(n, "other pod"), verbFor(n, "finds", "find"))
	}
	if n := len(f.Anyway); n > 0 {
		text += fmt.Sprintf(" %s %s with or without this.", answer.Count(n, "pod"), verbFor(n, "leaves", "leave"))
	}

	if n := len(f.Spared); n > 0 {
		text += fmt.Sprintf(" %s %s because of this.", answer.Count(n, "pod"), verbFor(n, "stays", "stay"))
	}
	return text
}

// placedByThis returns the pods that find a node only with the operations.
func (f *Forecast) placedByThis() []Placed {
	return slices.DeleteFunc(slices.Clone(f.Placed), func(p Placed) bool { return p.Anyway })
}

// thenText describes the pod's fate, and its departure without the operations.
func (l *Leaving) thenText() string {
	text := l.fateText() + l.recursText()
	if o := l.Otherwise; o != nil {
		text += fmt.Sprintf(" (leaves anyway after %s: %s)", textOf(o.After), strings.TrimSpace(string(o.Cause)+" "+o.Detail))
	}
	return text
}

// fateText describes the pod's fate, except for repeated departures.
func (l *Leaving) fateText() string {
	switch {
	case l.Fate == "": // due after the end of the forecast
		return "not simulated"
	case l.Fate == simulate.Lost:
		return "lost: no controller replaces it"
	case l.Fate == simulate.Stays:
		return "Terminating until its node answers, is removed, or has the taint " + v1.TaintNodeOutOfService
	case l.Fate == simulate.Waits && l.ofJob():
		return "recreated after its Job's back-off"
	case l.Fate == simulate.Waits:
		return "recreated when the pods before it are ready"

	case l.Fate == simulate.Fails:
		return "ends, and its Job fails: " + l.Reason
	case l.Fate == simulate.IndexFails:
		return "ends, and its index fails: " + l.Reason
	case l.Next == nil:
		return "ends"
	case l.Next.Node == "":
		return "pending as " + l.Next.Name + l.backoffText()
	case l.Next.Name == l.Name:
		return "to " + l.Next.Node
	}
	return "to " + l.Next.Node + " as " + l.Next.Name + l.backoffText()
}

// ofJob reports whether a Job created the pod.
func (l *Leaving) ofJob() bool { return strings.HasPrefix(l.Controller, "Job/") }

// backoffText returns the creation time of a replacement delayed by its Job's back-off, or "".
func (l *Leaving) backoffText() string {
	if !l.ofJob() || l.Next.After <= l.After {
		return ""
	}
	return ", created after " + textOf(l.Next.After)
}

// byController counts pods by their controllers: "12 of ReplicaSet/web". It summarizes unlisted
// pods.
func byController(list []Leaving) string {
	counts := map[string]int{}
	for i := range list {
		counts[cmp.Or(list[i].Controller, "no controller")]++
	}
	var words []string
	for name, n := range counts {
		words = append(words, fmt.Sprintf("%d of %s", n, name))
	}
	slices.Sort(words)
	return strings.Join(words, ", ")
}

// verbFor returns the form of a verb for a number.
func verbFor(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// textOf formats an elapsed time.
func textOf(after simulate.Seconds) string { return answer.Duration(time.Duration(after)) }

// utilisationOf returns the cluster's current utilisation.
func utilisationOf(w *simulate.World) Utilisation {
	u := Utilisation{Pending: len(pendingPods(w))}
	for _, n := range w.Cluster().SortedNodes() {
		u.Nodes++
		u.Pods += len(n.Pods)
		if len(n.Pods) == 0 {
			u.Empty++
		}
		u.CPU.Requested = rules.Sum(u.CPU.Requested, n.Requested.MilliCPU)
		u.CPU.Allocatable = rules.Sum(u.CPU.Allocatable, n.Size.MilliCPU)
		u.Memory.Requested = rules.Sum(u.Memory.Requested, n.Requested.Memory)
		u.Memory.Allocatable = rules.Sum(u.Memory.Allocatable, n.Size.Memory)
	}

	u.CPU.setPercent()
	u.Memory.setPercent()
	return u
}

// setPercent computes the percentage with one decimal; 0 if nothing is allocatable.
func (a *Amount) setPercent() {
	if a.Allocatable > 0 {
		a.Percent = math.Round(1000*float64(a.Requested)/float64(a.Allocatable)) / 10
	}
}

// printPending lists the pods pending at the end because of the operations, by pod group and
// reason.
func (p printer) printPending(list []Waiting) {
	for _, r := range reasonsOf(list) {
		p.Warning("\nPending: %s%s", answer.Count(len(r.pods), "pod"), r.of)
		p.Line("  %s", r.message)
		p.printNames(r.pods)
	}
}

// pendingAnyway prints the pods pending with or without the operations. They are last, because the
// user did not ask for them.
func (p printer) pendingAnyway(list []Waiting) {
	if len(list) == 0 {
		return
	}
	hint := " (-o wide says why)"
	if p.wide {
		hint = ""
	}
	p.Line("\nPending with or without this: %s%s", answer.Count(len(list), "pod"), hint)
	if !p.wide {
		p.Line("  %s", answer.List(len(list), func(i int) string { return list[i].Namespace + "/" + list[i].Name }))
		return
	}
	for _, r := range reasonsOf(list) {
		p.Line("  %s%s: %s", answer.Count(len(r.pods), "pod"), r.of, r.message)
		p.printNames(r.pods)
	}
}

// reason is a reason for pending pods, with the pods.
type reason struct {
	of      string // the pods' group, formatted as a suffix of their number
	message string
	pods    []string
}

// reasonsOf groups pending pods by pod group and reason, in order of first occurrence.
func reasonsOf(list []Waiting) (reasons []reason) {
	groupAndMessage := func(w Waiting) [2]string {
		of := ""
		if w.Group != "" {
			of = " of podgroup " + w.Namespace + "/" + w.Group
		}
		// The pod's name in a refusal would make every reason unique.
		return [2]string{of, cmp.Or(strings.TrimPrefix(w.Message, fmt.Sprintf("pods %q is ", w.Name)), "not tried yet")}
	}
	for _, same := range answer.Grouped(list, groupAndMessage) {
		key, pods := groupAndMessage(same[0]), answer.Mapped(same, func(w Waiting) string { return w.Namespace + "/" + w.Name })
		reasons = append(reasons, reason{key[0], key[1], pods})
	}
	return reasons
}
