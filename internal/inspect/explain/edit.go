// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

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

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/world"
)

// edit is a reversible change. The embedded Change is its published part; the other fields define
// how to try it.
type edit struct {
	Change
	size int // see Suggestion.Size
	// Exactly one of pod, node, add, delete, set and parts is set.
	pod  func(*v1.Pod)
	node *nodeEdit
	add  *v1.Node // the node to add
	// like is the name of the node on which add and its CSINode are modelled.
	like   string
	delete []*cluster.Pod       // the pods to remove
	set    func(w *world.World) // changes other objects
	parts  []*edit              // edits effective only in combination
	// preempts allows preemption: if the pod does not fit, the victims are removed and the pod is
	// tried again. preempted is the result of the preemption.
	preempts  bool
	preempted decide.Preemption
	// before is a command to run before Command, such as the creation of a PriorityClass.
	before string
	class  *schedulingv1.PriorityClass // created by before
	// otherwise is a larger edit to try if the rehearsal of this one fails.
	otherwise *edit
}

// joinEdits joins edits into one, tried as a whole and without a text.
func joinEdits(edits []*edit) *edit {
	all := &edit{parts: edits}
	for _, e := range edits {
		all.size += e.size
	}
	return all
}

// splitEdits replaces joined edits by their parts, because only the parts have a text and can be
// published.
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

// nodeEdit is a change of a node. alter receives a copy.
type nodeEdit struct {
	name  string
	alter func(*v1.Node)
}

// bench tries edits on the world and the pending pod. During a try, an edit changes the cluster
// itself rather than a copy. All changes are undone in reverse order, so the cluster is unchanged
// between two tries.
type bench struct {
	w       *simulate.World
	c       *cluster.Cluster
	object  *v1.Pod // the pod, without a node
	pod     *cluster.Pod
	classes []*schedulingv1.PriorityClass // lowest first
	// tries counts the calls of the engine; search stops at mostTries.
	tries int
}

