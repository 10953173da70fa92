// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package execute

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/response"
	"github.com/berth-k8s/berth/internal/world/disruption"
)

// BoughtLabel marks NodeClaims created by an exchange, and their nodes, to which Karpenter copies
// it. With the annotation karpenter.sh/do-not-disrupt it keeps Karpenter from removing the node
// before it has pods. At the end of the exchange, nodes with pods lose both, and the others are
// deleted.
const BoughtLabel = "berth.dev/bought"

// Bounds of an exchange.
const (
	boughtFor  = 15 * time.Minute // limit for the nodes of all NodeClaims to become ready
	removedFor = 5 * time.Minute  // limit for Karpenter to begin removing a node
	heldAgain  = 10 * time.Second // pause before a held turn is planned again
)

// exchanges reports whether this is an exchange: a roll that creates NodeClaims first, and removes
// the nodes of each turn instead of reopening them.
//
// Its state is on the nodes, like that of a roll. NodeClaims precede the first note, so a process
// that finds notes continues without buying. Its predecessor may also have been killed while
// buying: then only NodeClaims remain, which are deleted unless their nodes have pods.
func (r *Roller) exchanges() bool { return r.options.Until == UntilRemoved }

// selects reports whether a node belongs to the roll. A node being deleted has left an exchange.
func (r *Roller) selects(n *v1.Node) bool {
	if r.exchanges() {
		_, noted := r.noteOf(n)
		return n.DeletionTimestamp == nil && (noted || slices.Contains(r.options.Nodes, n.Name))
	}
	return r.options.Selector.Matches(labels.Set(n.Labels))
}

// claimOf returns the NodeClaim of a node, or "".
func claimOf(n *v1.Node) (name string, uid types.UID) {
	for _, owner := range n.OwnerReferences {
		if owner.Kind == "NodeClaim" && strings.HasPrefix(owner.APIVersion, "karpenter.sh/") {
			return owner.Name, owner.UID
		}
	}
	return "", ""
}

// sendClaim issues a request about a NodeClaim, unless one is in flight, accepted or not yet due.
// It reports whether one was accepted.
func (r *Roller) sendClaim(key string, action func(response.Ticket) Action) bool {
	c := r.claims[key]
	if c == nil {
		c = &attempt{}
		r.claims[key] = c
	}
	switch {
	case c.done || c.ticket != 0:
	case r.now.Before(c.retry):
		r.wake(c.retry)
	default:
		c.ticket = r.nextTicket()
		r.addAction(action(c.ticket))
	}
	return c.done
}

// claimAnswered handles the response to a request about a NodeClaim. Without permission, or if a
// policy refuses a NodeClaim, the exchange stops.
func (r *Roller) claimAnswered(e Answered) {
	for _, key := range slices.Sorted(maps.Keys(r.claims)) {
		switch c := r.claims[key]; {
		case c.ticket != e.Ticket:
		case e.Outcome == response.OK, e.Outcome == response.Gone && strings.HasPrefix(key, "sell "):
			c.ticket, c.done = 0, true
		case e.Outcome == response.Refused:
			c.ticket, c.done = 0, true // the end of the exchange does not repeat it
			why := fmt.Sprintf("cannot %s: %s", key, e.Message)
			if r.stop(why); r.stopped == "" {
				r.stopped = why
			}
		default:
			c.again(r.now, e.RetryAfter)
		}
	}
}

// wantTurn adds the notes of the turn's nodes, once all later nodes have theirs: a process that
// finds a node in its turn knows that no node of the exchange lacks its note.
func (r *Roller) wantTurn() bool {
	for _, name := range r.turn.Nodes {
		if r.cluster.node(name) != nil {
			r.want(name, true, RollNote{State: rollTurn, Before: r.before[name], Next: r.turn.Next})
		}
	}
	return true
}

// unbegun reports whether an earlier process was killed before the exchange moved a pod. Some nodes
// may lack notes, so it is not continued.
func (r *Roller) unbegun() bool {
	noted, used := 0, r.cluster.holding()
	for _, n := range r.cluster.nodes() {
		note, ok := r.noteOf(n)
		if ok && note.State != rollNext || n.Labels[BoughtLabel] != "" && used[n.Name] {
			return false
		}
		if ok {
			noted++
		}
	}
	return noted > 0
}

// bought creates the NodeClaims, and reports whether their nodes are ready. If one is not ready in
// time, reality deviates from the plan, and the exchange stops before any pod has left.
func (r *Roller) bought() bool {
	nodes, missing := map[string]*v1.Node{}, ""
	for _, n := range r.cluster.nodes() {
		claim, _ := claimOf(n)
		nodes[claim] = n
		r.options.Targets.Copy(claim, n.Name)
	}

	for _, name := range slices.Sorted(maps.Keys(r.options.Buy)) {
		accepted := r.sendClaim("buy NodeClaim "+name, func(t response.Ticket) Action {
			return BuyNode{Ticket: t, Claim: name, Object: r.options.Buy[name]}
		})
		n := nodes[name]
		if !accepted || n == nil || !nodeReady(n) || n.Labels["karpenter.sh/initialized"] != "true" {
			missing = name
		}
	}
	if missing != "" && r.overdue(boughtFor) {
		r.stop(fmt.Sprintf("NodeClaim %s has no ready node after %s", missing, boughtFor))
	}
	return missing == ""
}

