package decide

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// Failure says why no node can take a pod. It has the same content as an Evaluation without a
// feasible node, as counts instead of node names.
type Failure struct {
	// Nodes counts all nodes.
	Nodes int
	// Rejector is the plugin that rejects the pod before any node is looked at, with its Rejection;
	// "" and nil if nodes are rejected one by one.
	Rejector  string
	Rejection *plugins.Rejection
	// Reasons counts the nodes by reason. A node can have several.
	Reasons map[string]int
	// Plugins are those that reject some node, and Pending those that ask the pod to wait, both
	// sorted.
	Plugins, Pending []string
}

// addRejection counts a rejection of some nodes. All of its reasons count for each node, as in
// upstream's message, so the numbers may add up to more than there are nodes.
func (f *Failure) addRejection(plugin string, rejection *plugins.Rejection, nodes int) {
	for _, reason := range rejection.Reasons {
		f.Reasons[reason] += nodes
	}
	f.Plugins = withName(f.Plugins, plugin)
	f.addPending(plugin, rejection)
}

// addPending records a plugin that asks the pod to wait.
func (f *Failure) addPending(plugin string, rejection *plugins.Rejection) {
	if rejection.Pending {
		f.Pending = withName(f.Pending, plugin)
	}
}

// withName adds a name to a sorted list if it is not in it. The empty name is ignored.
func withName(names []string, name string) []string {
	if i, found := slices.BinarySearch(names, name); !found && name != "" {
		return slices.Insert(names, i, name)
	}
	return names
}

// Message words the failure as the FailedScheduling event does, followed by the outcome of
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

// Failure returns the failure that an evaluation without a feasible node stands for.
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

// Message words the failure as the FailedScheduling event does, followed by the outcome of
// preemption.
func (e *Evaluation) Message(after string) string { return e.Failure().Message(after) }

// histogram lists reasons with the number of nodes that have them, sorted as text.
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