// tryEdits makes the edits, runs the engine, and undoes the edits. node is empty if the pod does
// not fit, may not be tried, or is not served by a profile.
func (b *bench) tryEdits(edits ...*edit) (node string) {
	b.tries++
	object := b.object
	var preempts *edit
	trial := b.w.Trial()
	defer trial.Undo(trial.Mark())
	for _, e := range edits {
		switch {
		case e.pod != nil:
			// Several edits may change the pod; all of them share one copy.
			if object == b.object {
				object = b.object.DeepCopy()
			}
			e.pod(object)
		case e.node != nil:
			after := b.w.Node(e.node.name).DeepCopy()
			e.node.alter(after)
			trial.Put(after)
		case e.add != nil:
			trial.Put(e.add)
			if csi := b.csiNodeLike(e); csi != nil {
				trial.Put(csi)
			}
		case e.delete != nil:
			removePods(trial, e.delete)
		case e.set != nil:
			e.set(trial)
		}
		if e.preempts {
			preempts = e
		}
	}

	// To the engine, an edited pod is a different pod: its class may differ, and it has no
	// nominated node.
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
		// The victims must leave before the pod can use the node. The second attempt decides
		// whether it then gets that node.
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

// runsOn reports whether the node has the pod's operating system. The scheduler's plugins do not
// compare the two; the kubelet rejects the pod.
func runsOn(p *v1.Pod, n *cluster.Node) bool {
	os, labelled := n.Lookup(v1.LabelOSStable)
	return p.Spec.OS == nil || !labelled || string(p.Spec.OS.Name) == os
}

// csiNodeLike returns the CSINode of an added node; nil if the node on which it is modelled has
// none.
func (b *bench) csiNodeLike(e *edit) *storagev1.CSINode {
	csi, ok := b.c.CSINodes.Get("", e.like)
	if !ok {
		return nil
	}
	csi = csi.DeepCopy()
	csi.Name = e.add.Name
	return csi
}

// removePods takes pods off their nodes, except for pods already removed by another edit.
func removePods(w *world.World, pods []*cluster.Pod) {
	for _, p := range pods {
		if p.Node != nil {
			w.Remove(p)
		}
	}
}

// isAhead reports whether another pod is also pending, and is on its node here only because it
// precedes this pod in the queue. It is not on that node in the cluster, so no command can delete
// it from there.
func (b *bench) isAhead(p *cluster.Pod) bool {
	return slices.ContainsFunc(b.w.Pods(), func(d simulate.Pod) bool {
		return d.Namespace == p.Namespace() &&
			d.Name == p.Name() && d.Node != ""
	})
}

// nameOf names another pod as namespace/name, with a note if it is ahead in the queue.
func (b *bench) nameOf(p *cluster.Pod) string {
	name := p.Namespace() + "/" + p.Name()
	if b.isAhead(p) {
		name += " (ahead in the queue)"
	}
	return name
}

// podName returns the name of a pod for a document.
func podName(p *cluster.Pod) simulate.Name {
	return simulate.Name{Namespace: p.Namespace(), Name: p.Name()}
}

// namesOf names other pods; see nameOf.
func (b *bench) namesOf(pods []*cluster.Pod) []string { return answer.Mapped(pods, b.nameOf) }

// alterations are changes of a pod, in order.
type alterations []func(*v1.Pod)

func (list alterations) alter(p *v1.Pod) {
	for _, do := range list {
		do(p)
	}
}

// onPod returns a change of the pod itself. Its patch changes the pod or the template of the pod.
// Its command is derived only after the change has proved to help, because most edits are dropped.
// size orders suggestions; see Suggestion.Size.
func (b *bench) onPod(kind, text string, size int, alter func(*v1.Pod)) *edit {
	e := &edit{Change: Change{Kind: kind, Object: "pod/" + b.object.Namespace + "/" + b.object.Name, Text: text}, size: size, pod: alter}
	after := b.object.DeepCopy()
	alter(after)
	e.Patch = mergePatch(b.object, after, v1.Pod{})
	e.Template = keeperOf(b.w, b.object).holderRef()
	return e
}

// onNode returns a change of a node. command is empty if kubectl cannot make the change: it cannot
// make a node recover.
func (b *bench) onNode(kind, node, text, command string, size int, alter func(*v1.Node)) *edit {
	e := &edit{Change: Change{Kind: kind, Object: "node/" + node, Text: text, Command: command}, size: size, node: &nodeEdit{node, alter}}
	before := b.w.Node(node)
	after := before.DeepCopy()
	alter(after)
	e.Patch = mergePatch(before, after, v1.Node{})
	return e
}

// deletePods deletes pods. If a disruption budget does not allow the deletion, the text mentions it
// and the edit has no command. The size grows with the number of pods and with the losses: a pod
// without a replacement, a pod at least as important as the pending one, a violated budget.
func (b *bench) deletePods(kind, text string, pods []*cluster.Pod) *edit {
	e := &edit{delete: pods, size: 30 + 10*len(pods)}
	e.Change = Change{Kind: kind, Text: text, Object: "pod/" + pods[0].Namespace() + "/" + pods[0].Name(), Delete: answer.Mapped(pods, podName)}
	var commands []string
	for _, p := range pods {
		// Sizes only order suggestions. These differences reflect the priorities of users.
		if p.Class.Controller != nil {
			e.size += 2 // its replacement becomes pending
		} else {
			e.size += 12
		}
		if p.Class.Priority >= b.pod.Class.Priority {
			e.size += 10 // it is at least as important
		}
		commands = append(commands, "kubectl delete pod -n "+p.Namespace()+" "+p.Name())
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

// lostText gives the number of pods without a replacement, as a suffix for the text of the
// deletion.
func lostText(pods []*cluster.Pod) string {
	owned := func(p *cluster.Pod) bool { return p.Class.Controller != nil }
	bare := len(slices.DeleteFunc(slices.Clone(pods), owned))
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

// brokenBudgets names the disruption budgets violated by evicting all of these pods now. A pod
// already counted as disrupted by its budget does not count again.
func (b *bench) brokenBudgets(pods []*cluster.Pod) (names []string) {
	count := map[*cluster.Budget]int32{}
	for _, p := range pods {
		for _, budget := range b.c.BudgetsOf(p.Class) {
			// The Eviction API has already subtracted it.
			if _, leaving := budget.Status.DisruptedPods[p.Name()]; leaving {
				continue
			}
			if count[budget]++; count[budget] == budget.Status.DisruptionsAllowed+1 {
				names = append(names, budget.Namespace+"/"+budget.Name)
			}
		}
	}
	return names
}

// mergePatch returns the strategic merge patch between two objects; nil if it cannot be computed.
func mergePatch[T any](before, after any, kind T) json.RawMessage {
	p, _ := strategicpatch.CreateTwoWayMergePatch([]byte(jsonOf(before)), []byte(jsonOf(after)), kind)
	return p
}
