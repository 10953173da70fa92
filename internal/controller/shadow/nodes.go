package shadow

import (
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/controller/nodehealth"
)

// Nodes compares which taints nodes have for their health, and since when. It belongs to one
// goroutine.
type Nodes struct {
	core    *nodehealth.Core
	ledger  *Ledger
	nodes   map[string]*node
	open    map[flip]*decided // decisions of one side that the other has not made
	version int               // of the copies: each is a newer one
}

// node is a node as the cluster has it, and how Berth's copy differs.
type node struct {
	real     nodehealth.Node
	reported []v1.NodeCondition // as the kubelet wrote them last
	unknown  []v1.NodeCondition // those that Berth has written since, nil: none
	taints   []v1.Taint         // node health's own taints, as Berth has written them
	labels   map[string]string  // that Berth has set
}

// flip is a taint that is added or removed.
type flip struct {
	node, taint string
	on          bool
}

// decided is what one side has decided and the other has not yet.
type decided struct {
	at      time.Time
	byBerth bool
	counted bool // as one side's alone, after Patience
}

// NewNodes returns a comparison that knows no node.
func NewNodes(ledger *Ledger, options nodehealth.Options) *Nodes {
	return &Nodes{core: nodehealth.New(options), ledger: ledger, nodes: map[string]*node{}, open: map[flip]*decided{}}
}

// Step applies an event.
func (n *Nodes) Step(now time.Time, event nodehealth.Event) {
	switch seen := event.(type) {
	case nodehealth.NodeSeen:
		event = nodehealth.NodeSeen{Node: n.seen(now, seen.Node)}
	case nodehealth.NodeGone:
		delete(n.nodes, seen.Name)
		n.drop(seen.Name)
	case nodehealth.LeaseSeen:
		n.beat(now, seen.Name)
	}
	n.carryOut(now, n.core.Step(now, event))
	if _, tick := event.(nodehealth.Tick); tick {
		n.overdue(now)
		n.ledger.seen(Taint, len(n.nodes))
	}
}

// seen records a node and returns Berth's copy of it.
func (n *Nodes) seen(now time.Time, real nodehealth.Node) nodehealth.Node {
	known := n.nodes[real.Name]
	if known == nil || known.real.UID != real.UID {
		n.drop(real.Name)
		// Both sides start from what the other controller has written so far.
		known = &node{reported: real.Conditions, taints: own(real.Taints)}
		n.nodes[real.Name] = known
	}
	before := own(known.real.Taints)
	if known.real.Name == "" {
		before = own(real.Taints)
	}
	known.real = real
	if !byController(real.Conditions) || len(known.reported) == 0 {
		if !sameReport(known.reported, real.Conditions) {
			known.unknown = nil
		}
		known.reported = real.Conditions
	}
	n.flips(now, known, before, own(real.Taints), false)
	return n.copy(known)
}

// byController reports whether a controller has written these conditions because the node is
// silent.
func byController(conditions []v1.NodeCondition) bool {
	return slices.ContainsFunc(conditions, func(c v1.NodeCondition) bool {
		return c.Type == v1.NodeReady && c.Status == v1.ConditionUnknown && strings.HasPrefix(c.Reason, "NodeStatus")
	})
}

// sameReport reports whether the kubelet has not written its conditions since.
func sameReport(a, b []v1.NodeCondition) bool {
	return slices.EqualFunc(a, b, func(x, y v1.NodeCondition) bool {
		return x.Type == y.Type && x.Status == y.Status && x.LastHeartbeatTime.Equal(&y.LastHeartbeatTime)
	})
}

// beat applies a renewed Lease. A kubelet that is back overwrites the conditions that a controller
// has written, Berth's on the copy as well.
func (n *Nodes) beat(now time.Time, name string) {
	known := n.nodes[name]
	if known == nil || known.unknown == nil || byController(known.real.Conditions) {
		return // there is nothing to overwrite, or a watch will show it on the real node
	}
	known.unknown = nil
	n.carryOut(now, n.core.Step(now, nodehealth.NodeSeen{Node: n.copy(known)}))
}

// copy returns the node as it would be with Berth's writes.
func (n *Nodes) copy(known *node) nodehealth.Node {
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
		for key, value := range labels {
			copied.Labels[key] = value
		}
	}

	return copied
}

