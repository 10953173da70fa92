// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"cmp"
	"fmt"
	"time"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// DefaultHorizon is the default of [Options.Horizon].
const DefaultHorizon = 24 * time.Hour

// moveCost is the stated cost of moving a pod, in the currency of the catalog. It is doubled for
// each of: a pod of a StatefulSet, whose successor starts only after the pod has ended; a positive
// priority; and an age of at least settledAge, because such a pod is likely to have filled caches.
//
//	a pod of a Deployment, an hour old             0.01
//	a pod of a StatefulSet, two days old           0.04
const (
	moveCost   = 0.01
	settledAge = 24 * time.Hour
)

// movingCost returns the cost of moving all pods of a node except those of DaemonSets.
func movingCost(n *cluster.Node, now time.Time) (sum float64) {
	for _, p := range n.Pods {
		kind, cost := rules.KindOf(p.Class.Controller), moveCost
		if kind == rules.DaemonSet {
			continue
		}
		settled := !p.Created.IsZero() && now.Sub(p.Created.Time()) >= settledAge
		for _, doubled := range []bool{kind == rules.StatefulSet, p.Class.Priority > 0, settled} {
			if doubled {
				cost *= 2
			}
		}
		sum += cost
	}
	return sum
}

// net returns the savings of an exchange per hour of the horizon, after the cost of its moves.
func (r *replacer) net(e *Exchange) float64 {
	return e.Hour - e.MoveCost/cmp.Or(r.o.Horizon, DefaultHorizon).Hours()
}

// whyUnprofitable returns why the savings of an exchange do not pay for its moves, or "".
func (r *replacer) whyUnprofitable(e *Exchange) string {
	switch {
	case e.Hour < r.o.MinSavings:
		return fmt.Sprintf("it would save %.4g an hour: less than %.4g", e.Hour, r.o.MinSavings)
	case r.net(e) <= 0:
		return fmt.Sprintf("its moves would cost %.4g, more than is saved within %s", e.MoveCost, cmp.Or(r.o.Horizon, DefaultHorizon))
	}
	return ""
}
