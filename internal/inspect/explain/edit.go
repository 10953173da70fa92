package explain

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/world"
)

// edit is a change that can be made and undone. The embedded Change is what is published
// of it; the other fields are how it is tried.
type edit struct {
	Change
	size int // see Suggestion.Size
	// One of these is set.
	pod  func(*v1.Pod)
	node *nodeEdit
	add  *v1.Node // a node that is added
	// like is the node that the added one is like: its CSINode is copied with it.
	like   string
	delete []*cluster.Pod       // pods that go
	set    func(w *world.World) // other objects
	parts  []*edit              // edits that only help together
	// preempts is set if the pod fits by preempting others: the victims are removed before it is
	// tried again. preempted is what was found then.
	preempts  bool
	preempted decide.Preemption
	// before is the command that has to come before that of the change, such as the
	// creation of a class.
	before string
	class  *schedulingv1.PriorityClass // created by before
	// otherwise is a larger edit for the case that the rehearsal refutes this one.
	otherwise *edit
}

// joinEdits is several edits as one, which are tried together. It has no text of its own.
func joinEdits(edits []*edit) *edit {
	all := &edit{parts: edits}
	for _, e := range edits {
		all.size += e.size
	}
	return all
}

// splitEdits lists edits with the joined ones taken apart: each is tried and
// published by itself then.
func splitEdits(edits []*edit) (list []*edit) {
	for _, e := range edits {
		if e.parts == nil {
			list = append(list, e)
		} else {
			list = append(list, e.parts...)
		}
	}
	return list
}

// nodeEdit is how a node is changed. alter gets a copy.
type nodeEdit struct {
	name  string
	alter func(*v1.Node)
}

// bench is where edits are tried: the world and the pending pod. Edits change the cluster
// itself, for the moment of a try, rather than a copy of it. Whatever is done is undone
// in the reverse order, so between two tries the cluster is as it was.
type bench struct {
	w       *simulate.World
	c       *cluster.Cluster
	object  *v1.Pod // the pod as it is, without a node
	pod     *cluster.Pod
	classes []*schedulingv1.PriorityClass // the lowest first
	// tries counts the questions to the engine; search stops at mostTries.
	tries int
}

// tryEdits makes the edits, asks the engine for a node, and undoes them. node is empty if
// there is none. A pod that may not be tried, or that no profile serves, has none.
func (b *bench) tryEdits(edits ...*edit) (node string) {
	b.tries++
	object := b.object
	var preempts *edit
	trial := b.w.Trial()
	defer trial.Undo(trial.Mark())
	for _, e := range edits {
		switch {
		case e.pod != nil:
			// Several edits may change the pod; all of them change one copy.
			if object == b.object {
				object = b.object.DeepCopy()
			}
			e.pod(object)
		case e.node != nil:
			after := b.w.Node(e.node.name).DeepCopy()
			e.node.alter(after)
			trial.Put(after)
		case e.add != nil:
			b.addNode(e)
		case e.delete != nil:
			removePods(trial, e.delete)
		case e.set != nil:
			e.set(trial)
		}
		if e.preempts {
			preempts = e
		}
	}

	// An edited pod is another pod to the engine: it may be of another class, and is
	// nominated nowhere.
	p := b.pod
	if object != b.object {
		object.Status.NominatedNodeName = ""
		p = b.c.Pending(object)
	}

	d := b.w.Decider(object.Spec.SchedulerName)
	if d == nil || b.w.Gate(p) != "" {
		return ""
	}

	decision := d.Decide(p)
	if decision.Node == nil && preempts != nil {
		// The victims have to go before the pod can have the node. Whether it then gets
		// that node is asked again.
		if preempts.preempted = d.Preempt(p); preempts.preempted.Node != nil {
			removePods(trial, preempts.preempted.Victims)
			decision = d.Decide(p)
		}
	}

	if decision.Node == nil || !runsOn(object, decision.Node) {
		return ""
	}
	return decision.Node.Name
}

// runsOn reports whether the node has the pod's operating system. No plugin of the scheduler
// compares them: the kubelet rejects the pod.
func runsOn(p *v1.Pod, n *cluster.Node) bool {
	os, labelled := n.Lookup(v1.LabelOSStable)
	return p.Spec.OS == nil || !labelled || string(p.Spec.OS.Name) == os
}

// addNode adds a node, with the volume limits of the node that it is like.
func (b *bench) addNode(e *edit) {
	b.w.Trial().Put(e.add)
	if csi := b.csiNodeLike(e); csi != nil {
		b.w.Trial().Put(csi)
	}
}

// csiNodeLike returns the CSINode of an added node, nil if the one it resembles has none.
func (b *bench) csiNodeLike(e *edit) *storagev1.CSINode {
	csi, ok := b.c.CSINodes.Get("", e.like)
	if !ok {
		return nil
	}
	csi = csi.DeepCopy()
	csi.Name = e.add.Name
	return csi
}

// removePods takes pods off their nodes, but for those that another edit has removed.
func removePods(w *world.World, pods []*cluster.Pod) {
	for _, p := range pods {
		if p.Node != nil {
			w.Remove(p)
		}
	}
}

