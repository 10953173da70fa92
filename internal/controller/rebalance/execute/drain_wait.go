// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package execute

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/world"
)

// explainsAfter is the age at which a surge in progress reports its wait. Most surges are over by
// then.
const explainsAfter = 10 * time.Second

// Held is a pod with a delayed eviction and the reason, for events and for the drain's output.
type Held struct {
	Pod *rebalance.Departure
	Why string
}

// heldBack returns the reason a pod waits, and a remedy. A budget's refusal has only the number of
// healthy pods; heldBack adds the unready pod, which the user must look at.
func (d *Drainer) heldBack(p *rebalance.Departure, why string) Held {
	if p.Budget == "" || why == p.NoSurge {
		return Held{p, why}
	}
	if unready := d.cluster.unreadyOf(p.Namespace, p.Budget); unready != "" {
		why += "; " + unready
	}
	switch {
	case p.NoSurge != "":
		why += "; cannot surge: " + p.NoSurge
	case !d.options.Surge && strings.HasPrefix(p.Owner, "ReplicaSet/"):
		why += "; with --surge its successor comes first"
	}
	return Held{p, why}
}

// unreadyOf describes a budget's first unready pod and its cause, or returns "". It scans all pods,
// so it is called only before reporting.
func (c *cluster) unreadyOf(namespace, budget string) string {
	b, ok := world.Get[*policyv1.PodDisruptionBudget](c.World, namespace, budget)
	if !ok {
		return ""
	}
	var list []*v1.Pod
	for p := range c.covered(b) {
		if p.DeletionTimestamp == nil && !ready(p) {
			list = append(list, p)
		}
	}
	if len(list) == 0 {
		return ""
	}
	first := slices.MinFunc(list, func(a, b *v1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	text := unreadiness(first)
	if len(list) > 1 {
		text += fmt.Sprintf(", and %d more are not ready", len(list)-1)
	}

	return text
}

// unreadiness describes the first known cause of an unready pod: unscheduled, a container that does
// not start, or unspecified.
func unreadiness(p *v1.Pod) string {
	switch why := failing(p); {
	case p.Spec.NodeName == "":
		return p.Name + " has no node" + unschedulable(p)
	case why != "":
		return fmt.Sprintf("%s does not start: %s", p.Name, why)
	}
	return p.Name + " is not ready"
}

// explain reports the condition a surge waits for, if it takes long, without repeating the previous
// report.
func (ss *surges) explain(s *surge, victims []*v1.Pod, next *v1.Pod) {
	if at := s.since.Add(explainsAfter); ss.now.Before(at) {
		ss.wake(at)
		return
	}
	why := ss.removable(victims, next)
	switch {
	case next == nil:
		why = cmp.Or(ss.cluster.notMade(s.Namespace, s.Owner), "no additional pod has been created yet")
	case !ready(next):
		why = "its successor " + unreadiness(next)
	}
	if why != "" && why != s.reported {
		s.reported = why
		for _, p := range s.all() {
			ss.policy.report(p, Awaited, "", why)
		}
	}
}
