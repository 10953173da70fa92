package simulate

import (
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
)

// Group is a decision about a pod group as a whole: it was not placed, and why. Groups that
// were placed are not listed; their pods are.
type Group struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// After is how much time had passed; left out at the beginning.
	After Seconds `json:"after,omitempty"`
	// MinCount is how many pods a gang needs at once; 0 for a basic group.
	MinCount int `json:"minCount,omitempty"`
	// Pods are the pending members. If they were tried, Fit of them found a node, and Needed would
	// have to.
	Pods   []string `json:"pods"`
	Fit    int      `json:"fit"`
	Needed int      `json:"needed,omitempty"`
	// Victims are the pods that have to leave so that the group fits. Where each member then goes
	// is its nominatedNode.
	Victims []Name `json:"victims"`
	// Message says why the group waits: how many pods of how many fit, and what stops the next one.
	Message string `json:"message"`
}

// workloadWithJob is the gate with which the Job controller makes gangs of Jobs. It is a gate
// of kube-controller-manager, and not of the scheduler.
const workloadWithJob = "WorkloadWithJob"

// GateNames are the feature gates that have an effect on what is simulated.
var GateNames = append(slices.Clone(groups.GateNames), workloadWithJob)

// Gates returns which features of pod groups are on, and whether Jobs become gangs. Gates in
// named are set as named. The others follow from the objects: an API server drops the fields
// of a gate that is off, and a gate whose fields no object has makes no difference. So
// objects with such fields mean that the gate is on. Gates that contradict each other are an
// error.
func Gates(named map[string]bool, set *manifest.Set) (gates groups.Gates, jobs bool, err error) {
	all := maps.Clone(named)
	if all == nil {
		all = map[string]bool{}
	}
	unless := func(name string, on bool) bool {
		if _, given := all[name]; !given {
			all[name] = on
		}
		return all[name]
	}
	on := unless(groups.GenericWorkload, true)
	unless(groups.TopologyAwareWorkloadScheduling, on)
	unless(groups.DRAWorkloadResourceClaims, on && slices.ContainsFunc(set.PodGroups, hasClaims))
	unless(groups.CompositePodGroups, on && all[groups.TopologyAwareWorkloadScheduling] && len(set.CompositePodGroups) > 0)
	jobs = unless(workloadWithJob, on && slices.ContainsFunc(set.Workloads, isOfJob))
	gates, err = groups.GatesOf(all)
	return gates, jobs && gates.Generic, err
}

// hasClaims reports whether a PodGroup has claims of its own, which need
// DRAWorkloadResourceClaims.
func hasClaims(g *schedulingv1beta1.PodGroup) bool { return len(g.Spec.ResourceClaims) > 0 }

// isOfJob reports whether the Job controller made the Workload.
func isOfJob(w *schedulingv1beta1.Workload) bool { return rules.ControllerKind(w) == rules.Job }

// showGroups shows pod groups as an API server would have them: with a UID, and the priority
// of their class. The objects of the set are not changed.
func (s *scheduler) showGroups(list []*schedulingv1beta1.PodGroup, catalog *admission.Catalog) {
	for _, g := range list {
		g = g.DeepCopy()
		if g.UID == "" {
			g.UID = types.UID("podgroup/" + g.Namespace + "/" + g.Name)
		}
		if g.Spec.Priority == nil && s.gates.Generic {
			g.Spec.Priority = priorityOf(g.Spec.PriorityClassName, catalog)
		}
		s.showObject(cycle.PodGroups, g)
	}
}

// priorityOf is the priority of a class, or of the default one if name is empty; nil if there
// is none.
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

// showComposites does the same with groups of groups.
func (s *scheduler) showComposites(list []*groups.CompositePodGroup, catalog *admission.Catalog) {
	if !s.gates.Composite {
		return
	}
	for _, g := range list {
		g = g.DeepCopy()
		if g.UID == "" {
			g.UID = types.UID("compositepodgroup/" + g.Namespace + "/" + g.Name)
		}
		if g.Spec.Priority == nil {
			g.Spec.Priority = priorityOf(g.Spec.PriorityClassName, catalog)
		}
		s.showObject(cycle.CompositePodGroups, g)
	}
}

// writeGroup writes a condition of a pod group. The object is a copy: the core has the other
// one.
func (s *scheduler) writeGroup(a cycle.WriteGroup) {
	g := a.Group.DeepCopy()
	meta.SetStatusCondition(&g.Status.Conditions, a.Condition)
	s.showChanged(cycle.PodGroups, g)
}

