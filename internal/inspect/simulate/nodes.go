// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/world/disruption"
)

// nodes holds the world's nodes as stored in the API server. All changes of nodes go through it and
// take effect immediately: it shows the node to the core, and has controllers create newly eligible
// DaemonSet pods.
type nodes struct {
	clock     *clock
	report    *report
	allowed   *allowed
	scheduler *scheduler
	pods      *pods
	reactions *reactions
	// named holds the existing nodes. alterNode replaces the object and never changes it in place,
	// because the core and callers of World.Nodes hold the old one.
	named map[string]*machine
}

// machine is a node and its kubelet.
type machine struct {
	object *v1.Node // never changed in place
	// dead is set if the kubelet does not respond. Pods on the node do not terminate. The API keeps
	// showing the last reported state, until node health sets the conditions to Unknown.
	dead bool
	// silent is the last Lease renewal of an initially dead node: a negative time relative to the
	// start, or 0 if unknown.
	silent time.Duration
}

// holdsPods reports whether deleted pods stay on the node, like [disruption.HoldsPods], but also
// before node health notices the silence.
func (m *machine) holdsPods() bool { return m.dead && !disruption.GivenUp(m.object) }

// defaultLease is the kubelet's default Lease duration, four renewal intervals. It applies to
// Leases without a duration.
const defaultLease = 40 * time.Second

// addNode adds a node, or replaces the node of the same name. It does not notify controllers and
// node health, unlike announceNode, which callers use for nodes added later.
func (n *nodes) addNode(object *v1.Node) {
	if object.UID == "" {
		object = object.DeepCopy()
		object.UID = types.UID("node/" + object.Name)
	}
	n.named[object.Name] = &machine{object: object, dead: disruption.ReadinessOf(object) == v1.ConditionUnknown}
	n.scheduler.showObject(cycle.Nodes, object)
}

// removeNode removes a node without pods. operations.removeNode removes the pods first.
func (n *nodes) removeNode(name string) {
	object := n.named[name].object
	delete(n.named, name)
	n.scheduler.showGone(cycle.Nodes, object)
	n.report.touched = true
}

// names lists the nodes by name. All loops over nodes use it, because map order would make runs
// differ.
func (n *nodes) names() []string { return slices.Sorted(maps.Keys(n.named)) }

// changeNode changes a node and notifies node health.
// alter may modify the copy it receives. The node must exist.
func (n *nodes) changeNode(name string, alter func(node *v1.Node)) {
	m := n.named[name]
	n.alterNode(m, alter)
	n.reactions.health.showNode(m)
}

// alterNode is changeNode on behalf of node health. Node health receives the result directly, and
// must not see its own write as an event.
func (n *nodes) alterNode(m *machine, alter func(node *v1.Node)) {
	before := m.object
	m.object = before.DeepCopy()
	alter(m.object)
	m.object.ManagedFields = nil // they date an earlier write of the taints
	n.scheduler.showObject(cycle.Nodes, m.object)
	n.report.touched = true
	// The kubelet is back, and reports its pods' current status.
	if disruption.ReadinessOf(before) != v1.ConditionTrue && disruption.ReadinessOf(m.object) == v1.ConditionTrue {
		n.pods.unmarkUnready(m.object.Name)
	}
	n.reactions.controllers.followNode(m, before)
}

// eachSelected calls do for each of the selected nodes, by name. An empty selection is an error. If
// the allowance is used up meanwhile, it skips the remaining nodes and returns an error.
func (n *nodes) eachSelected(selected *Nodes, do func(name string)) error {
	names, err := selected.resolveNames(n)
	for _, name := range names {
		if n.allowed.mustStop() {
			return n.allowed.ended
		}
		do(name)
	}
	return err
}

