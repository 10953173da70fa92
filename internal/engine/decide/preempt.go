package decide

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide/effort"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Preemption is what removing pods of lower priority can do for a pod that fits nowhere.
type Preemption struct {
	// Node is the node that the pod can go to once the victims have left; nil if preemption does
	// not help.
	Node *cluster.Node
	// Victims are the pods that have to leave, the most important first.
	Victims []*cluster.Pod
	// Violations counts the victims whose PodDisruptionBudget does not allow their disruption.
	Violations int
	// Message says why preemption does not help. Plugins are those that reject nodes even with the
	// victims gone, sorted.
	Message string
	Plugins []string
	// Err is set if an extender failed or has not been asked yet, or if the effort was used up
	// before a node was found ([ErrTooLong]). Message contains it, too.
	Err error
	// Ineligible: the pod may not preempt now, and no node was looked at.
	Ineligible bool
}

// Text is what the message of a pod that fits nowhere ends with, as upstream says it.
func (p *Preemption) Text() string {
	if p.Node == nil {
		return "preemption: " + p.Message
	}
	return fmt.Sprintf("preemption: found a potential placement for pod on node %s, preempting %d victims", p.Node.Name, len(p.Victims))
}

// Preempt looks at every node that the evaluation rejects for a reason that removing pods could
// change, and picks the one whose victims cost least.
func Preempt(c *cluster.Cluster, profile *plugins.Profile, p *cluster.Pod, e *Evaluation) Preemption {
	return preempt(c, profile, p, e, nil)
}

// preempt is Preempt with bounded effort. Once that is used up, it chooses among the candidates
// found so far.
func preempt(c *cluster.Cluster, profile *plugins.Profile, p *cluster.Pod, e *Evaluation, left *effort.Budget) Preemption {
	var nominated *plugins.Rejection
	if n := c.Node(p.Nominated); n != nil {
		if v := e.Verdict(n); v != nil {
			nominated = v.Rejection
		}
	}

	if message := ineligible(c, p, nominated); message != "" {
		return Preemption{Message: message, Ineligible: true}
	}
	budgets := newBudgets(c, profile, p)
	var places []*candidate
	failed := map[string]int{}
	var names []string
	tried := 0

	for i := range e.Nodes {
		v := &e.Nodes[i]
		if v.Rejection == nil || v.Rejection.Unresolvable {
			continue
		}
		tried++
		if left.IsSpent() {
			break
		}
		found, why := victimsOn(c, profile, p, v.Node, budgets, left)
		if why != nil {
			for _, reason := range why.rejection.Reasons {
				failed[reason]++
			}
			names = why.named(names)
			continue
		}
		places = append(places, found)
	}

	if len(places) > 0 {
		return cheapest(c, profile, p, places)
	}
	if left.IsSpent() {
		return Preemption{Message: ErrTooLong.Error(), Err: ErrTooLong}
	}

	if others := len(e.Nodes) - tried; others > 0 {
		failed["Preemption is not helpful for scheduling"] += others
	}
	return Preemption{Message: noneAvailable(len(e.Nodes), failed), Plugins: names}
}

func noneAvailable(nodes int, reasons map[string]int) string {
	return fmt.Sprintf("0/%d nodes are available:%s", nodes, histogram(reasons))
}

// ineligible says why the pod may not preempt at all: its policy forbids it, or it has preempted
// and its victims are still terminating. nominated is why its nominated node rejects it now.
func ineligible(c *cluster.Cluster, p *cluster.Pod, nominated *plugins.Rejection) string {
	if policy := p.Spec().PreemptionPolicy; policy != nil && *policy == v1.PreemptNever {
		return "not eligible due to preemptionPolicy=Never."
	}
	n := c.Node(p.Nominated)
	if n == nil || nominated != nil && nominated.Unresolvable {
		return ""
	}
	for _, o := range n.Pods {
		if o.Class.Priority < p.Class.Priority && o.Preempted {
			return "not eligible due to a terminating pod on the nominated node."
		}
	}
	return ""
}

// refusal is why a node that preemption could have helped is not a candidate. plugin is set if it
// rejects the node even with the victims gone.
type refusal struct {
	plugin    string
	rejection *plugins.Rejection
}

// named adds the plugin to a sorted list.
func (r *refusal) named(names []string) []string {
	return withName(names, r.plugin)
}

// candidate is a node with the pods that would have to leave it.
type candidate struct {
	node       *cluster.Node
	victims    []*cluster.Pod // most important first
	violations int
}

