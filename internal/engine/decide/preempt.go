// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide/effort"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// Preemption is the result of looking for lower-priority victims for a pod that fits nowhere.
type Preemption struct {
	// Node is the node available to the pod after the victims have left; nil if preemption does not
	// help.
	Node *cluster.Node
	// Victims are the pods to evict, the most important first.
	Victims []*cluster.Pod
	// Violations counts the victims in excess of their PodDisruptionBudgets.
	Violations int
	// Message explains why preemption does not help. Plugins lists, sorted, the plugins that reject
	// nodes even without the victims.
	Message string
	Plugins []string
	// Err is set if an extender failed or has not responded yet, or if the effort was exhausted
	// before a node was found ([ErrTooLong]). Message includes its text.
	Err error
	// Ineligible is set if the pod may not preempt now; the nodes examined before are not reported
	// in that case.
	Ineligible bool

	// rivals are the other nodes that the look-ahead may choose, the cheapest first.
	rivals []Preemption
}

// preemption returns the candidate as a result.
func (a *candidate) preemption() Preemption {
	return Preemption{Node: a.node, Victims: a.victims, Violations: a.violations}
}

// Text returns upstream's wording of the outcome, which is appended to the message of a pod that
// fits nowhere.
func (p *Preemption) Text() string {
	if p.Node == nil {
		return "preemption: " + p.Message
	}
	return fmt.Sprintf("preemption: found a potential placement for pod on node %s, preempting %d victims", p.Node.Name, len(p.Victims))
}

// Preempt examines every node with a rejection that removing pods could resolve, and picks the node
// with the cheapest victims.
func (pl *Plain) Preempt(p *cluster.Pod, e *Evaluation) Preemption { return pl.preempt(p, e, nil) }

// preempt is the variant of Preempt with bounded effort. When the effort is exhausted, it chooses
// among the candidates found so far.
func (pl *Plain) preempt(p *cluster.Pod, e *Evaluation, left *effort.Budget) Preemption {
	c, profile := pl.c, pl.profile
	var nominated *plugins.Rejection
	if n := c.Node(p.Nominated); n != nil {
		if v := e.Verdict(n); v != nil {
			nominated = v.Rejection
		}
	}

	if message := whyIneligible(c, p, nominated); message != "" {
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
		found, why := victimsPlainly(c, profile, p, v.Node, budgets, left)
		if why != nil && v.Rejection.Held && fitsReleased(c, profile, p, v.Node) {
			return awaitDevices(v.Node)
		}
		if why != nil {
			for _, reason := range why.rejection.Reasons {
				failed[reason]++
			}
			names = why.addName(names)
			continue
		}
		places = append(places, found)
	}

	if len(places) > 0 {
		return cheapestOf(c, profile, p, places)
	}
	if left.IsSpent() {
		return Preemption{Message: ErrTooLong.Error(), Err: ErrTooLong}
	}

	if others := len(e.Nodes) - tried; others > 0 {
		failed[notHelpful] += others
	}
	return Preemption{Message: noneAvailable(len(e.Nodes), failed), Plugins: names}
}

// NameDevice adds to the message of a failed preemption for a pod a device that the pod needs, and
// the reason why the device stays.
func (p *Preemption) NameDevice(c *cluster.Cluster, profile *plugins.Profile, pod *cluster.Pod) {
	d := profile.PreemptedDevices(c, pod)
	// A pod that waits for victims or devices lacks no reason.
	waits := p.Ineligible && !pod.Spec().NeverPreempts()
	if d == nil || p.Node != nil || p.Err != nil || waits {
		return
	}
	judges := prepareFilters(c, profile, pod)
	p.Message = strings.TrimSpace(p.Message + " " + d.KeptDevice(c, pod, func(n *cluster.Node) bool {
		_, rejection := judges.judgeWithNominated(n)
		return rejection != nil && rejection.Held
	}))
}

// awaitDevices is the result for a pod that needs no victims, because pods have left a node and
// their claims are about to be released.
func awaitDevices(n *cluster.Node) Preemption {
	return Preemption{Message: fmt.Sprintf("not eligible due to devices being released on node %s.", n.Name), Ineligible: true}
}

func noneAvailable(nodes int, reasons map[string]int) string {
	return fmt.Sprintf("0/%d nodes are available:%s", nodes, histogram(reasons))
}

// whyIneligible explains why the pod may not preempt at all: its policy forbids it, or it has
// preempted and its victims are still terminating. nominated is the current rejection of the pod on
// its nominated node, if any.
func whyIneligible(c *cluster.Cluster, p *cluster.Pod, nominated *plugins.Rejection) string {
	if p.Spec().NeverPreempts() {
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

// cheapestOf picks the cheapest of the candidates that the extenders accept.
func cheapestOf(c *cluster.Cluster, profile *plugins.Profile, p *cluster.Pod, found []*candidate) Preemption {
	found, err := askExtendersToSpare(c, profile, p, found)
	switch {
	case err != nil:
		return Preemption{Message: err.Error(), Err: err}
	case len(found) == 0:
		return Preemption{Message: "no candidate node for preemption"}
	}
	costs, best := make([]cost, len(found)), int32(0)
	for i := range found {
		if costs[i] = found[i].cost(); costs[i].compare(&costs[best]) < 0 {
			best = int32(i)
		}
	}
	chosen := found[best].preemption()
	for _, rival := range rivalsOf(profile.LookAhead, best, len(found), func(i int32) *cost { return &costs[i] }, nil) {
		chosen.rivals = append(chosen.rivals, found[rival].preemption())
	}
	return chosen
}

// askExtendersToSpare lets the extenders remove candidates and replace victims.
func askExtendersToSpare(c *cluster.Cluster, profile *plugins.Profile, p *cluster.Pod, found []*candidate) ([]*candidate, error) {
	for _, x := range profile.Extenders {
		if len(found) == 0 || !x.Interested(p) {
			continue
		}
		places := make([]plugins.Place, 0, len(found))
		for _, f := range found {
			places = append(places, plugins.Place{Node: f.node, Victims: f.victims, Violations: f.violations})
		}
		left, err := x.Spare(c, p, places)
		if err != nil {
			return nil, err
		}
		found = found[:0:0]
		for _, place := range left {
			slices.SortStableFunc(place.Victims, byImportance)
			found = append(found, &candidate{node: place.Node, victims: place.Victims, violations: place.Violations})
		}
	}

	return found, nil
}
