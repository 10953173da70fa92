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
	nodeRecord
	pods []*pod // in arbitrary order; see addPod
}

// nodeRecord is the part of a node's state that Knowledge stores unchanged.
type nodeRecord struct {
	Name          string
	Known         bool // the node exists, according to the watch
	UID           types.UID
	Version       string    // its resource version, as last observed
	List          uint32    // number of the last list that contained the node
	Held          []Held    // its NoExecute taints
	TaintsWritten time.Time `json:"Witness"` // Node.Witness of the object from which Held was determined
	Note          string    // NoteAnnotation, as last observed

	Noting    bool // a write of the note is in flight
	NoteTries int
	NoteAt    time.Time   // earliest time of the next write (back-off)
	Reads     pacing.Pace `json:",omitzero"` // paces reads after failures; reset by a successful read
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
	other := !n.Known || n.UID != seen.UID
	missed := c.mirror.nodeList.Listing || other
	if n.UID != seen.UID {
		n.Held, n.TaintsWritten = nil, time.Time{}
	}

	held := c.dating.nodeTaints(now, n, seen, missed)
	changed := other || !sameTaints(held, n.Held)
	rewritten := changed || !seen.Witness.Equal(n.TaintsWritten)
	n.Known, n.UID, n.Version, n.List = true, seen.UID, seen.ResourceVersion, c.mirror.nodeList.Number
	n.Held, n.TaintsWritten, n.Note = held, seen.Witness, seen.Note
	if changed {
		c.decidePods(now, n.pods)
	}

	c.notes.check(now, n, rewritten)
}

// nodeGone keeps the pods of a deleted node: the pod garbage collector removes them, and the taints
// that could evict them no longer exist.
func (c *Core) nodeGone(now time.Time, n *node) {
	n.Known, n.UID, n.Version, n.Held, n.TaintsWritten, n.Note = false, "", "", nil, time.Time{}, ""
	c.decidePods(now, n.pods)
	c.notes.drop(n)
	c.mirror.dropIfUnused(n)
}
