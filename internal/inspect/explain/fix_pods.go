// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/world"
)

// This file proposes changes against rejections caused by other pods: a taken port, anti-affinity,
// a missing companion, insufficient priority. It proposes deleting only pods without a controller,
// since a replacement could take the room again.

// oneGone proposes, for some of the nodes, deleting the least important pod that keeps the plugin
// from accepting the node. reason is appended to the text. It tries few nodes and pods, because
// each try prepares the plugin's filter again.
func (f *fixer) oneGone(plugin string, nodes []verdict, reason string) (edits []*edit) {
	const tried, perNode = 3, 24
	for _, v := range nodes[:min(tried, len(nodes))] {
		pods := slices.Clone(v.node.Pods)
		// The smallest loss comes first, and pods protected by a budget last.
		slices.SortFunc(pods, func(a, b *cluster.Pod) int {
			return cmp.Or(rules.FalseFirst(f.isProtected(a), f.isProtected(b)), byValue(a, b))
		})
		for _, p := range pods[:min(perNode, len(pods))] {
			if f.isRemovable(p) && f.acceptsWithout(plugin, v.node, p) {
				edits = append(edits, f.deletePods("DeletePod", fmt.Sprintf("delete pod %s from %s%s", f.nameOf(p),
					v.node.Name, reason), []*cluster.Pod{p}))
				break
			}
		}
	}
	return edits
}

// isRemovable reports whether deleting the pod helps. Deleting it does not help if it is already
// terminating, or if a controller replaces it: the replacement, even of lower priority, may take
// the room first, because the pending pod may be in back-off at that moment.
func (f *fixer) isRemovable(p *cluster.Pod) bool { return !p.Terminating && p.Class.Controller == nil }

// isProtected reports whether a disruption budget forbids evicting the pod now, even by itself.
func (f *fixer) isProtected(p *cluster.Pod) bool { return len(f.brokenBudgets([]*cluster.Pod{p})) > 0 }

// byValue orders pods by importance, the least important first: by priority, and then the youngest
// first. It is preemption's order with names as a tie-breaker.
func byValue(a, b *cluster.Pod) int {
	return cmp.Or(
		cmp.Compare(a.Class.Priority, b.Class.Priority), b.Created.Compare(a.Created),
		cmp.Compare(a.Namespace(), b.Namespace()), cmp.Compare(a.Name(), b.Name()),
	)
}

// acceptsWithout reports whether the plugin accepts the node once the given pods have left. Other
// plugins may still reject it; the search finds out.
func (f *fixer) acceptsWithout(plugin string, n *cluster.Node, pods ...*cluster.Pod) bool {
	trial := f.w.Trial()
	defer trial.Undo(trial.Mark())
	removePods(trial, pods)
	for _, by := range f.w.Profile(f.object.Spec.SchedulerName).Filters {
		if by.Name() == plugin {
			// The filter must be prepared again, because its state still counts the departed pods.
			j := judge{plugin, by.Filter(f.c, f.pod)}
			return j.Err == nil && j.rejectionOn(n) == nil
		}
	}
	return false
}

// fixPorts proposes freeing a host port, or not requesting it. It first tries the nodes where the
// fewest pods hold the ports.
func (f *fixer) fixPorts(_ string, nodes []verdict) (edits []*edit) {
	taken := f.takenPorts(nodes)
	// The search owns the slice of verdicts; its order must be preserved.
	best := slices.Clone(nodes)
	slices.SortStableFunc(best, func(a, b verdict) int {
		return cmp.Compare(len(plugins.PortHolders(f.pod, a.node)), len(plugins.PortHolders(f.pod, b.node)))
	})
	const tried = 3
	for _, v := range best[:min(tried, len(best))] {
		holders := plugins.PortHolders(f.pod, v.node)
		// All holders must go, so a single replaced holder defeats the change.
		if slices.ContainsFunc(holders, func(o *cluster.Pod) bool { return !f.isRemovable(o) }) {
			continue
		}
		edits = append(edits, f.deletePods("FreePort", fmt.Sprintf("free the port on %s: delete pod %s", v.node.Name,
			strings.Join(f.namesOf(holders), ", ")), holders))
	}
	if f.object.Spec.HostNetwork { // the API server would restore the port
		return edits
	}
	ports := strings.Join(answer.Mapped(taken, cluster.Port.String), ", ")
	return append(edits, f.onPod("DropHostPort", "do not request the host port "+ports, 25, func(p *v1.Pod) {
		for _, list := range [][]v1.Container{p.Spec.InitContainers, p.Spec.Containers} {
			for i := range list {
				for j := range list[i].Ports {
					if port := &list[i].Ports[j]; slices.Contains(taken, cluster.PortOf(port)) {
						port.HostPort, port.HostIP = 0, ""
					}
				}
			}
		}
	}))
}

