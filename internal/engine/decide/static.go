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
// Statics are shared by all nodes that agree, and compared by index.
type static struct {
	early     *reason // why it is rejected before the pods on it are looked at; nil: it is not
	bucket    int16   // of the nodes, where early is set
	late      *reason // why it is rejected if nothing else rejects it; nil: it is not
	lateIndex int16   // of late in the reasons of the ranking

	taint, affinity int64 // raw scores, to be normalised
	image           int64 // needs no normalising
	scored          bool  // the node is scored by the soft spread constraints: it has their labels
	hostname        bool
}

// scoreStatic scores a node that passed all static filters.
func (pl *plan) scoreStatic(n *cluster.Node) static {
	return static{
		taint: pl.taint.scoreNode(n), affinity: pl.affinity.scoreNode(n), image: pl.image.scoreNode(n), scored: !pl.everyKey ||
			hasKeys(n, pl.soft), hostname: n.Hostname.Known,
	}
}
