// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// SchedulingGates keeps pods out of the queue while they carry scheduling gates. Only their removal
// by a controller admits the pod: gates cannot be added after creation.
type SchedulingGates struct{}

// Name implements Gate.
func (SchedulingGates) Name() string { return "SchedulingGates" }

// Admit implements Gate. The message lists the remaining gates, in the spec's order.
func (SchedulingGates) Admit(p *cluster.Pod) string {
	gates := p.Spec().SchedulingGates
	if len(gates) == 0 {
		return ""
	}
	names := rules.Mapped(gates, func(g v1.PodSchedulingGate) string { return g.Name })
	return fmt.Sprintf("waiting for scheduling gates: %v", names)
}

// Interests implements Requeuer. Only the removal of the last gate admits the pod.
func (SchedulingGates) Interests(Setting) []queue.Interest {
	return []queue.Interest{{Resource: queue.Pod, Action: queue.UpdatePodSchedulingGatesEliminated, Hint: Own}}
}
