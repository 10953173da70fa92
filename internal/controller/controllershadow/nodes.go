// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controllershadow

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/controller/nodehealth"
	"github.com/berth-k8s/berth/internal/response"
)

// Nodes compares which health taints nodes have, and since when. It is not safe for concurrent use.
//
// Berth's core must not see the other controller's writes; otherwise there would be nothing left to
// decide. The core gets a copy of each node with the kubelet's conditions, the taints of third
// parties, and its own writes. A taint added or removed by one side is open until the other side
// does the same; the time between the two is the result.
type Nodes struct {
	core    *nodehealth.Core
	ledger  *Ledger
	nodes   map[string]*node
	open    map[flip]*decided // decisions made by only one side so far
	version int               // version of the copies, increased with each copy
}

// node is the actual node, and the differences of Berth's copy.
type node struct {
	real     nodehealth.Node
	reported []v1.NodeCondition // as the kubelet wrote them last
	unknown  []v1.NodeCondition // written by Berth since; nil if none
	taints   []v1.Taint         // health taints, as Berth has written them
	labels   map[string]string  // labels set by Berth
}

// flip is an added or removed taint.
type flip struct {
	node, taint string
	on          bool
}

// decided is a decision of one side that the other has not made yet.
type decided struct {
	at      time.Time
	byBerth bool
	counted bool // counted as made by one side only, after Patience
}

// NewNodes returns an empty comparison.
func NewNodes(ledger *Ledger, options nodehealth.Options) *Nodes {
	return &Nodes{core: nodehealth.New(options), ledger: ledger, nodes: map[string]*node{}, open: map[flip]*decided{}}
}

// Step applies an event. The core's actions are carried out on the copies before it returns.
func (n *Nodes) Step(now time.Time, event nodehealth.Event) {
	switch seen := event.(type) {
	case nodehealth.NodeSeen:
		event = nodehealth.NodeSeen{Node: n.noteNode(now, seen.Node)}
	case nodehealth.NodeGone:
		delete(n.nodes, seen.Name)
		n.dropNode(seen.Name)
	case nodehealth.LeaseSeen:
		n.noteLease(now, seen.Name)
	}
	n.carryOut(now, n.core.Step(now, event))
	if _, tick := event.(nodehealth.Tick); tick {
		n.countOverdue(now)
		n.ledger.setCount(Taint, len(n.nodes))
	}
}

// noteNode records a node and returns Berth's copy of it. It distinguishes the kubelet's conditions
// from a controller's by their reason.
func (n *Nodes) noteNode(now time.Time, real nodehealth.Node) nodehealth.Node {
	known := n.nodes[real.Name]
	if known == nil || known.real.UID != real.UID {
		n.dropNode(real.Name)
		// Both sides start from the other controller's existing writes.
		known = &node{reported: real.Conditions, taints: ownTaints(real.Taints), labels: map[string]string{}}
		n.nodes[real.Name] = known
	}
	// before holds the other controller's taints in the previous state of the node. The first state
	// has no flips.
	before := ownTaints(known.real.Taints)
	if known.real.Name == "" {
		before = ownTaints(real.Taints)
	}
	known.real = real
	// Conditions set to Unknown by the other controller are ignored: Berth sets conditions to
	// Unknown independently, on the copy.
	if !byController(real.Conditions) || len(known.reported) == 0 {
		if !sameReport(known.reported, real.Conditions) {
			known.unknown = nil
		}
		known.reported = real.Conditions
	}
	n.recordFlips(now, known, before, ownTaints(real.Taints), false)
	return n.copyNode(known)
}

// byController reports whether a controller has written these conditions because the node is
// silent.
func byController(conditions []v1.NodeCondition) bool {
	return slices.ContainsFunc(conditions, func(c v1.NodeCondition) bool {
		return c.Type == v1.NodeReady && c.Status == v1.ConditionUnknown && strings.HasPrefix(c.Reason, "NodeStatus")
	})
}

// sameReport reports whether two lists of conditions are the same write of the kubelet.
func sameReport(a, b []v1.NodeCondition) bool {
	return slices.EqualFunc(a, b, func(x, y v1.NodeCondition) bool {
		return x.Type == y.Type && x.Status == y.Status && x.LastHeartbeatTime.Equal(&y.LastHeartbeatTime)
	})
}

// noteLease applies a renewed Lease. A recovered kubelet overwrites the conditions set by a
// controller, so Berth's conditions are removed from the copy.
func (n *Nodes) noteLease(now time.Time, name string) {
	known := n.nodes[name]
	if known == nil || known.unknown == nil || byController(known.real.Conditions) {
		return // nothing to overwrite, or the change will be observed on the real node
	}
	known.unknown = nil
	n.carryOut(now, n.core.Step(now, nodehealth.NodeSeen{Node: n.copyNode(known)}))
}

// copyNode returns the node with Berth's writes.
func (n *Nodes) copyNode(known *node) nodehealth.Node {
	n.version++
	copied := known.real
	copied.ResourceVersion = strconv.Itoa(n.version)
	copied.Conditions = slices.Clone(known.reported)
	for _, written := range known.unknown {
		at := slices.IndexFunc(copied.Conditions, func(c v1.NodeCondition) bool { return c.Type == written.Type })
		if at < 0 {
			copied.Conditions = append(copied.Conditions, written)
			continue
		}
		copied.Conditions[at] = written
	}

	copied.Taints = slices.DeleteFunc(slices.Clone(known.real.Taints), func(t v1.Taint) bool { return nodehealth.IsOwn(&t) })
	copied.Taints = append(copied.Taints, known.taints...)
	copied.Labels = map[string]string{}
	for _, labels := range []map[string]string{known.real.Labels, known.labels} {
		maps.Copy(copied.Labels, labels)
	}

	return copied
}