// undisturbed returns why an exchange must stop: a node was annotated since it was planned.
func (r *Roller) undisturbed(nodes []string) string {
	for _, name := range nodes {
		if n := r.cluster.node(name); r.exchanges() && n != nil && disruption.KeptBy(n) != "" {
			return fmt.Sprintf("node %s is annotated %s", name, disruption.KeptBy(n))
		}
	}
	return ""
}

// spare keeps the nodes of an exchange with pods that cannot leave, of the first turn with such
// nodes: later turns find room on them. It reports whether there are any, and the exchange of the
// others still pays. The rest is then planned again.
func (r *Roller) spare(turns []rebalance.Turn) bool {
	why := map[string]string{}
	for i := 0; i < len(turns) && len(why) == 0; i++ {
		for _, k := range turns[i].Refused {
			why[k.Node] = fmt.Sprintf("pod %s/%s: %s", k.Namespace, k.Name, k.Why)
		}
		for _, d := range turns[i].Pods {
			if d.Stranded != "" {
				why[d.From] = fmt.Sprintf("pod %s/%s would find no other node: %s", d.Namespace, d.Name, d.Stranded)
			}
		}
	}

	names := slices.Sorted(maps.Keys(why))
	stay := slices.Concat(r.stay, names)
	if len(names) == 0 || !r.exchanges() || r.options.Pays != nil && !r.options.Pays(stay) {
		return false
	}
	r.stay, r.stage, r.wanted = stay, turnEnding, map[string]SetNode{}
	r.total -= len(names)
	r.options.Nodes = slices.DeleteFunc(slices.Clone(r.options.Nodes), func(name string) bool { return why[name] != "" })
	for _, name := range names {
		r.wanted[name] = SetNode{Node: name, Cordoned: r.closed[name]}
		r.addAction(RollProgress{Result: Withheld, Node: name, Message: "node " + name + " stays: " + why[name]})
	}
	return true
}

// hold waits until the next turn can begin, for the time that a turn may last.
func (r *Roller) hold(why string) {
	if r.held.IsZero() {
		r.held = r.now
		r.addAction(RollProgress{Result: Withheld, Message: why + ": waiting"})
	}
	if r.now.Before(r.held.Add(r.options.Timeout)) {
		r.at = r.now.Add(heldAgain)
		return
	}
	r.stop(fmt.Sprintf("%s, for %s", why, r.options.Timeout))
}

// sell deletes the NodeClaim of an empty node of the turn, and describes the node. It returns "" if
// Karpenter is removing the node, or if the node has no NodeClaim: then it stays for the operator.
func (r *Roller) sell(name string) string {
	n := r.remaining(name)
	if n == nil {
		return ""
	}
	claim, uid := claimOf(n)
	if claim == "" {
		return ""
	}
	r.sendClaim("sell NodeClaim "+claim, func(t response.Ticket) Action { return SellNode{Ticket: t, Claim: claim, UID: uid} })
	return fmt.Sprintf("node %s is empty: waiting until NodeClaim %s is removed", name, claim)
}

// remaining returns a node of the turn that is not being deleted, or nil.
func (r *Roller) remaining(name string) *v1.Node {
	if n := r.cluster.node(name); n != nil && n.UID == r.uids[name] && n.DeletionTimestamp == nil {
		return n
	}
	return nil
}

// endRemoval notes that a node of the turn is done. A node without a NodeClaim stays cordoned.
func (r *Roller) endRemoval(name string) {
	message := "removed"
	if r.remaining(name) == nil {
		r.removed++
	} else {
		message = "empty and cordoned: it has no NodeClaim, so remove it by other means"
		r.want(name, true, RollNote{State: rollDone})
	}
	r.addAction(RollProgress{Result: Arrived, Node: name, Message: message})
}

// settleBought deletes the unused NodeClaims at the end of an exchange, including those of an
// earlier process, and lets Karpenter manage the other ones. It reports whether nothing is left to
// do: the next plan must not count on an unused node. After an interruption, the next run does
// this.
func (r *Roller) settleBought() bool {
	if !r.exchanges() || r.stopped == interrupted || r.options.DryRun {
		return true
	}
	for key, c := range r.claims { // a purchase in flight is not listed yet
		if strings.HasPrefix(key, "buy ") && c.ticket != 0 {
			return false
		}
	}
	settled, used, keep := true, r.cluster.holding(), map[string]bool{}
	for _, n := range r.cluster.nodes() {
		claim, _ := claimOf(n)
		bought := n.Labels[BoughtLabel] != ""
		switch {
		case bought && !used[n.Name]:
			settled = false // a terminating node may still lack Karpenter's taint
			continue
		case bought:
			r.wanted[n.Name] = SetNode{Node: n.Name, Cordoned: n.Spec.Unschedulable, Note: n.Annotations[RollAnnotation], Release: true}
			settled = false
		}
		keep[claim] = true
	}
	return r.sendClaim("sell unused nodes", func(t response.Ticket) Action { return SellUnused{Ticket: t, Keep: keep} }) && settled
}