// taintNodes changes taints like kubectl taint. If off is set, it only removes taints. Where
// kubectl would fail because a taint is missing or already present, it adds a note and makes the
// change anyway, so that users see its consequences.
func (n *nodes) taintNodes(t *Tainting, off bool) (*Done, error) {
	specs := slices.Clone(t.Taints)
	if len(specs) == 0 {
		return nil, errors.New("no taint specified: use key=value:Effect")
	}

	for i, spec := range specs {
		if off && !strings.HasSuffix(spec, "-") {
			specs[i] = spec + "-"
		}
	}

	change, err := rules.ParseTaintChange(specs)
	if err != nil {
		return nil, err
	}

	names, err := t.resolveNames(n)
	if err != nil {
		return nil, err
	}

	done := &Done{Notes: n.noteUntainted(names, change.Remove)}
	if !t.Overwrite {
		done.Notes = append(done.Notes, n.noteRetainted(names, change.Add)...)
	}

	for _, name := range names {
		before := n.named[name].object.Spec.Taints
		n.changeNode(name, func(node *v1.Node) { node.Spec.Taints = change.Apply(node.Spec.Taints) })
		n.report.recordTaints(name, before, n.named[name].object.Spec.Taints)
	}
	return done, nil
}

// noteUntainted returns a note for each taint to be removed that some of the nodes lack, because
// kubectl would then fail.
func (n *nodes) noteUntainted(names []string, remove []v1.Taint) (notes []string) {
	for i := range remove {
		without := slices.DeleteFunc(slices.Clone(names), func(name string) bool {
			return slices.ContainsFunc(n.named[name].object.Spec.Taints, func(t v1.Taint) bool { return rules.IsTakenOff(&t, &remove[i]) })
		})
		if len(without) > 0 {
			notes = append(notes, fmt.Sprintf("no taint %s to remove from %s: kubectl taint stops with \"not found\"",
				strings.TrimSuffix(remove[i].Key+":"+string(remove[i].Effect), ":"),
				answer.List(len(without), func(i int) string { return without[i] })))
		}
	}
	return notes
}

// noteRetainted returns a note for each taint to be added that some of the nodes already have,
// because kubectl would then fail.
func (n *nodes) noteRetainted(names []string, add []v1.Taint) (notes []string) {
	for i := range add {
		with := slices.DeleteFunc(slices.Clone(names), func(name string) bool {
			return !slices.ContainsFunc(n.named[name].object.Spec.Taints, func(t v1.Taint) bool { return t.MatchTaint(&add[i]) })
		})
		if len(with) > 0 {
			notes = append(notes, fmt.Sprintf("taint %s:%s is there already on %s: kubectl taint stops without --overwrite",
				add[i].Key, add[i].Effect, answer.List(len(with), func(i int) string { return with[i] })))
		}
	}
	return notes
}

// cordonNodes cordons or uncordons nodes. kubectl writes spec.unschedulable and node health adds
// the taint a moment later; here both happen together, whether or not node health is running.
func (n *nodes) cordonNodes(selected *Nodes, on bool) error {
	return n.eachSelected(selected, func(name string) {
		n.setCordon(name, on)
	})
}

// setCordon cordons or uncordons one node. A node already in the wanted state causes no event.
func (n *nodes) setCordon(name string, on bool) {
	if n.named[name].object.Spec.Unschedulable == on {
		return
	}
	cordon := v1.Taint{Key: v1.TaintNodeUnschedulable, Effect: v1.TaintEffectNoSchedule}
	change := rules.TaintChange{Add: []v1.Taint{cordon}}
	kind := "NodeCordoned"
	if !on {
		change, kind = rules.TaintChange{Remove: []v1.Taint{cordon}}, "NodeUncordoned"
	}
	n.changeNode(name, func(node *v1.Node) {
		node.Spec.Unschedulable = on
		node.Spec.Taints = change.Apply(node.Spec.Taints)
	})
	n.report.addEvent(Event{Kind: kind, Node: name})
}

// setCondition makes nodes report a condition, given as TYPE=STATUS. Node health handles the
// condition's taint, if any.
func (n *nodes) setCondition(c *Condition) error {
	kind, word, ok := strings.Cut(c.Condition, "=")
	status := v1.ConditionStatus(word)
	if !ok || kind == "" || !slices.Contains([]v1.ConditionStatus{v1.ConditionTrue, v1.ConditionFalse, v1.ConditionUnknown}, status) {
		return fmt.Errorf("condition %q: must be TYPE=True, TYPE=False or TYPE=Unknown, such as MemoryPressure=True", c.Condition)
	}
	return n.eachSelected(&c.Nodes, func(name string) {
		n.reportCondition(name, v1.NodeConditionType(kind), status)
	})
}

