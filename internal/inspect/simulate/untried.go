// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// eachWaiting yields the pods in created, late and pending. Those in pending are in no particular
// order.
func (s *scheduler) eachWaiting(yield func(p *pod) bool) {
	for _, p := range slices.Concat(s.created, s.late) {
		if !yield(p) {
			return
		}
	}
	for _, p := range s.pending {
		if !yield(p) {
			return
		}
	}
}

// showCreated shows new pods to the core, in queue order. A refused pod, or a pod without a
// profile, only gets a turn, because the core could not process it.
func (s *scheduler) showCreated() {
	created := s.created
	s.created = nil
	sortQueued(created)
	for _, p := range created {
		p.turn = len(s.turn) + 1
		s.turn = append(s.turn, p)
		fresh := p.fresh
		p.fresh = nil
		if p.refused != "" || s.profiles[p.Spec().SchedulerName] == nil {
			continue
		}
		s.pending[p.UID] = p
		s.showObject(cycle.Pods, fresh)
	}
}

// listUntried lists the pods that are not tried, up to the given turn: the API server refuses them,
// no profile serves them, or a gate holds them back. Each is listed once, at the position that a
// decision about it would have. The pods of an incomplete group are listed together.
func (s *scheduler) listUntried(turn int) {
	for ; s.passed < turn; s.passed++ {
		p := s.turn[s.passed]
		if p.gone || p.NodeName != "" || p.listed {
			continue
		}
		why, nodes := s.whyUntried(p)
		switch g := s.groupOf(p.Pod); {
		case why == "":
		case g != nil && why == s.core.Incomplete(p.UID):
			s.listHeld(g, why)
		default:
			s.report.addDecision(p, Pod{Message: why, Nodes: nodes}, false)
		}
	}
}

// whyUntried returns the reason the pod is not tried, or "" if it is. With explanations, a pod
// gated by a plugin also gets the verdicts on the nodes, which show whether it would fit without
// the gate.
func (s *scheduler) whyUntried(p *pod) (why string, nodes []Node) {
	name := p.Spec().SchedulerName
	switch profile := s.profiles[name]; {
	case p.refused != "":
		return p.refused, nil
	case profile == nil:
		return fmt.Sprintf("no profile serves the scheduler name %q", name), nil
	}
	why = s.gateReason(p.Pod)
	if why != "" && len(p.Spec().SchedulingGates) == 0 {
		nodes = s.explainPod(name, p.Pod)
	}
	return why, nodes
}

// devicesOf returns the plugin for device claims if the profile runs it at PreEnqueue, or nil. Its
// gate needs the cluster, so the profile's Gates omit it.
func devicesOf(profile *plugins.Profile) *plugins.DynamicResources {
	for _, filter := range profile.Filters {
		if devices, ok := filter.(*plugins.DynamicResources); ok && profile.Has(plugins.PreEnqueue, devices.Name()) {
			return devices
		}
	}
	return nil
}

// stubPod returns an object with only the fields needed for a deletion, because the full object may
// have been released.
func stubPod(p *cluster.Pod) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace(), Name: p.Name, UID: p.UID}}
}

// gateReason returns the reason the pod may not be tried yet, or "" if it may: scheduling gates,
// other plugins at PreEnqueue, missing device claims, or an incomplete group, in this order. A pod
// without a profile has no gates.
func (s *scheduler) gateReason(p *cluster.Pod) string {
	profile := s.profiles[p.Spec().SchedulerName]
	if profile == nil {
		return ""
	}
	for _, gate := range profile.Gates {
		if message := gate.Admit(p); message != "" {
			return message
		}
	}
	if devices := devicesOf(profile); devices != nil {
		if message := devices.PreEnqueue(s.c, p); message != "" {
			return message
		}
	}
	return s.core.Incomplete(p.UID)
}