// victimsOn removes all pods of lower priority from the node and, if p fits then, puts back as many
// as possible: first those whose budget allows no disruption, the most important first. It leaves
// the cluster as it was. A node for which the remaining effort is too little is refused.
func victimsOn(c *cluster.Cluster, profile *plugins.Profile, p *cluster.Pod, n *cluster.Node, b *budgets,
	left *effort.Budget) (*candidate, *refusal) {
	lower := lowerThan(p, n)
	if len(lower) == 0 {
		return nil, &refusal{rejection: noVictims}
	}

	slices.SortStableFunc(lower, byImportance)
	violating, others := b.split(lower)
	found := &candidate{node: n}
	var plugin string
	var rejection *plugins.Rejection

	c.Suppose(func() {
		for _, o := range lower {
			c.RemovePod(o.UID)
		}
		each := effort.CostOfPreparing(c, p)
		left.Spend(each)
		if plugin, rejection = fits(c, profile, p, n); rejection != nil {
			return
		}
		for i, o := range slices.Concat(violating, others) {
			if !left.Spend(each) {
				rejection = unfinished
				return
			}
			c.Place(o, n)
			if _, rejection := fits(c, profile, p, n); rejection == nil {
				continue
			}
			c.RemovePod(o.UID)
			found.victims = append(found.victims, o)
			if i < len(violating) {
				found.violations++
			}
		}
	}, func() {
		for _, o := range lower {
			if o.Node == nil {
				c.Place(o, n)
			}
		}
	})

	if rejection != nil {
		return nil, &refusal{plugin, rejection}
	}
	if len(found.victims) == 0 {
		return nil, &refusal{rejection: needless(n)}
	}
	if b.keep && found.violations > 0 {
		return nil, &refusal{rejection: budgetKept}
	}

	slices.SortStableFunc(found.victims, byImportance)
	return found, nil
}

// lowerThan lists the pods on a node that p may preempt.
func lowerThan(p *cluster.Pod, n *cluster.Node) (lower []*cluster.Pod) {
	for _, o := range n.Pods {
		if o.Class.Priority < p.Class.Priority {
			lower = append(lower, o)
		}
	}
	return lower
}

// needless is the refusal of a node that turns out to be able to take the pod without a victim,
// although it was rejected before.
func needless(n *cluster.Node) *plugins.Rejection {
	return &plugins.Rejection{Reasons: []string{fmt.Sprintf("expected at least one victim pod on node %q", n.Name)}}
}

// budgetKept is the refusal of a node where room could be made only by violating a budget that has
// to be kept.
var budgetKept = &plugins.Rejection{Code: "BudgetKept", Reasons: []string{"preemption would break a PodDisruptionBudget"}}

var noVictims = &plugins.Rejection{Code: "NoVictims", Unresolvable: true, Reasons: []string{"No preemption victims found for incoming pod"}}

// unfinished is the refusal of the node that was being looked at when the effort was used up.
var unfinished = &plugins.Rejection{}

// fits judges one node as it is now, with newly prepared filters. It returns the plugin that
// rejects the node, and the rejection.
func fits(c *cluster.Cluster, profile *plugins.Profile, p *cluster.Pod, n *cluster.Node) (string, *plugins.Rejection) {
	j := prepare(c, profile, p)
	switch {
	case j.err != nil:
		return "", &plugins.Rejection{Err: j.err}
	case j.all != nil:
		return j.rejector, j.all
	}
	return j.nodeWithNominated(n)
}

// byImportance orders pods by priority, highest first, then by start time, earliest first; a pod
// that no kubelet has started counts as started last. UIDs break ties, so that the order is the
// same every time.
func byImportance(a, b *cluster.Pod) int {
	if a.Class.Priority != b.Class.Priority {
		return cmp.Compare(b.Class.Priority, a.Class.Priority)
	}
	return cmp.Or(cmp.Compare(startOf(a), startOf(b)), cmp.Compare(a.UID, b.UID))
}

func startOf(p *cluster.Pod) int64 {
	if p.Started.IsZero() {
		return math.MaxInt64
	}
	return p.Started.UnixNano()
}

// cost sums up the victims: budgets violated, highest priority, sum of priorities, number, and the
// start time of the longest-running of the most important victims, where later is cheaper.
func (a *candidate) cost() cost {
	c := cost{known: true, candidate: true, violations: int32(a.violations), highest: a.victims[0].Class.Priority,
		victims: int32(len(a.victims))}
	earliest := int64(math.MaxInt64)
	for _, v := range a.victims {
		c.sum += int64(v.Class.Priority) + math.MaxInt32 + 1
		if v.Class.Priority == c.highest {
			earliest = min(earliest, startOf(v))
		}
	}
	c.start = startNegated(earliest)
	return c
}

// budgets tells which pods can leave without violating a PodDisruptionBudget.
type budgets struct {
	c       *cluster.Cluster
	allowed map[*cluster.Budget]int32 // reused for every node
	keep    bool                      // none may be violated
}

// newBudgets prepares for a pod that needs room.
func newBudgets(c *cluster.Cluster, profile *plugins.Profile, p *cluster.Pod) *budgets {
	return &budgets{c: c, allowed: map[*cluster.Budget]int32{}, keep: profile.KeepBudgets && p.Class.Priority < rules.SystemCritical}
}

// split divides pods, ordered by importance, into those whose removal violates a budget once all
// before them have been removed, and the others. Those that there are no looks left for count as
// protected.
func (b *budgets) split(pods []*cluster.Pod) (violating, others []*cluster.Pod) {
	clear(b.allowed)
	enough := b.c.Looks + effort.MostBudgetLooks
	for _, p := range pods {
		if b.c.Looks > enough {
			violating = append(violating, p)
			continue
		}
		broken := false
		for _, budget := range b.c.BudgetsOf(p.Class) {
			if _, leaving := budget.Status.DisruptedPods[p.Name]; leaving {
				continue
			}
			left, known := b.allowed[budget]
			if !known {
				left = budget.Status.DisruptionsAllowed
			}
			if b.allowed[budget] = left - 1; left <= 0 {
				broken = true
				break // as upstream: the budgets after the first one that is violated keep what they allow
			}
		}
		if broken {
			violating = append(violating, p)
		} else {
			others = append(others, p)
		}
	}
	return violating, others
}
