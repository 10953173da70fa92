// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance

import (
	"cmp"
	"slices"
	"sort"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/rules"
	objects "github.com/berth-k8s/berth/internal/world"
	"github.com/berth-k8s/berth/internal/world/disruption"
	"github.com/berth-k8s/berth/internal/world/workload"
)

// Rolling selects the nodes to roll: in turn each node is emptied, restarted or replaced, and
// uncordoned again. Package execute plans the whole roll once, for display, and plans each turn
// again when it is due.
type Rolling struct {
	// Leaving holds the rules by which pods leave. Its Nodes are the nodes still to be rolled.
	Leaving
	// AtOnce is the number of nodes per zone rolled together; 0 means one.
	AtOnce int
	// Begun holds the nodes in an unfinished turn. They are first, because after a restart of Berth
	// a half-empty node should not wait for a later turn. Done holds the rolled nodes.
	Begun, Done []string
	// Closed holds the nodes that were cordoned before the roll began. They stay cordoned after it.
	Closed map[string]bool
	// Removes means that the nodes are removed after their turns, so no pod may land on any of
	// them.
	Removes bool
	// Pools are NodePools with disruption budgets, which limit the nodes of the next turn.
	Pools []disruption.NodePool
}

// Roll is the plan of a roll. It is a prediction: each turn is planned again before it is carried
// out.
type Roll struct {
	Turns []Turn
	// Pods counts the departing pods, Moves their departures, and Again lists the pods that leave
	// more than once.
	//
	//	a pod leaves node-1 for node-2 and later node-2 for node-1: Pods 1, Moves 2
	Pods, Moves int
	Again       []Moved
}

// Turn plans the nodes rolled together. All nodes of a turn are in one zone, so that a zone-spread
// workload loses pods in one zone at a time.
type Turn struct {
	// Zone is "" if the nodes lack the label topology.kubernetes.io/zone.
	Zone  string
	Nodes []string
	// Closes lists the nodes with a later turn: they take no pods in this turn, because these pods
	// would move again. Opens lists the exceptions: nodes opened after the other
	// departures, for pods without room elsewhere.
	Closes, Opens []string
	// Next is the first node with a later turn, or "".
	Next string
	// Held is set, and everything else is empty, if no turn can begin now.
	Held string
	Draining
}

// Moved is a pod leaving several nodes.
type Moved struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Times     int    `json:"times"`
}

// Stranded counts the pods without another node for their successors.
func (r *Roll) Stranded() (count int) {
	for i := range r.Turns {
		count += r.Turns[i].Draining.Stranded()
	}
	return count
}

// Refused returns the pods that prevent the roll: the turns of their nodes could not be completed,
// so the roll does not begin at all.
func (r *Roll) Refused() (list []Kept) {
	for i := range r.Turns {
		list = append(list, r.Turns[i].Refused...)
	}
	return list
}

