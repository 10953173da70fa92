// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package execute

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/admission/evictionguard"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/world"
)

// judge determines the rule of a held pod from the annotations of its workload and its namespace,
// and applies the policies that need no plan.
func (g *Guard) judge(h *heldPod, pod *v1.Pod) {
	var workload, namespace map[string]string
	if owner := g.cluster.Workloads().ControllerOf(pod); owner != nil {
		workload = owner.Object.GetAnnotations()
		if top := g.cluster.Workloads().ControllerOf(owner.Object); top != nil {
			workload = top.Object.GetAnnotations()
		}
	}
	if ns, ok := world.Get[*v1.Namespace](g.cluster.World, "", pod.Namespace); ok {
		namespace = ns.Annotations
	}
	h.rule = g.options.RuleOf(workload, namespace)
	switch {
	case h.rule.Policy == evictionguard.Allow:
		h.final, h.wanted = true, evictionguard.Admitted+"the policy of its workload"
	case h.rule.Policy == evictionguard.Finish && rules.ControllerKind(pod) == rules.Job:
		h.final, h.wanted = true, evictionguard.Held+"waiting until it finishes"
	}
}

// expire admits or denies an eviction at its deadline. A surge in progress is not given up.
func (g *Guard) expire(h *heldPod) {
	left := h.rule.Deadline - g.wall().Sub(h.requested)
	switch {
	case left > 0:
		g.wake(g.now.Add(left))
	case !strings.HasPrefix(h.wanted, evictionguard.Admitted) && !strings.HasPrefix(h.wanted, evictionguard.Denied):
		h.final = true
		if why := fmt.Sprintf("held for %v: %s", h.rule.Deadline, strings.TrimPrefix(h.wanted, evictionguard.Held)); h.rule.Deny {
			h.wanted = evictionguard.Denied + why
		} else {
			h.wanted = evictionguard.Admitted + why
		}
	}
}

// admits reports whether a pod that cannot be replaced first leaves without a proof.
func (g *Guard) admits(uid types.UID) bool {
	h := g.held[uid]
	return h != nil && h.rule.Policy != evictionguard.Place && g.options.Fallback != evictionguard.Place
}
