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

// Limits bound the moves of one plan; nil is no limit.
type Limits struct{ PerNode, PerNamespace, Total *int }

// Goal is one reason to move pods. Exactly one of the fields below Evictor is set.
type Goal struct {
	// Name is the goal or the descheduler's plugin, and Profile that of the policy file.
	Name, Profile string
	Line          int
	Evictor       *Evictor
	Scope         Scope

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
	Include, Exclude []string // namespaces
	Pods             labels.Selector
}

func (s *Scope) includesPod(p *pod) bool {
	switch {
	case len(s.Include) > 0 && !slices.Contains(s.Include, p.Namespace()):
		return false
	case slices.Contains(s.Exclude, p.Namespace()):
		return false
	}
	return s.Pods == nil || s.Pods.Matches(p.Class.Labels)
}

// Heal moves pods to reduce violated constraints. Its zero value covers all hard constraints.
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
// keep a taint.
type Consolidate struct {
	// Nodes is how many nodes are to be empty, including those that are already and have the taint.
	Nodes int
}

// Defragment makes room for pending pods: for all of the named ones, or for none. Without names it
// makes room for each pending pod, those of a pod group together, and then for the pods that come.
type Defragment struct {
	Pods []types.NamespacedName
	// typical is set for the latter.
	typical bool
}

// Utilization is the descheduler's Low- and HighNodeUtilization.
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

// Duplicates spreads pods with the same owner and images over nodes.
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