// PlanRoll decides the turns of the nodes, and the nodes of their pods' successors, turn by turn,
// on the cluster left by the preceding turns.
//
// Successors land on rolled nodes, or on nodes outside the roll, as long as there is room: nodes
// with a later turn are closed, because a pod landing there leaves again. Pods that would find no
// other node, or could not have a surge, leave last, and as few closed nodes as possible are opened
// for them, starting with the last turns. In a cluster without spare nodes these are the pods of
// the first turn. Therefore the nodes with the fewest pods are rolled first, zone by zone.
//
// The state is not changed. Planning a turn costs as much as planning a drain, and more if nodes
// must be opened.
func PlanRoll(state *State, rolling *Rolling, options Options) *Roll {
	r := &roll{Rolling: *rolling, options: options, now: state}
	// Nodes with a later turn may still be cordoned by an interrupted roll. They are planned as
	// open, and each turn closes the nodes it needs.
	r.now = uncordonNodes(state, r.notCordoned(r.Nodes))
	r.zone = r.zoneOf(append(slices.Clone(rolling.Begun), rolling.Done...))
	for p := range objects.All[*v1.Pod](state.World) {
		if rolling.Removes && p.DeletionTimestamp != nil { // an exchange counts on the room of terminating pods
			r.now.World.Delete(p)
		}
	}
	plan, times := &Roll{}, map[types.NamespacedName]int{}
	for len(r.Nodes) > 0 {
		turn := r.planTurn()
		plan.Turns = append(plan.Turns, *turn)
		for i := range turn.Pods {
			times[types.NamespacedName{Namespace: turn.Pods[i].Namespace, Name: turn.Pods[i].Name}]++
		}
		r.applyTurn(turn)
	}

	plan.Pods = len(times)
	for pod, n := range times {
		if plan.Moves += n; n > 1 {
			plan.Again = append(plan.Again, Moved{pod.Namespace, pod.Name, n})
		}
	}
	slices.SortFunc(plan.Again, func(a, b Moved) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return plan
}

// PlanTurn decides only the next turn: the first turn of PlanRoll, for a state with the preceding
// turns completed. It returns nil if none of the nodes exists any longer.
func PlanTurn(state *State, rolling *Rolling, options Options) *Turn {
	r := &roll{Rolling: *rolling, options: options}
	r.now = uncordonNodes(state, r.notCordoned(r.Nodes))
	r.Nodes = slices.DeleteFunc(slices.Clone(r.Nodes), func(name string) bool { return r.now.node(name) == nil })
	if len(r.Nodes) == 0 {
		return nil
	}
	// A roll continues in the zone of the preceding turn: the zone of begun nodes, or of done nodes
	// in an unfinished zone.
	remaining := map[string]bool{}
	for _, name := range r.Nodes {
		remaining[r.zoneOf([]string{name})] = true
	}
	for _, name := range append(slices.Clone(rolling.Begun), rolling.Done...) {
		if zone := r.zoneOf([]string{name}); r.now.node(name) != nil && remaining[zone] {
			r.zone = zone
			break
		}
	}
	return r.planTurn()
}

// roll is a roll during planning. now is the cluster after the turns so far.
type roll struct {
	Rolling // Nodes are the remaining nodes
	options Options
	now     *State
	zone    string // zone of the last turn
}

// notCordoned returns the nodes that were not cordoned before the roll. Only these are ever opened.
func (r *roll) notCordoned(nodes []string) []string {
	return slices.DeleteFunc(slices.Clone(nodes), func(name string) bool { return r.Closed[name] })
}

// zoneOf returns the zone of the first existing node of the list.
func (r *roll) zoneOf(nodes []string) string {
	for _, name := range nodes {
		if n := r.now.node(name); n != nil {
			return n.Labels[v1.LabelTopologyZone]
		}
	}
	return ""
}

// planTurn plans the next turn.
func (r *roll) planTurn() *Turn {
	order := r.orderNodes()
	nodes := r.firstNodes(order)
	if len(nodes) == 0 {
		return &Turn{Held: "the disruption budgets of NodePools allow no removal now"}
	}
	turn := &Turn{Zone: r.zoneOf(nodes), Nodes: nodes}
	later := slices.DeleteFunc(order, func(name string) bool { return slices.Contains(nodes, name) })
	turn.Closes, turn.Next = r.notCordoned(later), strings.Join(later[:min(1, len(later))], "")

	// At first no node is opened, and pods without room stay. Their number then determines the
	// nodes to open.
	plan := r.planDrain(turn, nil, true)
	if len(plan.Later) > 0 {
		if !r.Removes {
			turn.Opens = r.nodesToOpen(turn, len(plan.Later))
		}
		plan = r.planRest(turn, plan)
	}
	turn.Draining = *plan
	return turn
}

// orderNodes returns the remaining nodes in the order of their turns: begun nodes, the rest of the
// same zone, then zone by zone; within each by ascending number of departing pods.
//
//	zone a: nodes with 9 and 3 pods; zone b: nodes with 5 and 4
//	order: a with 3, a with 9, b with 4, b with 5
//
// A zone is finished before the next one begins, so that at any time only one zone lacks nodes.
// Nodes with few pods are first because, without spare nodes, the pods of the first turn must leave
// twice.
func (r *roll) orderNodes() []string {
	leave, zone, first := map[string]int{}, map[string]string{}, map[string]int{}
	daemonSet := daemonSetsOf(r.now.World)
	for p := range objects.All[*v1.Pod](r.now.World) {
		if r.Judge(p, r.now.AsOf, daemonSet).Leaves {
			leave[p.Spec.NodeName]++
		}
	}
	for n := range objects.All[*v1.Node](r.now.World) {
		zone[n.Name] = n.Labels[v1.LabelTopologyZone]
	}

	for _, name := range r.Nodes {
		if least, ok := first[zone[name]]; !ok || leave[name] < least {
			first[zone[name]] = leave[name]
		}
	}

	list := slices.Clone(r.Nodes)
	slices.SortFunc(list, func(a, b string) int {
		return cmp.Or(
			-cmp.Compare(boolToInt(slices.Contains(r.Begun, a)), boolToInt(slices.Contains(r.Begun, b))),
			-cmp.Compare(boolToInt(zone[a] == r.zone), boolToInt(zone[b] == r.zone)),
			cmp.Compare(first[zone[a]], first[zone[b]]), cmp.Compare(zone[a], zone[b]), cmp.Compare(leave[a], leave[b]), cmp.Compare(a, b),
		)
	})

	return list
}

// firstNodes returns the nodes of the next turn: all begun nodes, or up to AtOnce nodes of one
// zone, as far as the budgets of NodePools allow. order must not be empty.
func (r *roll) firstNodes(order []string) []string {
	begun := slices.DeleteFunc(slices.Clone(order), func(name string) bool { return !slices.Contains(r.Begun, name) })
	if len(begun) > 0 {
		return begun
	}
	order = r.allowedNow(order)
	zone := r.zoneOf(order[:min(1, len(order))])
	first := slices.Clone(order[:min(max(r.AtOnce, 1), len(order))])
	return slices.DeleteFunc(first, func(name string) bool { return r.zoneOf([]string{name}) != zone })
}

// allowedNow returns the nodes that may be removed now by the budgets of their NodePools.
func (r *roll) allowedNow(order []string) (list []string) {
	if len(r.Pools) == 0 {
		return order
	}
	nodes, holding := slices.Collect(objects.All[*v1.Node](r.now.World)), map[string]bool{}
	for p := range objects.All[*v1.Pod](r.now.World) {
		holding[p.Spec.NodeName] = holding[p.Spec.NodeName] || rules.ControllerKind(p) != rules.DaemonSet
	}

	taken := map[string]int{}
	for _, name := range order {
		of := r.now.node(name).Labels[disruption.NodePoolLabel]
		reason := disruption.Empty
		if holding[name] {
			reason = disruption.Underutilized
		}
		if !slices.ContainsFunc(r.Pools, func(p disruption.NodePool) bool {
			return p.Name == of && p.Allowed(nodes, reason, r.now.AsOf) <= taken[of]
		}) {
			list = append(list, name)
			taken[of]++
		}
	}
	return list
}

// planDrain plans the departures of a turn while all nodes with a later turn are closed, except
// those in open. fitting is [Leaving.Fitting].
func (r *roll) planDrain(turn *Turn, open []string, fitting bool) *Draining {
	closes := slices.DeleteFunc(slices.Clone(turn.Closes), func(name string) bool { return slices.Contains(open, name) })
	leaving := r.Leaving
	leaving.Nodes, leaving.Fitting = turn.Nodes, fitting
	return PlanDrain(cordonNodes(r.now, closes), &leaving, r.options)
}

// nodesToOpen returns the closed nodes to open, beginning with the last turns, so that as many pods
// have room as with all closed nodes open. It returns nil if opening does not help. later is the
// number of pods without room while no closed node is open.
//
// The number of nodes is doubled until it suffices, and then minimized by a binary search of the
// last interval, because each try plans the whole drain. More nodes do not always give more room:
// the scheduler may spread pods so that a large pod fits nowhere. Then a much smaller, untried
// number may suffice.
func (r *roll) nodesToOpen(turn *Turn, later int) []string {
	all := slices.Clone(turn.Closes)
	// The last turns are opened first: pods landing there stay the longest before leaving again.
	slices.Reverse(all)
	least := len(r.planDrain(turn, all, true).Later)
	if least >= later {
		return nil
	}
	suffices := func(n int) bool { return n == len(all) || len(r.planDrain(turn, all[:n], true).Later) <= least }

	few, enough := 0, 1
	for !suffices(enough) {
		few, enough = enough, min(2*enough, len(all))
	}
	return all[:few+1+sort.Search(enough-few-1, func(i int) bool { return suffices(few + 1 + i) })]
}

// planRest adds the pods of a turn that leave after nodes were opened for them. The state of the
// roll is restored afterwards; plan is changed and returned.
func (r *roll) planRest(turn *Turn, plan *Draining) *Draining {
	before := r.now
	r.now = afterDeparture(before, plan)
	rest := r.planDrain(turn, turn.Opens, false)
	r.now = before
	plan.Pods = append(plan.Pods, rest.Pods...)
	// The second drain judges the remaining pods again, so its refusals replace those of the first.
	plan.Refused, plan.Later = rest.Refused, nil
	return plan
}

// applyTurn advances the state past a turn. Afterwards the turn's nodes are open again, and hold
// only pods that do not leave in a drain.
func (r *roll) applyTurn(turn *Turn) {
	r.Nodes = slices.DeleteFunc(slices.Clone(r.Nodes), func(name string) bool { return slices.Contains(turn.Nodes, name) })
	r.now = afterDeparture(r.now, &turn.Draining)
	if r.Removes {
		r.now = cordonNodes(r.now, turn.Nodes)
	} else {
		r.now = uncordonNodes(r.now, r.notCordoned(turn.Nodes))
	}
	r.zone = turn.Zone
}

// uncordonNodes returns a state with these nodes no longer cordoned. It is the counterpart of
// cordonNodes.
func uncordonNodes(state *State, names []string) *State {
	state = state.fork()
	for _, name := range names {
		n := state.node(name)
		if n == nil || !n.Spec.Unschedulable {
			continue
		}
		n = n.DeepCopy()
		n.Spec.Unschedulable = false
		n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t v1.Taint) bool { return t.Key == v1.TaintNodeUnschedulable })
		state.World.Put(n)
	}
	return state
}

// afterDeparture returns the state after the departure of pods and the landing of their successors.
//
// A successor keeps the name and UID of its victim, so that a roll recognizes repeated moves of the
// same pod; [Plan.After] builds real successors instead. A pod without a node for its successor
// becomes pending.
func afterDeparture(state *State, plan *Draining) *State {
	state = state.fork()
	for _, k := range plan.Ending {
		if p := state.pod(k.Namespace, k.Name, k.UID); p != nil {
			state.World.Delete(p)
		}
	}
	for i := range plan.Pods {
		d := &plan.Pods[i]
		p := state.pod(d.Namespace, d.Name, d.UID)
		if p == nil {
			continue
		}

		if job := state.World.Workloads().JobOf(p); job != nil {
			state.World.Put(workload.Fail(job, p, true).Job)
		}
		switch {
		case d.Lost:
			state.World.Delete(p)
		default:
			p = p.DeepCopy()
			p.Spec.NodeName = d.To
			state.World.Put(p)
		}
	}
	return state
}