// carryOut makes Berth's writes on the copies, and passes the responses to the core.
func (n *Nodes) carryOut(now time.Time, actions []nodehealth.Action) {
	for len(actions) > 0 {
		action := actions[0]
		actions = actions[1:]
		var answer nodehealth.Answered
		switch a := action.(type) {
		case nodehealth.WriteStatus:
			answer = n.answerWrite(a.Ticket, a.Node, func(known *node) { known.unknown = append(known.unknown, a.Conditions...) })
		case nodehealth.WriteNode:
			answer = n.answerWrite(a.Ticket, a.Node, func(known *node) {
				if a.SetTaints {
					before := known.taints
					known.taints = ownTaints(a.Taints)
					n.recordFlips(now, known, before, known.taints, true)
				}
				// A write has only labels that differ; earlier ones stay.
				maps.Copy(known.labels, a.Labels)
			})
		case nodehealth.MarkPods:
			answer = nodehealth.Answered{Ticket: a.Ticket}
		default:
			continue
		}

		// Writes complete immediately, and may lead to further ones.
		actions = append(actions, n.core.Step(now, answer)...)
	}
}

// answerWrite makes a write on the copy of the node and returns the response of an API server.
func (n *Nodes) answerWrite(ticket response.Ticket, name string, write func(*node)) nodehealth.Answered {
	known := n.nodes[name]
	if known == nil {
		return nodehealth.Answered{Ticket: ticket, Outcome: response.Gone}
	}
	write(known)
	return nodehealth.Answered{Ticket: ticket, Node: new(n.copyNode(known))}
}

// ownTaints returns the taints managed by node health, in a new list.
func ownTaints(taints []v1.Taint) []v1.Taint {
	return slices.DeleteFunc(slices.Clone(taints), func(t v1.Taint) bool { return !nodehealth.IsOwn(&t) })
}

// recordFlips records one side's changes of a node's taints.
func (n *Nodes) recordFlips(now time.Time, known *node, before, after []v1.Taint, byBerth bool) {
	other := ownTaints(known.real.Taints)
	if !byBerth {
		other = known.taints
	}

	has := func(list []v1.Taint, taint *v1.Taint) bool {
		return slices.ContainsFunc(list, func(t v1.Taint) bool { return t.MatchTaint(taint) })
	}
	for i := range after {
		if !has(before, &after[i]) {
			n.recordFlip(now, flip{known.real.Name, after[i].ToString(), true}, byBerth, has(other, &after[i]))
		}
	}

	for i := range before {
		if !has(after, &before[i]) {
			n.recordFlip(now, flip{known.real.Name, before[i].ToString(), false}, byBerth, !has(other, &before[i]))
		}
	}
}

// recordFlip records one side's decision. equal is set if the other side has already made the same
// decision.
//
// For example: Berth adds a taint at 10:00:00, and the flip is open. The other controller adds it
// at 10:00:30, which closes it: both decided, the other one 30 s later. If Berth removes the taint
// again before that, the flip is recorded as one-sided.
func (n *Nodes) recordFlip(now time.Time, f flip, byBerth, equal bool) {
	if !equal {
		n.open[f] = &decided{at: now, byBerth: byBerth}
		return
	}
	if first := n.open[f]; first != nil && first.byBerth != byBerth {
		delete(n.open, f)
		if lag := now.Sub(first.at); !first.counted && first.byBerth {
			n.ledger.addBoth(f.toDecision(first.at, ""), lag)
		} else if !first.counted {
			n.ledger.addBoth(f.toDecision(now, ""), -lag)
		}
		return
	}
	// This side has undone a decision that the other side never followed.
	back := flip{f.node, f.taint, !f.on}
	if first := n.open[back]; first != nil {
		delete(n.open, back)
		n.recordAlone(back, first, now.Sub(first.at), "reverted")
	}
}

// countOverdue counts decisions that the other side has not followed for too long.
func (n *Nodes) countOverdue(now time.Time) {
	for f, first := range n.open {
		if waited := now.Sub(first.at); waited >= Patience {
			n.recordAlone(f, first, waited, "not followed")
		}
	}
}

// recordAlone counts a one-sided decision, but only once. The decision stays open, so that the
// other side's late decision is not taken for a new one.
func (n *Nodes) recordAlone(f flip, first *decided, waited time.Duration, why string) {
	if first.counted {
		return
	}
	first.counted = true
	outcome := OnlyOther
	if first.byBerth {
		outcome = OnlyBerth
	}
	n.ledger.addOneSided(f.toDecision(first.at, why), outcome, waited)
}

// dropNode forgets open decisions about a deleted node.
func (n *Nodes) dropNode(name string) {
	maps.DeleteFunc(n.open, func(f flip, _ *decided) bool { return f.node == name })
}

// toDecision describes the flip.
func (f flip) toDecision(at time.Time, why string) Decision {
	verb := " removed"
	if f.on {
		verb = " added"
	}
	return Decision{Kind: Taint, Object: f.node, What: f.taint + verb, At: at, Why: why}
}
