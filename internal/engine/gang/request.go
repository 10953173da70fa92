// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"cmp"
	"math/rand/v2"
	"slices"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Request is the input of an attempt for a group. No layer changes its fields, but an attempt
// records its results in the Members.
type Request struct {
	Cluster *cluster.Cluster
	Units   Units
	Profile *plugins.Profile
	Decider *decide.Decider // decider for the profile
	Host    Host
	Rand    *rand.Rand // random source of the cycle; every draw is part of the output
	Limits  Limits

	Group *groups.Group
	// TopologyKey is the label that must have the same value on all members' nodes; "" for none.
	TopologyKey string
	// Eligible, if set, selects the nodes available to the group. It is set if a composite group
	// above the group is confined to a domain. The members' own node selectors also apply.
	Eligible func(*cluster.Node) bool
	// PlacedBefore is the number of members counted on nodes before the attempt.
	PlacedBefore int
	// Members are the pods to place, by priority, then age, like upstream. There is at least one.
	Members []*Member
	// Need is the minimum number of members to place; if fewer fit, no member is placed.
	Need int
	// Earlier is the memory of earlier attempts for the group.
	Earlier Memory
}

// Host is the interface through which an attempt calls the scheduling cycle.
type Host interface {
	// Reserve reserves resources other than room for a member on a node. A [Refusal] means that a
	// plugin has rejected the node.
	Reserve(m *Member, n *cluster.Node) error
	// Release releases everything reserved for a member, including by a failed Reserve.
	Release(m *Member)
	// DevicesOf lists the devices allocated by Reserve.
	DevicesOf(m *Member) []resourcev1.DeviceRequestAllocationResult
	// Contender returns the pod with the priority used in the competition for room: the priority of
	// its group, if groups have priorities.
	Contender(p *cluster.Pod, pod *v1.Pod) *cluster.Pod
	// BeginPlacement announces that the members will be decided in the given domain of the topology
	// key ("" without a key).
	BeginPlacement(domain string)
	// GeneratedPlacements announces the number of possible placements: the number of domains, or 1.
	// EvaluatedPlacements announces the number of placements judged since the previous call, and
	// whether enough members fit there.
	GeneratedPlacements(count int)
	EvaluatedPlacements(count int, feasible bool)
	// ScorePlacements scores placements by criteria other than the utilization of their domain,
	// with at most 100 points for each plugin of weight 1. ScoresPlacements reports whether there
	// are any such criteria.
	ScorePlacements(placements []Placement) ([]float64, error)
	ScoresPlacements() bool
	// Leaving lists the preempted pods still on their nodes, sorted.
	Leaving() []*cluster.Pod
}

// Refusal is an error representing a plugin's rejection of a node. Another node may be accepted.
type Refusal interface {
	error
	RefusedBy() (plugin string)
}

// Member is a pod of the group being decided.
type Member struct {
	Form
	Waiting *cluster.Pod // the pod in the cluster model; counted on Node while that is set
	// Delayed is set while the pod may not preempt.
	Delayed bool

	Node    *cluster.Node   // node on which the member is counted now, or nil
	Found   decide.Decision // last decision by which the member was counted
	Nominee *cluster.Pod    // the member's nomination, saved while the member is counted on a node
}

// Form is the form in which a member is decided, and the result. A tree tries its groups in several
// forms.
type Form struct {
	Pod *v1.Pod // last observed API state, possibly confined to a domain
	// Asked is the pod to decide: a copy of Waiting with the priority of its group, possibly
	// confined to a domain.
	Asked *cluster.Pod
	// Failure explains why the first pass found no node for the member; nil if it found a node. It
	// is [NotReached] if the pass ended before the member.
	Failure *decide.Failure
	// Err is the error that ended the attempt: an error of the member's decision, or of a plugin
	// during Reserve.
	Err error
	// Rejectors are the plugins that reject the member even without the victims, or on a cluster
	// that is hypothetically changed for other members.
	Rejectors []string
}

// NotReached is the failure of members not examined before the bound was reached.
var NotReached = &decide.Failure{}

// Reached reports whether the first pass examined the member before ending at the bound.
func (m *Member) Reached() bool { return m.Failure != NotReached }

