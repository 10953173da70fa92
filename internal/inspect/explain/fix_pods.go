package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/world"
)

// Changes against what other pods cause: a taken port, anti-affinity, a missing
// companion, a priority that is too low. Where pods are to be deleted, only such are
// proposed as nothing replaces: a replacement could take the room again.

// oneGone proposes, for some of the nodes, to delete the least important pod whose
// removal satisfies the plugin there. reason is appended to the text. Few nodes and pods
// are tried, because each asks the plugin anew.
func (f *fixer) oneGone(plugin string, nodes []verdict, reason string) (edits []*edit) {
	const tried, perNode = 3, 24
	for _, v := range nodes[:min(tried, len(nodes))] {
		pods := slices.Clone(v.node.Pods)
		slices.SortFunc(pods, f.byLoss)
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

// isRemovable reports whether deleting the pod helps. It does not if the pod is leaving anyway, or
// if a controller replaces it: the replacement may get the room first, even one of lower priority,
// because the pending pod may be in back-off at that moment.
func (f *fixer) isRemovable(p *cluster.Pod) bool { return !p.Terminating && p.Class.Controller == nil }

// byLoss orders pods by how little is lost with them, the least first: those that a
// budget protects come last.
func (f *fixer) byLoss(a, b *cluster.Pod) int {
	return cmp.Or(boolCompare(f.isProtected(a), f.isProtected(b)), byValue(a, b))
}

// isProtected reports whether a disruption budget does not allow the pod to go now, even
// if it is the only one.
func (f *fixer) isProtected(p *cluster.Pod) bool { return len(f.brokenBudgets([]*cluster.Pod{p})) > 0 }

// byValue orders pods by how important they are, the least first: by priority, and among
// equals the youngest first. It is preemption's order, made total by names.
func byValue(a, b *cluster.Pod) int {
	return cmp.Or(
		cmp.Compare(a.Class.Priority, b.Class.Priority), b.Created.Compare(a.Created),
		cmp.Compare(a.Namespace(), b.Namespace()), cmp.Compare(a.Name, b.Name),
	)
}

// acceptsWithout reports whether the plugin accepts the node once other pods have gone.
// Other plugins may still reject it; the search finds out.
func (f *fixer) acceptsWithout(plugin string, n *cluster.Node, pods ...*cluster.Pod) bool {
	trial := f.w.Trial()
	defer trial.Undo(trial.Mark())
	removePods(trial, pods)
	for _, by := range f.w.Profile(f.object.Spec.SchedulerName).Filters {
		if by.Name() == plugin {
			// The filter is prepared anew, because what it had prepared counts the pods
			// that have gone.
			j := judge{plugin, by.Filter(f.c, f.pod)}
			return j.Err == nil && j.rejectionOn(n) == nil
		}
	}
	return false
}

// fixPorts proposes to free a host port, or to do without it. Nodes with the fewest
// holders of the ports come first.
func (f *fixer) fixPorts(_ string, nodes []verdict) (edits []*edit) {
	taken := f.takenPorts(nodes)
	// The verdicts are the search's; their order must stay.
	best := slices.Clone(nodes)
	slices.SortStableFunc(best, func(a, b verdict) int {
		return cmp.Compare(len(plugins.PortHolders(f.pod, a.node)), len(plugins.PortHolders(f.pod, b.node)))
	})
	const tried = 3
	for _, v := range best[:min(tried, len(best))] {
		// All pods on the node that have one of the ports.
		holders := plugins.PortHolders(f.pod, v.node)
		// All holders have to go, so one that comes back spoils it.
		if slices.ContainsFunc(holders, func(o *cluster.Pod) bool { return !f.isRemovable(o) }) {
			continue
		}
		var names []string
		for _, o := range holders {
			names = append(names, f.nameOf(o))
		}
		edits = append(edits, f.deletePods("FreePort", fmt.Sprintf("free the port on %s: delete pod %s", v.node.Name,
			strings.Join(names, ", ")), holders))
	}
	if f.object.Spec.HostNetwork { // the API server would set the port again
		return edits
	}
	var names []string
	for _, port := range taken {
		names = append(names, port.String())
	}
	return append(edits, f.onPod("DropHostPort", "do not ask for the host port "+strings.Join(names, ", "), 25, func(p *v1.Pod) {
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

// takenPorts are those of the pending pod's host ports that are in use on some of the nodes.
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

// fixAntiAffinity proposes to delete pods that the pending one has anti-affinity to, or
// that have anti-affinity to it, where few of them are in the way.
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
		// Enough to choose from. Each option has looked at all pods of the cluster.
		if len(options) > 64 {
			break
		}
	}

	slices.SortStableFunc(options, func(a, b option) int { return cmp.Compare(len(a.pods), len(b.pods)) })
	for _, o := range options[:min(tried, len(options))] {
		var names []string
		for _, p := range o.pods {
			names = append(names, f.nameOf(p))
		}
		slices.Sort(names)
		edits = append(edits, f.deletePods("DeletePod", fmt.Sprintf("delete pod %s, whose anti-affinity domain includes %s",
			strings.Join(names, ", "), o.node.Name), o.pods))
	}

	return edits
}

// inTheWay lists the pods in the node's domains that conflict with the pending pod by the
// anti-affinity of either. It returns none if there are more than most, or if one of them
// cannot be removed: then the node is no option.
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

// inSameDomain reports whether two nodes have the same value of a topology key. Nodes
// without the label are in no domain.
func inSameDomain(a, b *cluster.Node, key string) bool {
	x, ok := a.Lookup(key)
	y, also := b.Lookup(key)
	return ok && also && x == y
}

// addCompanion proposes to run a pod that the pending one's affinity requires. It returns
// nil for selectors that no single pod can be made for, and if the pod would not fit
// beside the companion either.
func (f *fixer) addCompanion(nodes []verdict, t *v1.PodAffinityTerm) *edit {
	// Only a selector by labels says which labels the companion needs.
	if t.LabelSelector == nil || len(t.LabelSelector.MatchLabels) == 0 || len(t.LabelSelector.MatchExpressions) > 0 ||
		t.NamespaceSelector != nil {
		return nil
	}

	namespace := f.object.Namespace
	if len(t.Namespaces) > 0 {
		namespace = t.Namespaces[0]
	}

	for _, v := range sortRoomiest(nodes)[:min(3, len(nodes))] {
		// The companion is shown to the engine on the node, and is none of the world's
		// pods.
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

// fixPriority proposes a priority class with which the pod preempts others: the lowest
// that is enough. If the pod must not preempt at all, a new class of the same value may
// do.
func (f *fixer) fixPriority() []*edit {
	profile := f.w.Profile(f.object.Spec.SchedulerName)
	if f.preempts || profile == nil || !profile.Preemption {
		return nil
	}
	never := f.object.Spec.PreemptionPolicy != nil && *f.object.Spec.PreemptionPolicy == v1.PreemptNever
	for _, class := range f.classes {
		// A lower class does not help, nor does one of the same value, unless it is only
		// the policy that keeps the pod from preempting.
		if class.Value < f.pod.Class.Priority || class.Value == f.pod.Class.Priority && !never || neverPreempts(class) {
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

	// A pod's policy is that of its class, and that of a class cannot be changed.
	name := cmp.Or(f.object.Spec.PriorityClassName, "priority") + "-preempting"
	if slices.ContainsFunc(f.classes, func(c *schedulingv1.PriorityClass) bool { return c.Name == name }) {
		return nil
	}
	// The same value keeps the pod's place among the others.
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

// neverPreempts reports whether pods of the class do not preempt.
func neverPreempts(class *schedulingv1.PriorityClass) bool {
	return class.PreemptionPolicy != nil && *class.PreemptionPolicy == v1.PreemptNever
}

// withClass gives the pod a priority class. It returns nil if the pod then preempts
// nobody: either it still has no node, or it has one without that. The text is completed
// with the victims' names.
func (f *fixer) withClass(kind, text string, size int, name string, value int32) *edit {
	e := f.onPod(kind, text, size, func(p *v1.Pod) {
		lower := v1.PreemptLowerPriority
		p.Spec.PriorityClassName, p.Spec.Priority, p.Spec.PreemptionPolicy = name, &value, &lower
	})

	e.preempts = true
	if f.tryEdits(e) == "" || len(e.preempted.Victims) == 0 {
		return nil
	}

	// They are known because withClass has tried the edit.
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

	// Breaking a budget is what users want last.
	e.size += 50
	return e
}
