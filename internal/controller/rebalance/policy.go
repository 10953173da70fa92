package rebalance

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// Policy is the goals of moving pods, in order: what one goal has improved is never given up for a
// later one.
//
// A policy comes from goals on the command line ([ReadGoals]) or from a DeschedulerPolicy file
// (package policy). The planner does not know which.
type Policy struct {
	Goals []Goal
	// Nodes limits the nodes that goals look at; nil means all. Successors may land on any node.
	Nodes  labels.Selector
	Limits Limits
	// GracePeriod overrides the pods' own, in seconds.
	GracePeriod *int64
	// Notes are parts of the policy that have no effect here, with their line.
	Notes []string
}

// seesNode reports whether goals look at a node.
func (policy *Policy) seesNode(n *cluster.Node) bool {
	return policy.Nodes == nil || policy.Nodes.Matches(n)
}

// Limits bound the moves of one plan; nil is no limit. They count evictions, from one node, in one
// namespace, or in all; see [Spent] for what counts towards them. 0 allows none.
type Limits struct{ PerNode, PerNamespace, Total *int }

// Goal is one reason to move pods. Exactly one of the fields below Evictor is set.
type Goal struct {
	// Name is the goal or the descheduler's plugin, and Profile that of the policy file.
	Name, Profile string
	Line          int // the line of the policy file; 0 for Berth's own goals
	// Evictor says which pods may be moved at all. Goals of one profile share it. Never nil.
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

// Scope limits the pods that a goal nominates.
type Scope struct {
	// Include and Exclude name namespaces; an empty Include is all. Policies have at most one of
	// the two.
	Include, Exclude []string // namespaces
	// Pods selects by label; nil is all.
	Pods labels.Selector
}

// includesPod reports whether the goal may nominate the pod. It looks only at labels and namespace,
// which are those of the pod's class, so that the answer holds for the successor as well.
func (s *Scope) includesPod(p *pod) bool {
	switch {
	case len(s.Include) > 0 && !slices.Contains(s.Include, p.Namespace()):
		return false
	case slices.Contains(s.Exclude, p.Namespace()):
		return false
	}
	return s.Pods == nil || s.Pods.Matches(p.Class.Labels)
}

// Heal moves pods to reduce violated constraints: those that were satisfied when the pod was
// scheduled and are violated now, since kube-scheduler never looks at a running pod again. Its zero
// value covers all hard constraints.
type Heal struct {
	// Only limits it to one kind of constraint; "" is all.
	Only HealOnly
	// Soft counts spread constraints with ScheduleAnyway instead.
	Soft bool
	// Taints selects the taints that count, if Only is taints; nil means all with NoSchedule.
	Taints func(t *v1.Taint) bool
}

// HealOnly is a kind of constraint.
type HealOnly string

// The kinds.
const (
	AntiAffinity HealOnly = "anti-affinity"
	NodeAffinity HealOnly = "node affinity"
	NodeTaints   HealOnly = "taints"
	Spread       HealOnly = "spread"
)

// Return moves pods to nodes that they prefer: by the weight of preferred node affinity, and by
// PreferNoSchedule taints.
type Return struct {
	Weights, Taints bool
	TaintCounts     func(t *v1.Taint) bool // nil is all
	// Settled is how long a node must have been ready before pods are moved to it.
	Settled time.Duration
}

// Consolidate empties nodes: pods of DaemonSets and static pods stay, all others move. Empty nodes
// keep the taint [EmptyingTaint], so that an autoscaler or a person can remove them.
type Consolidate struct {
	// Nodes is how many nodes are to be empty, including those that are already and have the taint.
	// It is a total, not a number per plan: planning again with the same number finds nothing to
	// do.
	Nodes int
}

// Defragment makes room for pending pods: for all of the named ones, or for none. Without names it
// makes room for each pending pod, those of a pod group together, and then for the pods that come.
type Defragment struct {
	Pods []types.NamespacedName
	// typical is set for the latter.
	typical bool
}

// Utilization is the descheduler's Low- and HighNodeUtilization. Use is counted by requests, as the
// descheduler does by default; actual usage is not known.
type Utilization struct {
	// High empties nodes that are below all thresholds. Otherwise, nodes above a target lose pods.
	High                bool
	Thresholds, Targets map[v1.ResourceName]float64 // percentages of allocatable
	// Deviation is set if the numbers are deviations from the average of all nodes.
	Deviation bool
	// MoreThan is how many nodes must be below the thresholds for anything to happen.
	MoreThan int
	PerNode  *int // evictions from one node that this goal makes
}

// Duplicates spreads pods with the same owner and images over nodes, as the descheduler's
// RemoveDuplicates. ExcludeOwners are kinds of controllers whose pods do not count.
type Duplicates struct{ ExcludeOwners []string }

// Renew replaces pods, wherever their successors land, and removes those that have ended.
type Renew struct {
	// Title names what is counted; "" means pods to renew.
	Title string
	// Wants returns why a pod is to be replaced, or "".
	Wants func(object *v1.Pod, now time.Time) string
	// Before orders the pods: the oldest first, or those with the most restarts; nil means no
	// order.
	Before func(a, b *v1.Pod) int
}
