// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// roomOf judges the pods on a node and its remaining room. It returns the bucket, or ^reason.
func (r *ranking) roomOf(node int32) int16 { return r.roomBut(node, "") }

// roomBut is like roomOf, but ignores one of the pods nominated to the node.
func (r *ranking) roomBut(node int32, except types.UID) int16 {
	n, balance := r.ix.c.Nodes[node], r.ix.balance[node]
	if balance < 0 && n != nil && r.plan.guestsInRoom() {
		if rejected := r.lacksNominatedRoom(n, except); rejected < 0 {
			return rejected
		}
	}
	if balance &^= hasGuests; r.plan.onlyRoom() {
		if bucket := r.plan.room.scoreNode(&r.ix.c.Rooms[node], balance); bucket >= 0 {
			return bucket
		}
	}
	if n == nil { // the node was deleted, as a later entry of the log reports
		return ^0
	}
	for _, f := range r.plan.contents {
		if rejection := f.judge(n); rejection != nil {
			return ^r.reasonOf(f.name, rejection)
		}
	}
	if r.plan.room != nil {
		return r.plan.room.scoreNode(&r.ix.c.Rooms[node], balance)
	}
	var sum, fine int64
	for _, s := range r.plan.contentScores {
		score, finer := s.scoreFinely(n)
		sum += score * s.weight
		fine += finer * s.weight
	}
	if r.fine != nil {
		r.fine[node] = fine
	}
	return int16(sum)
}

// lacksNominatedRoom judges a node as if all pods of the same or a higher priority nominated to it
// were placed there, except for the pod with the given UID. It returns ^reason, or 0 if the node
// has room for these pods and the pending pod.
func (r *ranking) lacksNominatedRoom(n *cluster.Node, except types.UID) int16 {
	space, guests := r.space, false
	for _, g := range n.Nominated {
		if g.Class.Priority < r.plan.example.Class.Priority || g.UID == except {
			continue
		}
		if !guests {
			space.copy, guests = n.Copy(space.copy), true
		}
		space.copy.Add(g)
	}

	if !guests {
		return 0
	}
	for _, f := range r.plan.contents {
		if rejection := f.judge(space.copy); rejection != nil {
			return ^r.reasonOf(f.name, rejection)
		}
	}

	return 0
}

// guestsInRoom reports whether the buckets account for the pods nominated to nodes. This is
// possible if only the pods on the node itself matter. Otherwise, withholdNodes judges nodes with
// nominated pods in each decision.
func (pl *plan) guestsInRoom() bool { return len(pl.tallies)+len(pl.asked) == 0 }