// reportCondition makes a node report a condition, with a heartbeat. A node without the condition
// Ready, such as a hand-written one, also reports Ready=True, because node health ignores nodes
// without that condition.
func (n *nodes) reportCondition(name string, kind v1.NodeConditionType, status v1.ConditionStatus) {
	n.report.addEvent(Event{Kind: "ConditionChanged", Node: name, Message: fmt.Sprintf("%s=%s", kind, status)})
	n.changeNode(name, func(node *v1.Node) {
		if disruption.ReadinessOf(node) == "" {
			setReady(node, n.clock.time())
		}
		now := metav1.NewTime(n.clock.time())
		setCondition(node, v1.NodeCondition{Type: kind, Status: status, LastTransitionTime: now, LastHeartbeatTime: now})
	})
}

// mostNodes limits the number of nodes added in one operation: a typo might otherwise exhaust the
// memory. The limit is twenty times the 5,000 nodes supported by Kubernetes.
const mostNodes = 100_000

// addLike creates nodes like an existing one: new and healthy, without the taints and conditions
// that reflect its state. They are named MODEL-copy-1 and so on; existing names are skipped.
func (n *nodes) addLike(a *AddNodes) error {
	like := n.named[a.Like]
	switch {
	case like == nil:
		return fmt.Errorf("there is no node %q to take as a model", a.Like)
	case a.Count < 1 || a.Count > mostNodes:
		return fmt.Errorf("%d nodes: must be from 1 to %d", a.Count, mostNodes)
	}

	for number, added := 1, 0; added < a.Count && !n.allowed.mustStop(); number++ {
		name := fmt.Sprintf("%s-copy-%d", a.Like, number)
		if n.named[name] != nil {
			continue
		}
		added++
		node := NodeLike(like.object, name)
		node.CreationTimestamp = metav1.NewTime(n.clock.time())
		n.addNode(node)
		// Without a CSINode, the copies would have unknown and therefore unlimited volume limits.
		if csi, ok := n.scheduler.c.CSINodes.Get("", a.Like); ok {
			csi = csi.DeepCopy()
			csi.Name = name
			n.scheduler.showObject(cycle.CSINodes, csi)
		}
		n.announceNode(node, "like "+a.Like)
	}

	return nil
}

// announceNode presents a new node to the controllers and node health, and reports it.
func (n *nodes) announceNode(node *v1.Node, message string) {
	m := n.named[node.Name]
	n.reactions.controllers.startDaemons(m)
	n.reactions.health.showNode(m)
	n.report.addEvent(Event{Kind: "NodeAdded", Node: node.Name, Message: message})
}

// applyNode adds a node, or changes an existing one like kubectl apply: it adds or changes labels,
// and replaces taints if the manifest has any. Fields missing in the manifest keep their values. So
// does the capacity, because it is part of the status; applyNode returns true if the manifest has a
// different capacity.
func (n *nodes) applyNode(node *v1.Node) (otherCapacity bool) {
	m := n.named[node.Name]
	if m == nil {
		n.addNode(node)
		n.announceNode(node, "")
		return false
	}

	before := m.object.Spec.Taints
	otherCapacity = !equality.Semantic.DeepEqual(m.object.Status.Allocatable, node.Status.Allocatable) && len(node.Status.Allocatable) > 0
	n.changeNode(node.Name, func(old *v1.Node) {
		for key, value := range node.Labels {
			metav1.SetMetaDataLabel(&old.ObjectMeta, key, value)
		}
		if node.Spec.Taints != nil {
			old.Spec.Taints = node.Spec.Taints
		}
		old.Spec.Unschedulable = old.Spec.Unschedulable || node.Spec.Unschedulable
	})

	n.report.recordTaints(node.Name, before, m.object.Spec.Taints)
	return otherCapacity
}

// sampleNodes counts the nodes for a timeline sample.
func (n *nodes) sampleNodes() Sample {
	s := Sample{Nodes: len(n.named)}
	for _, node := range n.scheduler.c.Nodes {
		if node == nil {
			continue
		}
		m := n.named[node.Name]
		if notReady(m.object) {
			s.NotReady++
		}
		if node.Taints.Unschedulable || rules.Untolerated(m.object.Spec.Taints, nil, rules.KeepsOff) != nil {
			s.Tainted++
		}
	}
	return s
}