// carryOut makes Berth's writes on the copies, and applies the consequences.
func (n *Nodes) carryOut(now time.Time, actions []nodehealth.Action) {
	for len(actions) > 0 {
		action := actions[0]
		actions = actions[1:]
		var answer nodehealth.Answered
		switch a := action.(type) {
		case nodehealth.WriteStatus:
			answer = n.answer(a.Ticket, a.Node, func(known *node) { known.unknown = append(known.unknown, a.Conditions...) })
		case nodehealth.WriteNode:
			answer = n.answer(a.Ticket, a.Node, func(known *node) {
				if a.SetTaints {
					before := known.taints
					known.taints = own(a.Taints)
					n.flips(now, known, before, known.taints, true)
				}
				known.labels = a.Labels
			})
		case nodehealth.MarkPods:
			answer = nodehealth.Answered{Ticket: a.Ticket}
		default:
			continue
		}

		actions = append(actions, n.core.Step(now, answer)...)
	}
}

func (n *Nodes) answer(ticket nodehealth.Ticket, name string, write func(*node)) nodehealth.Answered {
	known := n.nodes[name]
	if known == nil {
		return nodehealth.Answered{Ticket: ticket, Outcome: nodehealth.Gone}
	}
	write(known)
	copied := n.copy(known)
	return nodehealth.Answered{Ticket: ticket, Node: &copied}
}

func own(taints []v1.Taint) []v1.Taint {
	return slices.DeleteFunc(slices.Clone(taints), func(t v1.Taint) bool { return !nodehealth.IsOwn(&t) })
}

// flips records one side's changes of a node's taints.
func (n *Nodes) flips(now time.Time, known *node, before, after []v1.Taint, byBerth bool) {
	other := own(known.real.Taints)
	if !byBerth {
		other = known.taints
	}

	has := func(list []v1.Taint, taint *v1.Taint) bool {
		return slices.ContainsFunc(list, func(t v1.Taint) bool { return t.MatchTaint(taint) })
	}
	for i := range after {
		if !has(before, &after[i]) {
			n.flip(now, flip{known.real.Name, after[i].ToString(), true}, byBerth, has(other, &after[i]))
		}
	}

	for i := range before {
		if !has(after, &before[i]) {
			n.flip(now, flip{known.real.Name, before[i].ToString(), false}, byBerth, !has(other, &before[i]))
		}
	}
}

// flip records one side's decision. equal is set if the other side has it already.
func (n *Nodes) flip(now time.Time, f flip, byBerth, equal bool) {
	if !equal {
		n.open[f] = &decided{at: now, byBerth: byBerth}
		return
	}
	if first := n.open[f]; first != nil && first.byBerth != byBerth {
		delete(n.open, f)
		if lag := now.Sub(first.at); !first.counted && first.byBerth {
			n.ledger.both(f.decision(first.at, ""), lag)
		} else if !first.counted {
			n.ledger.both(f.decision(now, ""), -lag)
		}
		return
	}
	// It has undone what the other side never followed.
	back := flip{f.node, f.taint, !f.on}
	if first := n.open[back]; first != nil {
		delete(n.open, back)
		n.alone(back, first, now.Sub(first.at), "taken back")
	}
}

// overdue counts decisions that the other side has not followed for too long.
func (n *Nodes) overdue(now time.Time) {
	for f, first := range n.open {
		if waited := now.Sub(first.at); waited >= Patience {
			n.alone(f, first, waited, "not followed")
		}
	}
}

func (n *Nodes) alone(f flip, first *decided, waited time.Duration, why string) {
	if first.counted {
		return
	}
	first.counted = true
	outcome := OnlyOther
	if first.byBerth {
		outcome = OnlyBerth
	}
	n.ledger.one(f.decision(first.at, why), outcome, waited)
}

// drop forgets open decisions about a deleted node.
func (n *Nodes) drop(name string) {
	for f := range n.open {
		if f.node == name {
			delete(n.open, f)
		}
	}
}

func (f flip) decision(at time.Time, why string) Decision {
	verb := " removed"
	if f.on {
		verb = " added"
	}
	return Decision{Kind: Taint, Object: f.node, What: f.taint + verb, At: at, Why: why}
}