// isAhead reports whether another pod is pending, too, and on its node here because its
// turn comes first. In the cluster it is not there yet, so no command can delete it from
// there.
func (b *bench) isAhead(p *cluster.Pod) bool {
	return slices.ContainsFunc(b.w.Pods(), func(d simulate.Pod) bool {
		return d.Namespace == p.Namespace() &&
			d.Name == p.Name && d.Node != ""
	})
}

// nameOf names another pod as namespace/name, with a note if it is ahead in the queue.
func (b *bench) nameOf(p *cluster.Pod) string {
	name := p.Namespace() + "/" + p.Name
	if b.isAhead(p) {
		name += " (ahead in the queue)"
	}
	return name
}

// podRef is the pod's name as changes write it: pod/NAMESPACE/NAME.
func (b *bench) podRef() string { return "pod/" + b.object.Namespace + "/" + b.object.Name }

// onPod is a change of the pod itself. Its patch says what has to change, in the pod or
// in the template that it is created from. Its command is worked out once it is known to
// help: most edits are dropped. size orders suggestions; see Suggestion.Size.
func (b *bench) onPod(kind, text string, size int, alter func(*v1.Pod)) *edit {
	e := &edit{Change: Change{Kind: kind, Object: b.podRef(), Text: text}, size: size, pod: alter}
	after := b.object.DeepCopy()
	alter(after)
	e.Patch = mergePatch(b.object, after, v1.Pod{})
	e.Template = keeperOf(b.w, b.object).holderRef()
	return e
}

// onNode is a change of a node. command may be empty: kubectl cannot make a node recover.
func (b *bench) onNode(kind, node, text, command string, size int, alter func(*v1.Node)) *edit {
	e := &edit{Change: Change{Kind: kind, Object: "node/" + node, Text: text, Command: command}, size: size, node: &nodeEdit{node, alter}}
	before := b.w.Node(node)
	after := before.DeepCopy()
	alter(after)
	e.Patch = mergePatch(before, after, v1.Node{})
	return e
}

// removeEdit has pods leave. It is for what happens anyway, and is not published.
func (b *bench) removeEdit(pods []*cluster.Pod) *edit { return &edit{delete: pods} }

// deletePods deletes pods. Where a disruption budget does not allow that, it says so, and
// comes without a command. The size grows with the number of pods and with what is lost:
// a pod that nothing replaces, one that is as important as the pending one, a budget that
// is broken.
func (b *bench) deletePods(kind, text string, pods []*cluster.Pod) *edit {
	e := b.removeEdit(pods)
	e.Change = Change{Kind: kind, Text: text, Object: "pod/" + pods[0].Namespace() + "/" + pods[0].Name}
	e.size = 30 + 10*len(pods)
	var commands []string
	for _, p := range pods {
		// Sizes only order suggestions. These differences are what users would weigh.
		if p.Class.Controller != nil {
			e.size += 2 // its replacement becomes pending
		} else {
			e.size += 12
		}
		if p.Class.Priority >= b.pod.Class.Priority {
			e.size += 10 // it is not less important
		}
		e.Delete = append(e.Delete, simulate.Name{Namespace: p.Namespace(), Name: p.Name})
		commands = append(commands, "kubectl delete pod -n "+p.Namespace()+" "+p.Name)
	}
	if broken := b.brokenBudgets(pods); len(broken) > 0 {
		e.size += 50
		e.Text += ", against the disruption budget " + strings.Join(broken, ", ")
	} else if !slices.ContainsFunc(pods, b.isAhead) {
		e.Command = strings.Join(commands, " && ")
	}
	e.Text += lostText(pods)
	return e
}

// lostText says how many of the pods are not replaced. It is appended to the text of
// their deletion.
func lostText(pods []*cluster.Pod) string {
	bare := 0
	for _, p := range pods {
		if p.Class.Controller == nil {
			bare++
		}
	}
	switch {
	case bare == 0:
		return ""
	case len(pods) == 1:
		return "; nothing replaces it"
	case bare == len(pods):
		return "; nothing replaces them"
	}
	return fmt.Sprintf("; nothing replaces %d of them", bare)
}

// brokenBudgets names the disruption budgets that do not allow all of these pods to go
// now. A pod that its budget counts as leaving already does not count once more.
func (b *bench) brokenBudgets(pods []*cluster.Pod) (names []string) {
	count := map[*cluster.Budget]int32{}
	for _, p := range pods {
		for _, budget := range b.c.BudgetsOf(p.Class) {
			// The Eviction API has subtracted it already.
			if _, leaving := budget.Status.DisruptedPods[p.Name]; leaving {
				continue
			}
			if count[budget]++; count[budget] == budget.Status.DisruptionsAllowed+1 {
				names = append(names, budget.Namespace+"/"+budget.Name)
			}
		}
	}
	return names
}

// mergePatch is the strategic merge patch from one object to the other; nil if there is
// none.
func mergePatch[T any](before, after any, kind T) json.RawMessage {
	a, err := json.Marshal(before)
	if err != nil {
		return nil
	}
	b, err := json.Marshal(after)
	if err != nil {
		return nil
	}
	p, err := strategicpatch.CreateTwoWayMergePatch(a, b, kind)
	if err != nil {
		return nil
	}
	return p
}
