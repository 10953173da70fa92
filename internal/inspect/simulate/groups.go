// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
)

// Group reports a pod group that could not be placed as a whole, and the reason. Placed groups are
// not listed; their pods are.
type Group struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// After is the time passed since the start; omitted at the start.
	After Seconds `json:"after,omitempty"`
	// MinCount is the number of pods a gang needs simultaneously; 0 for a basic group.
	MinCount int `json:"minCount,omitempty"`
	// Pods lists the pending members. If they were tried, Fit is the number that found a node, and
	// Needed is the required number.
	Pods   []string `json:"pods"`
	Fit    int      `json:"fit"`
	Needed int      `json:"needed,omitempty"`
	// Victims lists the pods to preempt for the group. NominatedNode in a member's entry of
	// [Simulation].Pods is the member's future node.
	Victims []Name `json:"victims"`
	// Message explains why the group waits: how many of its pods fit, and why the next one does
	// not.
	Message string `json:"message"`
}

// workloadWithJob gates the creation of gangs for Jobs by the Job controller. It is a gate of
// kube-controller-manager, not of the scheduler.
const workloadWithJob = "WorkloadWithJob"

// GateNames are the feature gates with an effect on the simulation.
var GateNames = append(slices.Clone(groups.GateNames), workloadWithJob)

// Gates returns the enabled features of pod groups, and whether Jobs become gangs. Gates in named
// are set as given; the remaining gates follow from the objects. An API server drops the fields of
// a disabled gate, so objects with such fields imply an enabled gate; without such fields, the gate
// makes no difference. Contradictory gates are an error.
func Gates(named map[string]bool, set *manifest.Set) (gates groups.Gates, jobs bool, err error) {
	all := map[string]bool{}
	maps.Copy(all, named)
	unless := func(name string, on bool) bool {
		if _, given := all[name]; !given {
			all[name] = on
		}
		return all[name]
	}
	on := unless(groups.GenericWorkload, true)
	unless(groups.TopologyAwareWorkloadScheduling, on)
	// Pod groups with resource claims need DRAWorkloadResourceClaims.
	claims := func(g *schedulingv1beta1.PodGroup) bool { return len(g.Spec.ResourceClaims) > 0 }
	unless(groups.DRAWorkloadResourceClaims, on && slices.ContainsFunc(set.PodGroups, claims))
	unless(groups.CompositePodGroups, on && all[groups.TopologyAwareWorkloadScheduling] && len(set.CompositePodGroups) > 0)
	jobs = unless(workloadWithJob, on && slices.ContainsFunc(set.Workloads, isOfJob))
	gates, err = groups.GatesOf(all)
	return gates, jobs && gates.Generic, err
}

// isOfJob reports whether the Job controller created the Workload.
func isOfJob(w *schedulingv1beta1.Workload) bool { return rules.ControllerKind(w) == rules.Job }

// showGroups shows pod groups to the core. Like an API server, it completes them with a UID and the
// priority of their class. It does not modify the objects of the set.
func (s *scheduler) showGroups(list []*schedulingv1beta1.PodGroup, catalog *admission.Catalog) {
	for _, g := range list {
		g = g.DeepCopy()
		g.UID = cmp.Or(g.UID, types.UID("podgroup/"+g.Namespace+"/"+g.Name))
		if g.Spec.Priority == nil && s.gates.Generic {
			g.Spec.Priority = priorityOf(g.Spec.PriorityClassName, catalog)
		}
		s.showObject(cycle.PodGroups, g)
	}
}

// priorityOf returns the priority of a class, or of the default class if name is empty; nil without
// such a class.
func priorityOf(name string, catalog *admission.Catalog) *int32 {
	class, err := catalog.PriorityClass(name)
	if name == "" {
		class, err = catalog.DefaultPriorityClass()
	}
	if err != nil || class == nil {
		return nil
	}
	return &class.Value
}

// showComposites is showGroups for composite groups.
func (s *scheduler) showComposites(list []*groups.CompositePodGroup, catalog *admission.Catalog) {
	if !s.gates.Composite {
		return
	}
	for _, g := range list {
		g = g.DeepCopy()
		g.UID = cmp.Or(g.UID, types.UID("compositepodgroup/"+g.Namespace+"/"+g.Name))
		g.Spec.Priority = cmp.Or(g.Spec.Priority, priorityOf(g.Spec.PriorityClassName, catalog))
		s.showObject(cycle.CompositePodGroups, g)
	}
}

// groupOf returns the pod's group as known to the scheduler, or nil. Without the gate for groups,
// it is always nil.
func (s *scheduler) groupOf(p *cluster.Pod) *groups.Group {
	if s.groups == nil || p == nil {
		return nil
	}
	return s.groups.GroupOf(p.UID())
}

