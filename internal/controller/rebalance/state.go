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

// State is a cluster at one time, as the API has it. It is what a plan is made from; see [Make] and
// [PlanDrain]. Objects come from an API server, from a file, or from a plan ([Plan.After]).
type State struct {
	// AsOf is the clock of the plan: ages and rests are measured against it.
	AsOf time.Time
	// World has all objects that decisions depend on. Plans are made in forks of it, and do not
	// change it.
	World *objects.World
}

// fork returns the same state, to be changed.
func (s *State) fork() *State { return &State{s.AsOf, s.World.Fork()} }

// node returns the node of that name, or nil.
func (s *State) node(name string) *v1.Node {
	n, _ := objects.Get[*v1.Node](s.World, "", name)
	return n
}

// pod returns the pod of that name if it is still the same one, or nil.
func (s *State) pod(namespace, name string, uid types.UID) *v1.Pod {
	if p, there := objects.Get[*v1.Pod](s.World, namespace, name); there && p.UID == uid {
		return p
	}
	return nil
}

// Placing is how well the node of a successor can be predicted.
type Placing string

const (
	// Exact: Berth schedules, or kube-scheduler without sampling. The successor goes to one of the
	// best nodes, any of those that tie.
	Exact Placing = "Exact"
	// Held: room is reserved for the successor on one of the best nodes, so ties do not matter.
	Held Placing = "Held"
	// Sampled: kube-scheduler looks at a sample of the nodes. The successor may go to any node that
	// passes the filters.
	Sampled Placing = "Sampled"
)

// Options are what a plan depends on apart from the state and the policy.
type Options struct {
	// Profiles are those of the scheduler that places the successors. They must be configured as
	// the real scheduler is: each difference is a proof that may not hold.
	Profiles []*plugins.Profile
	Placing  Placing // "" is Exact
	// Resting are the workloads that were moved recently, as NAMESPACE/Kind/NAME, and until when
	// they are left alone.
	Resting map[string]time.Time
	// Arrived are the successors of moves made for the same policy. They are not moved again.
	Arrived map[types.UID]bool
	// Surge has pods leave once one more replica of their workload is ready, where that can be.
	Surge bool
	// Scales are the kinds with a scale subresource.
	Scales map[schema.GroupKind]bool
	// Spent are the moves of the same run: they count towards the policy's limits, and a goal that
	// has begun goes on.
	Spent Spent
}

// Spent counts moves: those of a run are one cycle of the descheduler.
//
// A run makes a new plan after every move. Without this count, each of these plans could use the
// whole of the policy's limits. The zero value has counted nothing; With makes the maps.
type Spent struct {
	Total                           int
	PerNode, PerNamespace, PerCause map[string]int
	// ByGoal counts towards the limits that goals have themselves.
	ByGoal map[FromNode]int
}

// FromNode is a node that a goal moves pods from. It is the key by which the evictionLimits of one
// utilization plugin are counted, whatever other goals do on the node.
type FromNode struct{ Cause, Profile, Node string }

// fromNode is the key under which the move counts towards its goal's limits.
func (m *Move) fromNode() FromNode { return FromNode{m.Cause, m.Profile, m.From} }

// With returns the count with the moves of a plan added. The maps of the receiver are not changed;
// without moves it is a deep copy.
func (s Spent) With(moves ...Move) Spent {
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
