package eviction

import (
	"cmp"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// node is a node that was seen, or that a pod refers to.
type node struct {
	name    string
	pods    []*pod
	known   bool // a watch showed it and has not shown it gone
	uid     types.UID
	version string    // its resource version, as last seen
	list    uint32    // the last list that showed it
	held    []Held    // its NoExecute taints
	witness time.Time // Node.Witness as of held
	note    string    // its annotation, as last seen or written

	noting    bool // a write of the note is in flight
	noteTries int
	noteAt    time.Time // no write before: back-off
}

func (c *Core) nodeNamed(name string) *node {
	n := c.nodes[name]
	if n == nil {
		n = &node{name: name}
		c.nodes[name] = n
	}
	return n
}

func (c *Core) nodeSeen(now time.Time, seen Node) {
	n := c.nodeNamed(seen.Name)
	other := !n.known || n.uid != seen.UID
	missed := c.nodesAreListing || other
	if n.uid != seen.UID {
		n.held, n.witness = nil, time.Time{}
	}

	held := c.recordTaints(now, n, seen, missed)
	changed := other || !sameTaints(held, n.held)
	rewritten := changed || !seen.Witness.Equal(n.witness)
	n.known, n.uid, n.version, n.list = true, seen.UID, seen.ResourceVersion, c.nodeList
	n.held, n.witness, n.note = held, seen.Witness, seen.Note
	if changed {
		for _, p := range n.pods {
			c.decidePod(now, p)
		}
	}

	c.checkNote(now, n, rewritten)
}

// nodesListed removes the nodes that the list did not show, in order of their names.
func (c *Core) nodesListed(now time.Time) {
	var gone []*node
	for _, n := range c.nodes {
		if n.known && n.list != c.nodeList {
			gone = append(gone, n)
		}
	}
	slices.SortFunc(gone, func(a, b *node) int { return cmp.Compare(a.name, b.name) })
	for _, n := range gone {
		c.nodeGone(now, n)
	}
}

// nodeGone leaves the pods of a deleted node alone: the pod garbage collector removes them, and the
// taints that could evict them are gone as well.
func (c *Core) nodeGone(now time.Time, n *node) {
	n.known, n.uid, n.version, n.held, n.witness, n.note = false, "", "", nil, time.Time{}, ""
	for _, p := range n.pods {
		c.decidePod(now, p)
	}
	c.unnoted = dropNode(c.unnoted, n)
	c.dropIfUnused(n)
}

// addPod and dropPod keep the node's pods in a list, so that nothing depends on the order of a map.
// The last pod fills the gap of one that leaves.
func (n *node) addPod(p *pod) {
	p.among = len(n.pods)
	n.pods = append(n.pods, p)
}

func (n *node) dropPod(p *pod) {
	last := len(n.pods) - 1
	n.pods[p.among] = n.pods[last]
	n.pods[p.among].among = p.among
	n.pods[last] = nil
	n.pods = n.pods[:last]
}

func (c *Core) dropIfUnused(n *node) {
	if !n.known && len(n.pods) == 0 {
		delete(c.nodes, n.name)
	}
}

// recordTaints determines since when the node has each of its taints.
//
// A taint's own timeAdded counts, unless it is in the future: then its writer's clock is ahead. A
// taint without one (kubectl writes none) was added when the list of taints was first written with
// it. Managed fields tell when the list was last written; the node's note tells the earlier time if
// another taint has been written since. A note counts only for the list that it was made for. What
// the Core remembers counts as long as it missed nothing. Where it may have, it knows no more than
// a Core that has just started: if the list was written again, a taint may have been removed and
// added again, and counts as new. So a pod may be evicted late after such a coincidence, and never
// early.
func (c *Core) recordTaints(now time.Time, n *node, seen Node, missed bool) []Held {
	if len(seen.Taints) == 0 {
		return nil
	}
	var noted map[string]time.Time
	if missed {
		noted = c.notedSince(seen)
	}

	remembers := !missed || n.known && seen.ResourceVersion == n.version && n.version != ""
	held := make([]Held, 0, len(seen.Taints))
	for _, taint := range seen.Taints {
		before, had := findTaint(n.held, &taint)
		said := c.taintSince(&taint, seen, noted)
		switch {
		case had && before.Taint.TimeAdded.Equal(taint.TimeAdded) && (!taint.TimeAdded.IsZero() || remembers),
			had && !said.IsZero() && said.Equal(before.said):
			before.Taint = taint
		default:
			before = c.newlyHeld(now, taint, said, missed)
		}
		if said := seen.Turned; oppositeTaint(&taint) != nil && !said.Equal(before.saidTurned) {
			before.saidTurned, before.Turned = said, time.Time{}
			if !said.IsZero() {
				before.Turned = c.toClockSince(now, said, missed)
			}
		}
		held = append(held, before)
	}

	return held
}

// taintSince returns since when the node has the taint according to the node's object.
func (c *Core) taintSince(taint *v1.Taint, seen Node, noted map[string]time.Time) time.Time {
	if !taint.TimeAdded.IsZero() && !c.breakSafeguards.noTimeAdded {
		return taint.TimeAdded.Time
	}
	if since, ok := noted[Held{Taint: *taint}.ID()]; ok {
		return since
	}
	if c.breakSafeguards.noWitness {
		return time.Time{}
	}
	return seen.Witness
}

func (c *Core) newlyHeld(now time.Time, taint v1.Taint, said time.Time, missed bool) Held {
	h := Held{Taint: taint, Since: now, written: c.wallTime(now), said: said}
	if !said.IsZero() {
		h.Since, h.written = c.toClockSince(now, said, missed), earlierOf(said, h.written)
	}
	return h
}

// notedSince returns the content of the node's note, or nothing if it was made for another list of
// taints.
func (c *Core) notedSince(seen Node) map[string]time.Time {
	n, ok := parseNote(seen.Note)
	if !ok || c.breakSafeguards.noNote || !n.Of.Equal(seen.Witness) && !c.breakSafeguards.noWitness {
		return nil
	}
	return n.Since
}

// findTaint returns the same taint, whatever its time, among those held.
func findTaint(held []Held, taint *v1.Taint) (Held, bool) {
	for _, h := range held {
		if h.Taint.MatchTaint(taint) && h.Taint.Value == taint.Value {
			return h, true
		}
	}
	return Held{}, false
}

func sameTaints(a, b []Held) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if h, ok := findTaint(b, &a[i].Taint); !ok || !h.Since.Equal(a[i].Since) || !h.Turned.Equal(a[i].Turned) {
			return false
		}
	}
	return true
}
