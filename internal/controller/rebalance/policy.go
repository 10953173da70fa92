// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// Policy is an ordered list of goals for moving pods: a later goal never gives up the improvement
// of an earlier one.
//
// A policy is built from goals on the command line ([ReadGoals]) or from a DeschedulerPolicy file
// (package policy). The planner does not distinguish the two.
type Policy struct {
	Goals []Goal
	// Nodes limits the nodes considered by goals; nil means all. Successors may land on any node.
	Nodes  labels.Selector
	Limits Limits
	// GracePeriod overrides the pods' own grace periods, in seconds.
	GracePeriod *int64
	// Notes lists the parts of the policy that have no effect in Berth, with their line numbers.
	Notes []string
}

// seesNode reports whether goals consider a node.
func (policy *Policy) seesNode(n *cluster.Node) bool {
	return policy.Nodes == nil || policy.Nodes.Matches(n)
}

// Limits bound the moves of one plan; nil means unlimited. They count evictions from one node, in
// one namespace, or in total; see [Spent] for the evictions that count. 0 allows none.
type Limits struct{ PerNode, PerNamespace, Total *int }

// Goal is one reason to move pods. Exactly one of the fields below Scope is set.
type Goal struct {
	// Name is the goal or the descheduler's plugin; Profile is the policy file's profile.
	Name, Profile string
	Line          int // the line of the policy file; 0 for Berth's own goals
	// Evictor selects the pods that may be moved. Goals of one profile share the Evictor, which is
	// never nil.
	Evictor *Evictor
	Scope   Scope

	Heal        *Heal
	Return      *Return
	Consolidate *Consolidate
	Defragment  *Defragment
	Utilization *Utilization
	Duplicates  *Duplicates
	Renew       *Renew
}

// Scope limits the pods nominated by a goal.
type Scope struct {
	// Include and Exclude name namespaces; an empty Include means all. A policy sets at most one of
	// the two.
	Include, Exclude []string // namespaces
	// Pods selects by label; nil means all.
	Pods labels.Selector
}

// includesPod reports whether the goal may nominate the pod. It looks only at labels and namespace,
// which all pods of a class have in common, so the result holds for the successor as well.
func (s *Scope) includesPod(p *pod) bool {
	switch {
	case len(s.Include) > 0 && !slices.Contains(s.Include, p.Namespace()), slices.Contains(s.Exclude, p.Namespace()):
		return false
	}
	return s.Pods == nil || s.Pods.Matches(p.Class.Labels)
}

// Heal moves pods to reduce violated constraints: constraints satisfied at scheduling time and
// violated now, since kube-scheduler never looks at a running pod again. Its zero value covers all
// hard constraints.
type Heal struct {
	// Only restricts the goal to one kind of constraint; "" means all.
	Only HealOnly
	// Soft counts spread constraints with ScheduleAnyway instead of hard constraints.
	Soft bool
	// Taints selects the taints that count, if Only is taints; nil means every NoSchedule taint.
	Taints func(t *v1.Taint) bool
}

// HealOnly is a kind of constraint.
type HealOnly string

// The kinds of constraints healed.
const (
	AntiAffinity HealOnly = "anti-affinity"
	NodeAffinity HealOnly = "node affinity"
	NodeTaints   HealOnly = "taints"
	Spread       HealOnly = "spread"
)

// Return moves pods to nodes they prefer: by the weight of preferred node affinity, and by
// PreferNoSchedule taints.
type Return struct {
	Weights, Taints bool
	TaintCounts     func(t *v1.Taint) bool // selects the taints that count; nil means all
	// Settled is the minimum time a node must have been ready before pods are moved to it.
	Settled time.Duration
}

// Consolidate empties nodes: DaemonSet and static pods stay, the rest move. Empty nodes keep the
// taint [EmptyingTaint], so that an autoscaler or a person can remove them.
type Consolidate struct {
	// Nodes is the wanted number of empty nodes, including those already empty and tainted. It is a
	// total, not a number per plan: planning again with the same number moves nothing.
	Nodes int
}

// Defragment makes room for pending pods: for all of the named pods, or for none. Without names it
// makes room for each pending pod, handling a pod group as a unit, and then for typical future
// pods.
type Defragment struct {
	Pods []types.NamespacedName
	// typical selects the step for typical future pods.
	typical bool
}

// Utilization is the descheduler's Low- and HighNodeUtilization. Use is the sum of requests, the
// descheduler's default; actual usage is unknown.
type Utilization struct {
	// High empties nodes below all thresholds. Otherwise, nodes above a target lose pods.
	High                bool
	Thresholds, Targets map[v1.ResourceName]float64 // percentages of allocatable
	// Deviation means that Thresholds and Targets are deviations from the average of all nodes.
	Deviation bool
	// MoreThan prevents all moves unless more than this number of nodes are below the thresholds.
	MoreThan int
	PerNode  *int // limit of this goal's evictions from one node
}

// Duplicates spreads pods with the same owner and images over nodes, like the descheduler's
// RemoveDuplicates. ExcludeOwners lists kinds of controllers to ignore.
type Duplicates struct{ ExcludeOwners []string }

// Renew replaces pods, wherever their successors land, and removes terminal pods.
type Renew struct {
	// Title names the counted pods; "" means "pods to renew".
	Title string
	// Wants returns the reason to replace a pod, or "".
	Wants func(object *v1.Pod, now time.Time) string
	// Before orders the pods: the oldest first, or those with the most restarts; nil means
	// unordered.
	Before func(a, b *v1.Pod) int
}