// hearTogether records the decisions of one step and returns their pods, nil for a pod no longer
// pending. Decisions about the members of an unplaced group are combined in one Group, which lists
// the victims for all members.
func (s *scheduler) hearTogether(decided []*decision.Decision) (heard []*pod) {
	placed := false
	for _, d := range decided {
		heard = append(heard, s.pending[d.UID])
		placed = placed || d.Result == decision.Placed
	}
	lines := map[*decision.Group]int{} // index of the group's line; the groups of a tree are decided in one step
	for i, d := range decided {
		p, g := heard[i], d.Group
		switch {
		case p == nil:
			continue
		// If a pod was placed in this step, or the group is already scheduled or was never tried,
		// each member is listed separately.
		case g == nil || placed || g.Scheduled || g.Tried == 0:
			s.recordDecision(p, d, false)
			continue
		}
		said := s.recordDecision(p, d, true)
		p.refusal = g.Message
		if said == nil { // the pod is already listed
			continue
		}
		if _, known := lines[g]; !known {
			lines[g] = len(s.report.said.Groups)
			s.report.said.Groups = append(s.report.said.Groups, Group{
				Namespace: d.Namespace, Name: g.Name, After: Seconds(s.clock.now), MinCount: g.MinCount, Fit: g.Fit, Needed: g.Needed,
				Victims: said.Victims, Message: g.Message, Pods: []string{},
			})
			s.report.addEvent(Event{Kind: groupPending, Namespace: d.Namespace, Name: g.Name, Message: g.Message})
		}
		said.Victims = []Name{}
		fails := &s.report.said.Groups[lines[g]]
		fails.Pods = append(fails.Pods, d.Name)
	}
	return heard
}

// listHeld lists an incomplete group once for all its pods. An incomplete group gates its pods, so
// none of them was tried.
func (s *scheduler) listHeld(g *groups.Group, message string) {
	said := Group{Namespace: g.Namespace, Name: g.Name.Name, After: Seconds(s.clock.now), MinCount: g.MinCount(),
		Victims: []Name{}, Message: message, Pods: []string{}}
	var held []*pod
	for uid := range g.Members {
		if p := s.pending[uid]; p != nil && !p.listed && s.core.Incomplete(uid) != "" {
			held = append(held, p)
		}
	}
	slices.SortFunc(held, compareQueued)
	for _, p := range held {
		s.report.addDecision(p, Pod{Message: message, Group: g.Name.Name}, true)
		p.listed = true
		said.Pods = append(said.Pods, p.Name())
	}
	s.report.said.Groups = append(s.report.said.Groups, said)
	s.report.addEvent(Event{Kind: groupPending, Namespace: g.Namespace, Name: g.Name.Name, Message: message})
}

// groupLines returns, for each entry of s.Pods, the index in s.Groups of the group it waits for, or
// -1. A pod may have several entries with the same group and time, so groups are matched in order.
func (s *Simulation) groupLines() []int {
	type key struct {
		pod   Name
		group string
		after Seconds
	}
	of := map[key][]int{} // lines of a group; a preempting group may be listed more than once
	for i, g := range s.Groups {
		for _, name := range g.Pods {
			k := key{Name{g.Namespace, name}, g.Name, g.After}
			of[k] = append(of[k], i)
		}
	}

	lines := make([]int, len(s.Pods))
	for i := range s.Pods {
		p := &s.Pods[i]
		k := key{Name{p.Namespace, p.Name}, p.Group, p.After}
		lines[i] = -1
		if left := of[k]; p.Node == "" && len(left) > 0 {
			lines[i], of[k] = left[0], left[1:]
		}
	}
	return lines
}

// why returns a one-line reason the group was not placed.
func (g *Group) why() string {
	if len(g.Victims) == 0 {
		return g.Message
	}
	return fmt.Sprintf("preempts %s: %s", joinNames(g.Victims), g.Message)
}

// Group returns a pod group by name, or nil. A group exists if its PodGroup exists or pods refer to
// it.
func (w *World) Group(namespace, name string) *groups.Group {
	return w.scheduler.groupNamed(namespace, name)
}

// groupNamed returns a pod group by name, or nil.
func (s *scheduler) groupNamed(namespace, name string) *groups.Group {
	if s.groups == nil {
		return nil
	}
	return s.groups.Get(cluster.Name{Namespace: namespace, Name: name})
}

// MembersOf lists the pods of a group, including placed ones, by name. It visits all pods.
func (w *World) MembersOf(g *groups.Group) []Found {
	return slices.DeleteFunc(w.Each(), func(p Found) bool { return p.Pod == nil || w.scheduler.groupOf(p.Pod) != g })
}

// TryGroup returns the outcome of an attempt for a group at its turn: manifest pods ahead of it in
// the queue are placed first. It returns nil if the group has no pending pods. It places none of
// the group's pods.
func (w *World) TryGroup(namespace, name string) *decision.GroupTrial {
	s := &w.scheduler
	g := s.groupNamed(namespace, name)
	if g == nil {
		return nil
	}
	var members []*pod
	for uid := range g.Members {
		if p := s.pending[uid]; p != nil {
			members = append(members, p)
		}
	}
	slices.SortFunc(members, compareQueued)
	// Pods of a live cluster have already been tried. Manifest pods are new, and pods ahead of them
	// in the queue may be placed first.
	if len(members) > 0 && !Stored(members[0].object) {
		s.untilTurn(members[0])
	}
	return s.core.TryGroup(g.Name)
}

// TryGroupWith returns the outcome of an attempt for a group with additional nodes and another spec
// of its PodGroup (nil: its current spec), and reverts both. Pending pods may be requeued, but none
// is tried.
func (w *World) TryGroupWith(g *groups.Group, more []*v1.Node, spec *schedulingv1beta1.PodGroupSpec) *decision.GroupTrial {
	s, was := w.scheduler, g.Object
	for _, n := range more {
		s.showObject(cycle.Nodes, n)
		defer s.showGone(cycle.Nodes, n)
	}
	if spec != nil {
		other := was.DeepCopy()
		other.Spec = *spec
		s.showObject(cycle.PodGroups, other)
		defer s.showObject(cycle.PodGroups, was)
	}
	return s.core.TryGroup(g.Name)
}
