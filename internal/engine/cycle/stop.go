// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// This file stops placements for reasons from outside: a watch shows the pod deleted or bound, its
// node was deleted, or another pod preempts it. Each stage ends its own outstanding work.

// placementsTo lists the placements to a node, sorted by pod so that the order of the resulting
// actions is fixed.
func (ps *placements) placementsTo(node string) (list []*placement) {
	for _, uid := range slices.Sorted(maps.Keys(ps.byPod)) {
		if b := ps.byPod[uid]; b.Node == node {
			list = append(list, b)
		}
	}
	return list
}

// stopBinding stops a binding if it is not too late. The pod returns to the queue immediately, or
// once the outstanding work completes. A bound placement is left unchanged.
func (ps *placements) stopBinding(b *placement, why *Fault) {
	switch b.stage {
	case preparing:
		ps.stopPreparation(b, why)
	case binding:
		ps.cancelBind(b, why)
	}
}

// abandonPod ends and returns the placement of a deleted pod, or of a pod bound by another client.
// It returns nil if there is no placement. The pod stops counting immediately, even if work that
// cannot be stopped is still outstanding.
func (ps *placements) abandonPod(uid types.UID, why *Fault) *placement {
	b := ps.byPod[uid]
	if b != nil {
		ps.uncountPod(b)
		ps.letGo(b, why)
	}
	return b
}

// letGo ends a placement that is no longer in byPod.
func (ps *placements) letGo(b *placement, why *Fault) {
	b.dropped = true
	ps.stopBinding(b, why)
}

// confirmBound ends a placement after a watch has shown the pod on its node. A watch may show the
// binding before the outcome of the Bind arrives. It may also show a binding made by another
// client.
func (ps *placements) confirmBound(b *placement) {
	ps.leave(b)
	switch b.stage {
	case preparing:
		ps.letGo(b, errBoundElsewhere)
	case binding: // the outstanding outcome shows which client bound the pod
		b.confirmed = true
		ps.cancelBind(b, errBoundElsewhere)
	}
}
