// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/pacing"
)

// node is a node that was observed or is referred to by a pod.
type node struct {
	name          string
	pods          []*pod // in arbitrary order; see addPod
	known         bool   // the node exists, according to the watch
	uid           types.UID
	version       string      // its resource version, as last observed
	list          uint32      // number of the last list that contained the node
	held          []Held      // its NoExecute taints
	taintsWritten time.Time   // Node.Witness of the object from which held was determined
	note          string      // NoteAnnotation, as last observed
	reads         pacing.Pace // paces reads after failures; reset by a successful read

	noting    bool // a write of the note is in flight
	noteTries int
	noteAt    time.Time // earliest time of the next write (back-off)
}

// addPod and dropPod maintain the node's pods as a list, because the order of a map would vary.
// dropPod moves the last pod into the gap.
func (n *node) addPod(p *pod) {
	p.among = len(n.pods)
	n.pods = append(n.pods, p)
}

// dropPod removes a pod from the list; see addPod.
func (n *node) dropPod(p *pod) {
	last := len(n.pods) - 1
	n.pods[p.among] = n.pods[last]
	n.pods[p.among].among = p.among
	n.pods[last] = nil
	n.pods = n.pods[:last]
}

// nodeSeen applies the current state of a node. A node with another UID is a different node, so the
// taints of the previous node are forgotten. Pods are re-evaluated only if a taint or its time has
// changed, since kubelets write every node's status every few minutes.
func (c *Core) nodeSeen(now time.Time, seen Node) {
	n := c.mirror.nodeNamed(seen.Name)
	other := !n.known || n.uid != seen.UID
	missed := c.mirror.nodeList.Listing || other
	if n.uid != seen.UID {
		n.held, n.taintsWritten = nil, time.Time{}
	}

	held := c.dating.nodeTaints(now, n, seen, missed)
	changed := other || !sameTaints(held, n.held)
	rewritten := changed || !seen.Witness.Equal(n.taintsWritten)
	n.known, n.uid, n.version, n.list = true, seen.UID, seen.ResourceVersion, c.mirror.nodeList.Number
	n.held, n.taintsWritten, n.note = held, seen.Witness, seen.Note
	if changed {
		c.decidePods(now, n.pods)
	}

	c.notes.check(now, n, rewritten)
}

// nodeGone keeps the pods of a deleted node: the pod garbage collector removes them, and the taints
// that could evict them no longer exist.
func (c *Core) nodeGone(now time.Time, n *node) {
	n.known, n.uid, n.version, n.held, n.taintsWritten, n.note = false, "", "", nil, time.Time{}, ""
	c.decidePods(now, n.pods)
	c.notes.drop(n)
	c.mirror.dropIfUnused(n)
}
