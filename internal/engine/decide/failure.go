// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// Failure explains why no node can take a pod. It summarizes an Evaluation without a feasible node,
// with counts instead of node names.
type Failure struct {
	// Nodes counts all nodes.
	Nodes int
	// Rejector is the plugin that rejects the pod before any node is considered, and Rejection is
	// its rejection; "" and nil if nodes are rejected individually.
	Rejector  string
	Rejection *plugins.Rejection
	// Reasons counts the nodes by reason. A node can have several reasons.
	Reasons map[string]int
	// Plugins lists the plugins that reject some node, and Pending lists the plugins that make the
	// pod wait. Both lists are sorted.
	Plugins, Pending []string
}

// addRejection counts a rejection of some nodes. As in upstream's message, each of its reasons
// counts for each node, so the counts may add up to more than the number of nodes.
func (f *Failure) addRejection(plugin string, rejection *plugins.Rejection, nodes int) {
	for _, reason := range rejection.Reasons {
		f.Reasons[reason] += nodes
	}
	f.Plugins = withName(f.Plugins, plugin)
	f.addPending(plugin, rejection)
}

// addPending records a plugin that makes the pod wait.
func (f *Failure) addPending(plugin string, rejection *plugins.Rejection) {
	if rejection.Pending {
		f.Pending = withName(f.Pending, plugin)
	}
}

// withName inserts a name into a sorted list unless present. It ignores the empty name.
func withName(names []string, name string) []string {
	if i, found := slices.BinarySearch(names, name); !found && name != "" {
		return slices.Insert(names, i, name)
	}
	return names
}

// Message formats the failure like the FailedScheduling event, followed by the outcome of
// preemption.
func (f *Failure) Message(after string) string {
	if f.Nodes == 0 {
		return "no nodes available to schedule pods"
	}
	message := fmt.Sprintf("0/%d nodes are available:", f.Nodes)
	all := ""
	if f.Rejection != nil {
		all = strings.Join(f.Rejection.Reasons, ", ")
	}

	if all != "" {
		message += " " + all + "."
	} else {
		message += histogram(f.Reasons)
	}

	if after != "" {
		message += " " + after
	}
	return message
}

// Failure returns the failure described by an evaluation without a feasible node.
func (e *Evaluation) Failure() *Failure {
	f := &Failure{Nodes: len(e.Nodes), Rejector: e.Rejector, Rejection: e.Rejection, Reasons: map[string]int{}}
	if e.Rejection != nil {
		f.addPending(e.Rejector, e.Rejection)
	}
	for i := range e.Nodes {
		if v := &e.Nodes[i]; v.Rejection != nil {
			f.addRejection(v.Plugin, v.Rejection, 1)
		}
	}
	return f
}

// Message formats the failure like the FailedScheduling event, followed by the outcome of
// preemption.
func (e *Evaluation) Message(after string) string { return e.Failure().Message(after) }

// histogram lists reasons with their node counts, sorted as text.
func histogram(counts map[string]int) string {
	if len(counts) == 0 {
		return ""
	}
	parts := make([]string, 0, len(counts))
	for reason, n := range counts {
		parts = append(parts, fmt.Sprintf("%d %s", n, reason))
	}
	slices.Sort(parts)
	return " " + strings.Join(parts, ", ") + "."
}

// reasonTable numbers the reasons why nodes themselves cannot take the pods of a class, so that a
// bucket can hold a reason. Rejections with the same texts share a reason. Numbers are assigned in
// order and never freed: a ranking with too many reasons is rebuilt.
type reasonTable struct {
	list   []reason
	byText map[string]int16 // indices in list
	text   []byte           // scratch space for a key of byText
	// merged is set if some reasons represent several reasons that differ only in their texts.
	// Plain then determines why a pod fits nowhere.
	merged bool
}

// indexOf returns the index of a reason. If the table already holds limit reasons, all further
// reasons of a plugin are merged into two: one for rejections that preemption can resolve, and one
// for all other rejections.
func (t *reasonTable) indexOf(plugin string, rejection *plugins.Rejection, limit int) int16 {
	text := append(t.text[:0], plugin...)
	if rejection.Unresolvable {
		text = append(text, 1)
	}
	name := len(text)
	for _, s := range rejection.Reasons {
		text = append(append(text, 0), s...)
	}
	t.text = text

	id, known := t.byText[string(text)]
	if !known && len(t.list) >= limit {
		t.merged = true
		text = append(text[:name], 2)
		id, known = t.byText[string(text)]
	}

	if !known {
		id = int16(len(t.list))
		t.list = append(t.list, reason{plugin, rejection})
		t.byText[string(text)] = id
	}
	return id
}
