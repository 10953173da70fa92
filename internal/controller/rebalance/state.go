// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance

import (
	"maps"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/plugins"
	objects "github.com/berth-k8s/berth/internal/world"
)

// State is a cluster at one time, as stored in the API. Plans are made from it; see [Make] and
// [PlanDrain]. Objects are read from an API server, from a file, or from a plan ([Plan.After]).
type State struct {
	// AsOf is the clock of the plan: ages and rests are measured against it.
	AsOf time.Time
	// World holds all objects relevant to decisions. Plans are made in forks of it, and do not
	// change it.
	World *objects.World
}

// fork returns a mutable copy of the state.
func (s *State) fork() *State { return &State{s.AsOf, s.World.Fork()} }

// node returns the named node, or nil.
func (s *State) node(name string) *v1.Node {
	n, _ := objects.Get[*v1.Node](s.World, "", name)
	return n
}

// pod returns the named pod if its UID still matches, or nil.
func (s *State) pod(namespace, name string, uid types.UID) *v1.Pod {
	if p, there := objects.Get[*v1.Pod](s.World, namespace, name); there && p.UID == uid {
		return p
	}
	return nil
}

// Placing is the precision with which the node of a successor can be predicted.
type Placing string

const (
	// Exact is for Berth's scheduler, and for kube-scheduler without sampling. The successor goes
	// to any of the best nodes, ties included.
	Exact Placing = "Exact"
	// Held means that room is reserved for the successor on one of the best nodes, so ties do not
	// matter.
	Held Placing = "Held"
	// Sampled is for kube-scheduler with sampling: it looks only at some of the nodes. The
	// successor may go to any node that passes the filters.
	Sampled Placing = "Sampled"
)

// Options are the inputs of a plan apart from the state and the policy.
type Options struct {
	// Profiles belong to the scheduler that places the successors. They must be configured like the
	// real scheduler: any difference may invalidate a proof.
	Profiles []*plugins.Profile
	Placing  Placing // "" is Exact
	// Resting maps recently moved workloads, as NAMESPACE/Kind/NAME, to the end of their rest.
	Resting map[string]time.Time
	// Arrived holds the successors of moves made for the same policy. They are not moved again.
	Arrived map[types.UID]bool
	// Surge makes pods leave only once one more replica of their workload is ready, where possible.
	Surge bool
	// Scales holds the kinds with a scale subresource.
	Scales map[schema.GroupKind]bool
	// Spent counts the moves of the same run towards the policy's limits. A goal that has moved a
	// pod in the run continues (see runRound).
	Spent Spent
}

// Spent counts the moves of one run, equivalent to one cycle of the descheduler.
//
// A run makes a new plan after every move. Without this count, each of these plans could use the
// policy's limits in full. The zero value has counted no moves; Plus makes the maps.
type Spent struct {
	Total                           int
	PerNode, PerNamespace, PerCause map[string]int
	// ByGoal counts towards the limits of individual goals.
	ByGoal map[FromNode]int
}

// FromNode is a source node of a goal's moves. It is the key for counting the evictionLimits of one
// utilization plugin, regardless of other goals' moves from the node.
type FromNode struct{ Cause, Profile, Node string }

// fromNode returns the key for counting the move towards its goal's limits.
func (m *Move) fromNode() FromNode { return FromNode{m.Cause, m.Profile, m.From} }

// Plus returns the count increased by the moves of a plan. The maps of the receiver are not
// changed; without moves it is a deep copy.
func (s Spent) Plus(moves ...Move) Spent {
	sum := Spent{Total: s.Total + len(moves), PerNode: map[string]int{}, PerNamespace: map[string]int{},
		PerCause: map[string]int{}, ByGoal: map[FromNode]int{}}
	maps.Copy(sum.PerNode, s.PerNode)
	maps.Copy(sum.PerNamespace, s.PerNamespace)
	maps.Copy(sum.PerCause, s.PerCause)
	maps.Copy(sum.ByGoal, s.ByGoal)
	for i := range moves {
		sum.PerNode[moves[i].From]++
		sum.PerNamespace[moves[i].Namespace]++
		sum.PerCause[moves[i].Cause]++
		sum.ByGoal[moves[i].fromNode()]++
	}
	return sum
}
