// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide/effort"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// candidate is a node with the pods to evict from it.
type candidate struct {
	node       *cluster.Node
	victims    []*cluster.Pod // most important first
	violations int
}

// victimsPlainly finds the pods to evict from a node for p. It removes all pods of lower priority
// and, if p then fits, puts back as many of them as possible: first the pods that violate a budget
// if evicted, then the other pods, each in order of importance. Afterwards it restores the cluster.
// It refuses a node if the examination exceeds the remaining effort.
func victimsPlainly(c *cluster.Cluster, profile *plugins.Profile, p *cluster.Pod, n *cluster.Node, b *budgets,
	left *effort.Budget) (*candidate, *refusal) {
	lower := lowerThan(p, n)
	if len(lower) == 0 {
		return nil, &refusal{rejection: noVictims}
	}

	slices.SortStableFunc(lower, byImportance)
	violating, others := b.splitByBudget(lower)
	found := &candidate{node: n}
	var plugin string
	var rejection *plugins.Rejection

	defer c.ReleaseClaims()()
	c.Suppose(func() {
		for _, o := range lower {
			c.RemovePod(o.UID())
		}
		each := effort.CostOfPreparing(c, p)
		left.Spend(each)
		if plugin, rejection = fitsNow(c, profile, p, n); rejection != nil {
			return
		}
		for i, o := range slices.Concat(violating, others) {
			if !left.Spend(each) {
				rejection = unfinished
				return
			}
			c.Place(o, n)
			if _, rejection := fitsNow(c, profile, p, n); rejection == nil {
				continue
			}
			c.RemovePod(o.UID())
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
		return nil, &refusal{plugin: plugin, rejection: rejection}
	}
	return b.accept(found)
}

// accept sorts the victims of a candidate. It refuses a candidate without victims, and a violation
// of a budget to be kept.
func (b *budgets) accept(found *candidate) (*candidate, *refusal) {
	if len(found.victims) == 0 {
		why := fmt.Sprintf("expected at least one victim pod on node %q", found.node.Name) // it has room after all
		return nil, &refusal{rejection: &plugins.Rejection{Reasons: []string{why}}}
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

// budgetKept is the refusal of a node where making room would violate a mandatory budget.
var budgetKept = &plugins.Rejection{Code: "BudgetKept", Reasons: []string{"preemption would break a PodDisruptionBudget"}}

var noVictims = &plugins.Rejection{Code: "NoVictims", Unresolvable: true, Reasons: []string{"No preemption victims found for incoming pod"}}

// notHelpful is upstream's reason for the nodes where removing pods cannot help.
const notHelpful = "Preemption is not helpful for scheduling"

// unfinished is the refusal of a node whose examination exhausted the effort.
var unfinished = &plugins.Rejection{}

// byImportance orders pods by priority, highest first, then by start time, earliest first; a pod
// not yet started by a kubelet sorts last. UIDs break ties to make the order deterministic.
func byImportance(a, b *cluster.Pod) int {
	if a.Class.Priority != b.Class.Priority {
		return cmp.Compare(b.Class.Priority, a.Class.Priority)
	}
	return cmp.Or(cmp.Compare(startOf(a), startOf(b)), cmp.Compare(a.UID(), b.UID()))
}

func startOf(p *cluster.Pod) int64 {
	if p.Started.IsZero() {
		return math.MaxInt64
	}
	return p.Started.UnixNano()
}

// cost summarizes the victims: violated budgets, highest priority, sum of priorities, number, and
// the earliest start time of the highest-priority victims. A later start costs less.
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

// budgets determines which pods can be evicted without violating a PodDisruptionBudget.
//
// Each pending pod needs a new budgets. The counts of allowed disruptions restart for every node.
type budgets struct {
	c       *cluster.Cluster
	allowed map[*cluster.Budget]int32 // reused for every node
	keep    bool                      // no budget may be violated
}

// newBudgets returns the budgets for a preemption by p.
func newBudgets(c *cluster.Cluster, profile *plugins.Profile, p *cluster.Pod) *budgets {
	return &budgets{c: c, allowed: map[*cluster.Budget]int32{}, keep: profile.KeepBudgets && p.Class.Priority < rules.SystemCritical}
}

// splitByBudget divides pods, ordered by importance, into pods that violate a budget if evicted
// after all more important pods, and the rest. Pods beyond the limit of budget checks count as
// violating.
func (b *budgets) splitByBudget(pods []*cluster.Pod) (violating, others []*cluster.Pod) {
	clear(b.allowed)
	enough := b.c.Looks + effort.MostBudgetLooks
	for _, p := range pods {
		if b.c.Looks > enough {
			violating = append(violating, p)
			continue
		}

		broken := false
		for _, budget := range b.c.BudgetsOf(p.Class) {
			if _, leaving := budget.Status.DisruptedPods[p.Name()]; leaving {
				continue
			}
			left, known := b.allowed[budget]
			if !known {
				left = budget.Status.DisruptionsAllowed
			}
			if b.allowed[budget] = left - 1; left <= 0 {
				broken = true
				break // like upstream, the budgets after the first violated budget are not decremented
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

// judgeAsIs judges a node with all its pods.
func (t *hypothesis) judgeAsIs(n *cluster.Node) *plugins.Rejection {
	r := t.r
	if t.questions.judges != nil {
		if t.plain == nil {
			t.plain = prepareFilters(r.ix.c, t.profile, t.p)
		}
		_, rejection := t.plain.judgeWithNominated(n)
		return rejection
	}

	if len(n.Nominated) > 0 { // the bucket accounts for all nominated pods, including the pending pod
		t.beginNode(n)
		_, rejection := t.findRejection()
		return rejection
	}
	plugin, rejection := r.judgeGroup(r.groups[r.groupAt(n.Index)])
	if bucket := r.bucket[n.Index]; bucket < 0 {
		if own := &r.reasons.list[reasonIn(bucket)]; !r.plan.precedes(plugin, own) {
			return own.rejection
		}
	}
	return rejection
}

// victimsOn finds the fewest and least important pods to evict from a node for the pending pod.
func (t *hypothesis) victimsOn(n *cluster.Node, b *budgets) (*candidate, *refusal) {
	lower := lowerThan(t.p, n)
	if len(lower) == 0 {
		return nil, &refusal{rejection: noVictims}
	}

	t.judged = len(lower)
	defer t.r.ix.c.ReleaseClaims()()
	t.beginNode(n)
	slices.SortStableFunc(lower, byImportance)
	violating, others := b.splitByBudget(lower)
	for _, o := range lower {
		t.removePod(o)
	}

	if plugin, rejection := t.findRejection(); rejection != nil {
		return nil, &refusal{plugin: plugin, rejection: rejection}
	}
	found := &candidate{node: n}
	for i, o := range slices.Concat(violating, others) {
		t.addPod(o)
		if _, rejection := t.findRejection(); rejection == nil {
			continue
		}
		t.removePod(o)
		found.victims = append(found.victims, o)
		if i < len(violating) {
			found.violations++
		}
	}

	return b.accept(found)
}

// startNegated negates a start time, so that later starts cost less.
func startNegated(start int64) int64 {
	if start == math.MaxInt64 {
		return math.MinInt64
	}
	return -start
}

// cost is the cost of the victims on a node. See compare for the order of its fields; lower is
// better.
type cost struct {
	known      bool
	candidate  bool
	fits       bool // without evictions, the node passes all filters except asked filters, which were not run
	why        *refusal
	violations int32
	highest    int32
	victims    int32
	sum        int64
	start      int64 // negated earliest start of the highest-priority victims

	tallied *plugins.Rejection // the tallies' result for the node
	tied    bool               // tallied may change if pods are removed from the node
}

// compare orders costs in upstream's order of preemption candidates: fewest violated budgets,
// lowest highest priority, lowest sum of priorities, fewest victims, and the latest start of the
// most important victim.
func (a *cost) compare(b *cost) int {
	for _, pair := range [...][2]int64{
		{int64(a.violations), int64(b.violations)}, {int64(a.highest), int64(b.highest)}, {a.sum, b.sum},
		{int64(a.victims), int64(b.victims)}, {a.start, b.start},
	} {
		if pair[0] != pair[1] {
			if pair[0] < pair[1] {
				return -1
			}
			return 1
		}
	}
	return 0
}

// refusal is the reason why a node is not a candidate, although its rejection could be resolved by
// removing pods. plugin is set if that plugin rejects the node even without the victims.
type refusal struct {
	plugin    string
	rejection *plugins.Rejection
	awaits    bool // the pod needs no victim once the claims of pods that have left are released
}

// fitsReleased reports whether a pod fits on a node without victims once the claims of pods that
// have left are released.
func fitsReleased(c *cluster.Cluster, profile *plugins.Profile, p *cluster.Pod, n *cluster.Node) bool {
	defer c.ReleaseClaims()()
	_, rejection := fitsNow(c, profile, p, n)
	return rejection == nil
}

// fitsReleased is the counterpart of the function fitsReleased.
func (t *hypothesis) fitsReleased(n *cluster.Node) bool {
	defer t.r.ix.c.ReleaseClaims()()
	t.beginNode(n)
	_, rejection := t.findRejection()
	return rejection == nil
}

// addName adds the plugin to a sorted list.
func (r *refusal) addName(names []string) []string {
	return withName(names, r.plugin)
}
