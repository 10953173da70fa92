// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"math"

	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// utilisationOf returns the cluster's current utilisation.
func utilisationOf(w *simulate.World) Utilisation {
	u := Utilisation{Pending: len(pendingPods(w))}
	for _, n := range w.Cluster().Nodes {
		// Indexes of removed nodes stay empty.
		if n == nil {
			continue
		}
		u.Nodes++
		u.Pods += len(n.Pods)
		if len(n.Pods) == 0 {
			u.Empty++
		}
		u.CPU.Requested = rules.Sum(u.CPU.Requested, n.Requested.MilliCPU)
		u.CPU.Allocatable = rules.Sum(u.CPU.Allocatable, n.Size.MilliCPU)
		u.Memory.Requested = rules.Sum(u.Memory.Requested, n.Requested.Memory)
		u.Memory.Allocatable = rules.Sum(u.Memory.Allocatable, n.Size.Memory)
	}

	u.CPU.setPercent()
	u.Memory.setPercent()
	return u
}

// setPercent computes the percentage with one decimal; 0 if nothing is allocatable.
func (a *Amount) setPercent() {
	if a.Allocatable > 0 {
		a.Percent = math.Round(1000*float64(a.Requested)/float64(a.Allocatable)) / 10
	}
}