// takenPorts returns the pending pod's host ports in use on some of the nodes.
func (f *fixer) takenPorts(nodes []verdict) (taken []cluster.Port) {
	for _, mine := range f.pod.Class.Ports.List {
		if slices.ContainsFunc(nodes, func(v verdict) bool {
			return slices.ContainsFunc(plugins.PortHolders(f.pod, v.node), func(o *cluster.Pod) bool {
				return slices.ContainsFunc(o.Class.Ports.List, mine.Conflicts)
			})
		}) {
			taken = append(taken, mine)
		}
	}
	return taken
}

// fixAntiAffinity proposes deleting the pods that conflict with the pending pod because of their
// anti-affinity or its own, if they are few.
func (f *fixer) fixAntiAffinity(plugin string, nodes []verdict) (edits []*edit) {
	const tried, most = 4, 4
	type option struct {
		node *cluster.Node
		pods []*cluster.Pod
	}
	var options []option

	for _, v := range nodes {
		if !slices.ContainsFunc(v.rejections, func(r rejection) bool { return r.plugin == plugin && !r.Unresolvable }) {
			continue
		}
		if pods := f.inTheWay(v.node, most); len(pods) > 0 {
			options = append(options, option{v.node, pods})
		}
		// These are enough to choose from. Each option requires a scan of all pods of the cluster.
		if len(options) > 64 {
			break
		}
	}

	slices.SortStableFunc(options, func(a, b option) int { return cmp.Compare(len(a.pods), len(b.pods)) })
	for _, o := range options[:min(tried, len(options))] {
		names := slices.Sorted(slices.Values(f.namesOf(o.pods)))
		edits = append(edits, f.deletePods("DeletePod", fmt.Sprintf("delete pod %s, whose anti-affinity domain includes %s",
			strings.Join(names, ", "), o.node.Name), o.pods))
	}

	return edits
}

// inTheWay lists the pods in the node's domains that conflict with the pending pod because of their
// anti-affinity or its own. It returns nil, which rules out the node, if there are more such pods
// than most, or if one of them cannot be removed.
func (f *fixer) inTheWay(n *cluster.Node, most int) (list []*cluster.Pod) {
	namespaces := f.c.NamespaceLabels(f.pod.Namespace())
	for _, other := range f.c.Nodes {
		if other == nil {
			continue
		}
		for _, o := range other.Pods {
			theirs := slices.ContainsFunc(o.Class.RequiredAntiAffinity, func(t cluster.Term) bool {
				return inSameDomain(n, other, t.TopologyKey) && t.Matches(f.pod.Class, namespaces)
			})
			ours := slices.ContainsFunc(f.pod.Class.RequiredAntiAffinity, func(t cluster.Term) bool {
				return inSameDomain(n, other, t.TopologyKey) && t.Matches(o.Class, f.c.NamespaceLabels(o.Namespace()))
			})
			if theirs || ours {
				if list = append(list, o); len(list) > most || !f.isRemovable(o) {
					return nil
				}
			}
		}
	}

	return list
}

// inSameDomain reports whether two nodes have the same value of a topology key. Nodes without the
// label belong to no domain.
func inSameDomain(a, b *cluster.Node, key string) bool {
	x, ok := a.Lookup(key)
	y, also := b.Lookup(key)
	return ok && also && x == y
}