// groupOf is the pod group that the scheduler knows a pod to be a member of, or nil. It is
// nil for all pods without the gate for groups.
func (s *scheduler) groupOf(p *cluster.Pod) *groups.Group {
	if s.groups == nil || p == nil {
		return nil
	}
	return s.groups.Of(p.UID)
}

// hearTogether lists the decisions of one step, and returns the pod of each, nil for one that
// is no longer pending. Those about the members of a group that was not placed are summed up
// in one Group: its members point to it, and the victims are the group's and not theirs.
func (s *scheduler) hearTogether(decided []*decision.Decision) (heard []*pod) {
	placed := false
	for _, d := range decided {
		heard = append(heard, s.pending[d.UID])
		placed = placed || d.Result == decision.Placed
	}
	lines := map[*decision.Group]int{} // where it is listed; the groups of a tree are decided in one step
	for i, d := range decided {
		p, g := heard[i], d.Group
		switch {
		case p == nil:
			continue
		// If a pod was placed in this step, or the group is scheduled already or was never
		// tried, each member speaks for itself.
		case g == nil || placed || g.Scheduled || g.Tried == 0:
			s.recordDecision(p, d, false)
			continue
		}
		said := s.recordDecision(p, d, true)
		p.refusal = g.Message
		if said == nil { // it was listed already
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

// listHeld lists, once for all its pods, a group that keeps them out of the queue: it is
// incomplete, so that none of them was tried.
func (s *scheduler) listHeld(g *groups.Group, message string) {
	said := Group{Namespace: g.Namespace, Name: g.Name.Name, After: Seconds(s.clock.now), MinCount: g.MinCount(),
		Victims: []Name{}, Message: message, Pods: []string{}}
	var held []*pod
	for uid := range g.Members {
		if p := s.pending[uid]; p != nil && !p.listed && s.core.Incomplete(uid) != "" {
			held = append(held, p)
		}
	}
	sortQueued(held)
	for _, p := range held {
		s.report.addDecision(p, Pod{Message: message, Group: g.Name.Name}, true)
		p.listed = true
		said.Pods = append(said.Pods, p.Name)
	}
	s.report.said.Groups = append(s.report.said.Groups, said)
	s.report.addEvent(Event{Kind: groupPending, Namespace: g.Namespace, Name: g.Name.Name, Message: message})
}

// groupLines returns, for each of s.Pods, the index in s.Groups of the group with which it
// waits, or -1. A pod may be listed twice with one group at one time, so entries are used up
// in order.
func (s *Simulation) groupLines() []int {
	type key struct {
		pod   Name
		group string
		after Seconds
	}
	of := map[key][]int{} // a group that preempts may be listed again
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

// why returns in one line why the group was not placed.
func (g *Group) why() string {
	if len(g.Victims) == 0 {
		return g.Message
	}
	return fmt.Sprintf("preempts %s: %s", joinNames(g.Victims), g.Message)
}

// Group returns a pod group by its name, or nil. A group exists if its PodGroup does, or if pods
// name it.
func (w *World) Group(namespace, name string) *groups.Group {
	return w.scheduler.groupNamed(namespace, name)
}

// groupNamed returns a pod group by its name, or nil.
func (s *scheduler) groupNamed(namespace, name string) *groups.Group {
	if s.groups == nil {
		return nil
	}
	return s.groups.Get(cluster.Name{Namespace: namespace, Name: name})
}

// MembersOf lists the pods of a group by name, placed ones included. It looks at all pods.
func (w *World) MembersOf(g *groups.Group) (list []Found) {
	for _, p := range w.Each() {
		if p.Pod != nil && w.scheduler.groupOf(p.Pod) == g {
			list = append(list, p)
		}
	}
	return list
}

// TryGroup returns the outcome of an attempt for a group when its turn comes: pods from
// manifests that are ahead of it are placed first. It returns nil if no pod of the group
// waits. Nothing is placed of the group itself.
func (w *World) TryGroup(namespace, name string) *decision.GroupTrial {
	return w.scheduler.tryGroup(namespace, name)
}

// TryGroupWith returns what an attempt for a group would come to with more nodes, and with
// another spec of its PodGroup (nil: its own). Then it takes both back. Pods that are pending
// may be requeued by this, but none is tried.
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

// tryGroup is World.TryGroup.
func (s *scheduler) tryGroup(namespace, name string) *decision.GroupTrial {
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
	sortQueued(members)
	// Pods of a live cluster have had their turn. Pods of manifests are new, and those that
	// the queue has ahead of them may take their room.
	if len(members) > 0 && !Stored(members[0].object) {
		s.untilTurn(members[0])
	}
	return s.core.TryGroup(g.Name)
}
