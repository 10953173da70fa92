package gang

import (
	"errors"
	"math/rand/v2"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Request is what is asked about a group. No layer changes it.
type Request struct {
	Cluster *cluster.Cluster
	Units   Units
	Profile *plugins.Profile
	Decider *decide.Decider // of the profile
	Host    Host
	Rand    *rand.Rand // the cycle's: every draw is output
	Limits  Limits

	Group *groups.Group
	// TopologyKey is the label whose value all members' nodes must share; "" if there is none.
	TopologyKey string
	// Eligible, if set, tells which nodes there are for the group: those of the domain that a group
	// above it is confined to. Members select them, too.
	Eligible func(*cluster.Node) bool
	// PlacedBefore is how many members count on nodes already.
	PlacedBefore int
	// Members are to be placed: by priority, then age, as upstream. There is at least one.
	Members []*Member
	// Need is how many of them must be placed, or none is.
	Need int
	// Earlier is what earlier attempts for the group have left.
	Earlier Memory
}

// Host is what an attempt needs of the scheduling cycle.
type Host interface {
	// Reserve reserves what a member needs on a node beyond room. If the error is a [Refusal], a
	// plugin has turned the node down.
	Reserve(m *Member, n *cluster.Node) error
	// Release gives back all that was reserved for a member, also by a Reserve that failed.
	Release(m *Member)
	// Contender returns the pod as it competes with others for room: with the priority of its
	// group, where groups have one.
	Contender(p *cluster.Pod, pod *v1.Pod) *cluster.Pod
	// BeginPlacement says that members are decided anew, in one domain of the topology key ("": the
	// group has none).
	BeginPlacement(domain string)
	// GeneratedPlacements says in how many ways the members may be placed: in so many domains, or
	// in one way. EvaluatedPlacements says that so many of these were judged since the call before,
	// and whether enough members fit there.
	GeneratedPlacements(count int)
	EvaluatedPlacements(count int, feasible bool)
	// ScorePlacements scores placements beyond how full they make their domain, out of 100 for each
	// plugin of weight 1. ScoresPlacements tells whether it does.
	ScorePlacements(placements []Placement) ([]float64, error)
	ScoresPlacements() bool
	// Leaving lists the pods that were preempted and are leaving their nodes, sorted.
	Leaving() []*cluster.Pod
}

// Refusal is an error that is a plugin's verdict on a node. Another node may do.
type Refusal interface {
	error
	RefusedBy() (plugin string)
}

// Member is a pod of a group that is being decided.
type Member struct {
	Pod     *v1.Pod      // as the API last showed it
	Waiting *cluster.Pod // the same pod in the cluster model; it counts on a node while Node is set
	// Asked is the pod that is decided: Waiting with the priority of its group, perhaps confined to
	// a domain.
	Asked *cluster.Pod
	// Delayed: the pod may not preempt yet.
	Delayed bool

	Node    *cluster.Node   // where it counts now; nil if nowhere
	Found   decide.Decision // the last decision by which it was counted
	Nominee *cluster.Pod    // its nomination, while it counts on a node

	// Failure is why the first pass found no node for it; nil if it found one. It is [NotReached]
	// if the pass ended before.
	Failure *decide.Failure
	// Err ended the attempt: of the member's decision, or of a plugin at Reserve.
	Err error
	// Rejectors are the plugins that reject it even with victims gone, or as others ask for it.
	Rejectors []string
}

// NotReached is the failure of members that were not looked at before the bound was reached.
var NotReached = &decide.Failure{}

// Reached tells whether the first pass came to the member before it ended at the bound.
func (m *Member) Reached() bool { return m.Failure != NotReached }

// RejectedBy lists the plugins that rejected the member, also with its victims gone.
func (m *Member) RejectedBy() (names []string) {
	if m.Failure != nil {
		names = slices.Clone(m.Failure.Plugins)
		if m.Failure.Rejector != "" {
			names = append(names, m.Failure.Rejector)
		}
	}
	return WithNames(names, m.Rejectors)
}

// WithNames adds the names that are not in the list yet.
func WithNames(list, more []string) []string {
	for _, name := range more {
		if !slices.Contains(list, name) {
			list = append(list, name)
		}
	}
	return list
}

// Place is a member and the decision where it goes.
type Place struct {
	*Member
	Decision decide.Decision
}

// Placement is where members count, or would count, in one domain.
type Placement struct {
	Domain string
	Nodes  []*cluster.Node // of the domain; nil without a topology key
	Places []Place
}

// eachNode yields the nodes of the cluster.
func (r *Request) eachNode(yield func(*cluster.Node) bool) {
	for _, n := range r.Cluster.Nodes {
		if n != nil && (r.Eligible == nil || r.Eligible(n)) && !yield(n) {
			return
		}
	}
}

// decidedAlike tells whether two members are decided as pods of the same class.
func decidedAlike(a, b *Member) bool { return a.Asked.Class == b.Asked.Class }

// dependsOnOthers tells whether it matters to a member which pods are placed before it.
func dependsOnOthers(m *Member) bool {
	class := m.Waiting.Class
	return len(class.RequiredAffinity)+len(class.Spec.TopologySpreadConstraints) > 0
}

// orderMatters tells whether the order in which members are placed, or the node of the first one,
// can matter to the others: they are not all alike, or depend on other pods, on device claims or on
// volumes that are yet to be found for all of them.
func (r *Request) orderMatters() bool {
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

// LowestPriority is that of the members: victims must be below all of them.
func (r *Request) LowestPriority() int32 {
	lowest := r.Members[0].Asked.Class.Priority
	for _, m := range r.Members {
		lowest = min(lowest, m.Asked.Class.Priority)
	}
	return lowest
}

func (r *Request) highestPriority() int32 {
	highest := r.Members[0].Asked.Class.Priority
	for _, m := range r.Members {
		highest = max(highest, m.Asked.Class.Priority)
	}
	return highest
}

// keepsBudgets tells whether the profile promises that no budget is broken for the group.
func (r *Request) keepsBudgets() bool {
	return r.Profile.KeepBudgets && r.LowestPriority() < rules.SystemCritical
}

// isDelayed tells whether the group chooses no victims yet. Its delay is over with that of the
// first member that was found unschedulable.
func (r *Request) isDelayed() bool {
	return !slices.ContainsFunc(r.Members, func(m *Member) bool { return !m.Delayed })
}

// Failures returns why members found no node, in their order; SetFailures restores that.
func (r *Request) Failures() []*decide.Failure { return r.listFailures() }

// SetFailures notes why members found no node.
func (r *Request) SetFailures(failures []*decide.Failure) { r.setFailures(failures) }

// listFailures returns why members found no node, in their order; setFailures restores that.
func (r *Request) listFailures() (failures []*decide.Failure) {
	for _, m := range r.Members {
		failures = append(failures, m.Failure)
	}
	return failures
}

func (r *Request) setFailures(failures []*decide.Failure) {
	for i, m := range r.Members {
		m.Failure = failures[i]
	}
}

// mapNodes returns the nodes on which members are placed, by pod.
func mapNodes(placed []*Member) map[types.UID]string {
	nodes := map[types.UID]string{}
	for _, m := range placed {
		nodes[m.Pod.UID] = m.Node.Name
	}
	return nodes
}

// isRefusal tells whether an error of Reserve is a plugin's verdict.
func isRefusal(err error) bool {
	refusal := Refusal(nil)
	return errors.As(err, &refusal)
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