// addCompanion proposes to run a pod required by the pending pod's affinity. It returns nil if the
// term has a namespace selector, or no simple label selector (labels without expressions), or if
// the pod would not fit even with the companion.
func (f *fixer) addCompanion(nodes []verdict, t *v1.PodAffinityTerm) *edit {
	if t.LabelSelector == nil || len(t.LabelSelector.MatchLabels) == 0 || len(t.LabelSelector.MatchExpressions) > 0 ||
		t.NamespaceSelector != nil {
		return nil
	}

	namespace := f.object.Namespace
	if len(t.Namespaces) > 0 {
		namespace = t.Namespaces[0]
	}

	for _, v := range sortRoomiest(nodes)[:min(3, len(nodes))] {
		// The companion is on the node only while the edit is tried.
		object := &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "companion", UID: "companion", Labels: t.LabelSelector.MatchLabels},
			Spec:       v1.PodSpec{NodeName: v.node.Name, SchedulerName: f.object.Spec.SchedulerName},
		}
		e := &edit{
			Change: Change{
				Kind: "RunPod", Object: "pod/" + namespace + "/",
				Text: fmt.Sprintf("run a pod labelled %s in namespace %s, in the same %s as %s",
					selectorText(t.LabelSelector), namespace, t.TopologyKey, v.node.Name),
			},
			size: 35,
			set:  func(w *world.World) { w.Put(object) },
		}
		if f.tryEdits(e) != "" {
			return e
		}
	}

	return nil
}

// fixPriority proposes the lowest priority class sufficient for the pod to preempt. If only its
// preemption policy keeps the pod from preempting, it may propose a new class of the same value.
func (f *fixer) fixPriority() []*edit {
	profile := f.w.Profile(f.object.Spec.SchedulerName)
	if f.preempts || profile == nil || !profile.Preemption {
		return nil
	}
	never := ptr.Deref(f.object.Spec.PreemptionPolicy, "") == v1.PreemptNever
	for _, class := range f.classes {
		// A lower class does not help. A class of the same value helps only a pod with the policy
		// Never.
		if class.Value < f.pod.Class.Priority || class.Value == f.pod.Class.Priority && !never ||
			ptr.Deref(class.PreemptionPolicy, "") == v1.PreemptNever {
			continue
		}
		text := fmt.Sprintf("give it the priority class %s (%d), so that it preempts ", class.Name, class.Value)
		if e := f.withClass("RaisePriority", text, 50, class.Name, class.Value); e != nil {
			return []*edit{e}
		}
	}
	if !never {
		return nil
	}

	// A pod takes its policy from its class, and the policy of a class is immutable.
	name := cmp.Or(f.object.Spec.PriorityClassName, "priority") + "-preempting"
	if slices.ContainsFunc(f.classes, func(c *schedulingv1.PriorityClass) bool { return c.Name == name }) {
		return nil
	}
	// The same value keeps the pod's place in the queue.
	value := f.pod.Class.Priority
	text := fmt.Sprintf("give it a new priority class %s of the same value (%d) that may preempt, so that it preempts ", name, value)
	e := f.withClass("AllowPreemption", text, 30, name, value)
	if e == nil {
		return nil
	}
	e.before = fmt.Sprintf("kubectl create priorityclass %s --value=%d", name, value)
	e.class = &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value}
	return []*edit{e}
}

// withClass gives the pod a priority class. It returns nil if the pod then preempts no pods,
// because it still does not fit, or fits without preemption. It appends the victims' names to the
// text.
func (f *fixer) withClass(kind, text string, size int, name string, value int32) *edit {
	e := f.onPod(kind, text, size, func(p *v1.Pod) {
		p.Spec.PriorityClassName, p.Spec.Priority, p.Spec.PreemptionPolicy = name, &value, new(v1.PreemptLowerPriority)
	})

	e.preempts = true
	if f.tryEdits(e) == "" || len(e.preempted.Victims) == 0 {
		return nil
	}

	// The victims are known because withClass has tried the edit.
	victims := e.preempted.Victims
	e.Text += answer.List(len(victims), func(i int) string { return f.nameOf(victims[i]) })
	switch n := e.preempted.Violations; {
	case n == 0:
		return e
	case len(victims) == 1:
		e.Text += ", against its disruption budget"
	default:
		e.Text += fmt.Sprintf(", against the disruption budget of %d of them", n)
	}

	// Suggest violating a budget only after smaller changes.
	e.size += 50
	return e
}
