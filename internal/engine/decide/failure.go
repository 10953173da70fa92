package decide

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berth-k8s/berth/internal/engine/cluster"
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

func (f *Failure) add(plugin string, rejection *plugins.Rejection, nodes int) {
	for _, reason := range rejection.Reasons {
		f.Reasons[reason] += nodes
	}
	f.Plugins = withName(f.Plugins, plugin)
	f.waits(plugin, rejection)
}

// waits records a plugin that asks the pod to wait.
func (f *Failure) waits(plugin string, rejection *plugins.Rejection) {
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
		f.waits(e.Rejector, e.Rejection)
	}
	for i := range e.Nodes {
		if v := &e.Nodes[i]; v.Rejection != nil {
			f.add(v.Plugin, v.Rejection, 1)
		}
	}
	return f
}

// Diagnose says why no node can take the pod. Call it right after Decide has found no node.
func (d *Decider) Diagnose(p *cluster.Pod) *Failure {
	r, pl := d.cache.rankingFor(p)
	if pl.way != ranked || len(pl.asked) > 0 {
		return d.evaluate(p).Failure()
	}

	held, _ := r.holdBack(p, questions{}, true)
	defer func() {
		for _, node := range held {
			r.reassess(node)
		}
	}()

	if r.merged {
		return d.evaluate(p).Failure()
	}
	f := &Failure{Nodes: d.c.Len(), Reasons: map[string]int{}}
	said := r.saidOf(held)

	for i, g := range r.groups {
		plugin, rejection := r.judgeGroup(g)
		for id, nodes := range g.rejected {
			if nodes == 0 {
				continue
			}
			own := &r.reasons[id]
			if final := said[groupReason{int32(i), id}]; final < int(nodes) && r.precedes(plugin, own) {
				f.add(plugin, rejection, int(nodes)-final)
				nodes = int32(final)
			}
			if nodes > 0 {
				f.add(own.plugin, own.rejection, int(nodes))
			}
		}
		if g.ok > 0 && rejection != nil {
			f.add(plugin, rejection, int(g.ok))
		}
	}

	return f
}

type groupReason struct {
	group  int32
	reason int
}

// saidOf counts the nodes that holdBack has taken out, by group and reason. These nodes have been
// judged by all plugins, with the pods nominated to them, so what rejects their group without those
// pods does not apply.
func (r *ranking) saidOf(held []int32) map[groupReason]int {
	if r.plan.guestsInRoom() || len(held) == 0 {
		return nil
	}
	said := map[groupReason]int{}
	for _, node := range held {
		said[groupReason{r.groupAt(node), reasonIn(r.bucket[node])}]++
	}
	return said
}
