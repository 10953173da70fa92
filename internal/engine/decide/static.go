// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// reason is the reason why a node itself cannot take the pod.
type reason struct {
	plugin    string
	rejection *plugins.Rejection
}

// static is the part of a verdict and score that does not depend on placements. For one class,
// nodes with the same static differ only in their domains and pods.
//
// Nodes with equal statics share one entry, so statics are compared by index.
type static struct {
	early     *reason // reason for rejecting the nodes before their pods are considered, or nil
	bucket    int16   // bucket of the nodes if early is set
	late      *reason // reason for rejecting the nodes if nothing else rejects them, or nil
	lateIndex int16   // index of late in the reasons of the ranking

	taint, affinity int64 // raw scores to be normalized
	image           int64 // score that needs no normalization
	scored          bool  // the soft spread constraints score the nodes, because the nodes have their labels
	hostname        bool
}

// scoreStatic scores a node that passed all static filters.
func (pl *plan) scoreStatic(n *cluster.Node) static {
	return static{
		taint: pl.taint.scoreNode(n), affinity: pl.affinity.scoreNode(n), image: pl.image.scoreNode(n), scored: !pl.everyKey ||
			plugins.HasKeys(n, pl.soft), hostname: n.Hostname.Known,
	}
}