// RejectedBy lists the plugins that rejected the member, with or without the victims.
func (m *Member) RejectedBy() (names []string) {
	if m.Failure != nil {
		names = slices.Clone(m.Failure.Plugins)
		if m.Failure.Rejector != "" {
			names = append(names, m.Failure.Rejector)
		}
	}
	return WithNames(names, m.Rejectors)
}

// WithNames adds the missing names to the list.
func WithNames(list, more []string) []string {
	for _, name := range more {
		if !slices.Contains(list, name) {
			list = append(list, name)
		}
	}
	return list
}

// Place is a member and the decision for its node.
type Place struct {
	*Member
	Decision decide.Decision
	Devices  []resourcev1.DeviceRequestAllocationResult // new allocations under a plan
}

// Placement holds the actual or planned places of members in one domain.
type Placement struct {
	Domain string
	Nodes  []*cluster.Node // nodes of the domain; nil without a topology key
	Places []Place
}

// eachNode yields the nodes available to the group.
func (r *Request) eachNode(yield func(*cluster.Node) bool) {
	for _, n := range r.Cluster.Nodes {
		if n != nil && (r.Eligible == nil || r.Eligible(n)) && !yield(n) {
			return
		}
	}
}

// decidedAlike reports whether two members are decided as pods of the same class.
func decidedAlike(a, b *Member) bool { return a.Asked.Class == b.Asked.Class }

// dependsOnOthers reports whether a member's placement depends on the pods placed before it.
func dependsOnOthers(m *Member) bool {
	class := m.Waiting.Class
	return len(class.RequiredAffinity)+len(class.Spec.TopologySpreadConstraints) > 0
}

// OrderMatters reports whether the order of placing members, or the node of the first member, can
// affect the other members. This is the case if members differ, or if they depend on other pods, on
// device claims, or on unbound volumes.
func (r *Request) OrderMatters() bool {
	first := r.Members[0]
	for _, m := range r.Members {
		class := m.Waiting.Class
		if !decidedAlike(first, m) || class.HasAffinity() ||
			len(class.Spec.TopologySpreadConstraints)+len(class.Spec.ResourceClaims) > 0 {
			return true
		}
	}

	return slices.ContainsFunc(first.Waiting.Class.Spec.Volumes, func(v v1.Volume) bool {
		if v.PersistentVolumeClaim == nil {
			return false
		}
		claim, ok := r.Cluster.Claims.Get(first.Pod.Namespace, v.PersistentVolumeClaim.ClaimName)
		return ok && claim.Spec.VolumeName == ""
	})
}

// LowestPriority returns the lowest priority of the members. Victims for all members must have a
// lower priority.
func (r *Request) LowestPriority() int32 {
	return slices.MinFunc(r.Members, byPriority).Asked.Class.Priority
}

func (r *Request) highestPriority() int32 {
	return slices.MaxFunc(r.Members, byPriority).Asked.Class.Priority
}

func byPriority(a, b *Member) int { return cmp.Compare(a.Asked.Class.Priority, b.Asked.Class.Priority) }

// keepsBudgets reports whether the profile guarantees that no budget is violated for the group.
func (r *Request) keepsBudgets() bool {
	return r.Profile.KeepBudgets && r.LowestPriority() < rules.SystemCritical
}

// isDelayed reports whether the group may not choose victims yet. The group's delay ends with the
// delay of the member first found unschedulable.
func (r *Request) isDelayed() bool {
	return !slices.ContainsFunc(r.Members, func(m *Member) bool { return !m.Delayed })
}

// Failures returns the members' failures, in order; SetFailures restores them.
func (r *Request) Failures() []*decide.Failure {
	return rules.Mapped(r.Members, func(m *Member) *decide.Failure { return m.Failure })
}

// SetFailures sets the members' failures.
func (r *Request) SetFailures(failures []*decide.Failure) {
	for i, m := range r.Members {
		m.Failure = failures[i]
	}
}

// domainOf returns the node's value of the topology key.
func (r *Request) domainOf(n *cluster.Node) (domain string, ok bool) {
	return DomainOf(n, r.TopologyKey)
}

// DomainOf returns a node's value of a topology key.
func DomainOf(n *cluster.Node, key string) (domain string, ok bool) {
	if key == v1.LabelHostname {
		return n.Hostname.Value, n.Hostname.Known
	}
	domain, ok = n.Labels.Map[key]
	return domain, ok
}
