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
)

// nodes are the world's nodes as the API server has them. Whatever changes one does so here,
// and what follows from its taints and labels follows at once: the core is shown the node,
// evictions are scheduled or called off, and DaemonSets make the pods that they now want
// there.
type nodes struct {
	clock     *clock
	report    *report
	allowed   *allowed
	scheduler *scheduler
	pods      *pods
	evictions *evictions
	// named has the nodes that exist. alterNode replaces the object in it and never changes
	// it in place: the core, and callers of World.Nodes, hold the old one.
	named map[string]*machine
	// joined is called for a new node, and changed for one that is different from before; seen is
	// called for both, unless node health has changed the node itself.
	joined  func(m *machine)
	changed func(m *machine, before *v1.Node)
	seen    func(m *machine)
}

// machine is a node and the kubelet on it.
type machine struct {
	object *v1.Node // never changed in place
	// dead is set if its kubelet does not respond. No pod terminates there, and nothing is
	// reported: the API keeps showing the last state, until node health sets the conditions
	// to Unknown.
	dead bool
	// silent is when a node that is dead from the beginning last renewed its Lease: a negative time
	// from the beginning, or 0 if it is not known.
	silent time.Duration
}

// holdsPods reports whether pods that are deleted stay on the node: its kubelet, which would
// confirm that they have ended, does not respond. On a node that is not ready and has the taint
// out-of-service, the pod garbage collector removes them.
func (m *machine) holdsPods() bool {
	outOfService := slices.ContainsFunc(m.object.Spec.Taints, func(t v1.Taint) bool { return t.Key == v1.TaintNodeOutOfService })
	return m.dead && !(outOfService && readyOf(m.object) != v1.ConditionTrue)
}

// defaultLease is the Lease duration where none is given: the kubelet's default, four
// renewals long.
const defaultLease = 40 * time.Second

// addNode adds a node, or replaces the one of the same name. Neither controllers nor node
// health see it; announceNode does that for a node that is added later.
func (n *nodes) addNode(object *v1.Node) {
	if object.UID == "" {
		object = object.DeepCopy()
		object.UID = types.UID("node/" + object.Name)
	}
	n.named[object.Name] = &machine{object: object, dead: readyOf(object) == v1.ConditionUnknown}
	n.scheduler.showObject(cycle.Nodes, object)
	n.evictions.recordFound(object)
}

// removeNode removes a node that has no pods. operations.removeNode removes these before.
func (n *nodes) removeNode(name string) {
	object := n.named[name].object
	delete(n.named, name)
	delete(n.evictions.held, name)
	n.scheduler.showGone(cycle.Nodes, object)
	n.report.touched = true
}

// names lists the nodes by name. Whatever goes through all nodes uses it, because the order
// of a map would make two runs differ.
func (n *nodes) names() []string { return slices.Sorted(maps.Keys(n.named)) }

// changeNode changes a node, with the consequences of its taints, and has node health see it.
// alter gets a copy that it may change. The node has to exist.
func (n *nodes) changeNode(name string, alter func(node *v1.Node)) {
	m := n.named[name]
	n.alterNode(m, alter)
	n.seen(m)
}

// alterNode is changeNode on behalf of node health, which must not be told of its own write:
// it gets the result as the answer to that.
func (n *nodes) alterNode(m *machine, alter func(node *v1.Node)) {
	before := m.object
	m.object = before.DeepCopy()
	alter(m.object)
	n.scheduler.showObject(cycle.Nodes, m.object)
	n.report.touched = true
	// The deadlines of pods on this node follow from the new taints. A pod that tolerates a
	// taint for some time counts that from when the taint was added, or from when the pod
	// came, if that is later.
	if n.evictions.recordTaints(m.object) {
		for _, p := range n.scheduler.c.Node(m.object.Name).Pods {
			if known := n.pods.placed[p.UID]; known != nil {
				n.evictions.watchPod(known, known.since)
			}
		}
	}
	// The kubelet is back, and reports its pods as they are.
	if readyOf(before) != v1.ConditionTrue && readyOf(m.object) == v1.ConditionTrue {
		n.pods.unmarkUnready(m.object.Name)
	}
	n.changed(m, before)
}

// eachSelected calls do for each of the nodes that are selected, by name. It is an error, and
// nothing is done, if there are none; if an allowance ends in between, nodes remain undone.
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

// taintNodes changes taints as kubectl taint does, or only removes them (off). Where kubectl
// would stop with an error because a taint is missing or present already, a note says so and
// the change is made anyway: the question is what the change leads to.
func (n *nodes) taintNodes(t *Tainting, off bool) (*Done, error) {
	specs := slices.Clone(t.Taints)
	if len(specs) == 0 {
		return nil, errors.New("no taint is named: give key=value:Effect")
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
		n.report.tellTaints(name, before, n.named[name].object.Spec.Taints)
	}
	return done, nil
}

// noteUntainted notes which of the nodes do not have a taint that is to be removed from them.
// kubectl stops there.
func (n *nodes) noteUntainted(names []string, remove []v1.Taint) (notes []string) {
	for i := range remove {
		var without []string
		for _, name := range names {
			if !slices.ContainsFunc(n.named[name].object.Spec.Taints, func(t v1.Taint) bool { return rules.IsTakenOff(&t, &remove[i]) }) {
				without = append(without, name)
			}
		}
		if len(without) > 0 {
			notes = append(notes, fmt.Sprintf("no taint %s to remove from %s: kubectl taint stops with \"not found\"",
				strings.TrimSuffix(remove[i].Key+":"+string(remove[i].Effect), ":"),
				answer.List(len(without), func(i int) string { return without[i] })))
		}
	}
	return notes
}

// noteRetainted notes which of the nodes have a taint already that is to be added. kubectl stops
// there.
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

// cordonNodes cordons nodes or uncordons them. kubectl writes spec.unschedulable, and node
// health adds the taint a moment later; here both happen at once, whether or not node health
// is at work.
func (n *nodes) cordonNodes(selected *Nodes, on bool) error {
	return n.eachSelected(selected, func(name string) {
		n.setCordon(name, on)
	})
}

// setCordon does that with one node. One that is as wanted already is left alone, without an
// event.
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

// setCondition makes nodes report a condition, given as TYPE=STATUS. Its taint, if it has
// one, is the business of node health.
func (n *nodes) setCondition(c *Condition) error {
	kind, word, ok := strings.Cut(c.Condition, "=")
	status := v1.ConditionStatus(word)
	if !ok || kind == "" || !slices.Contains([]v1.ConditionStatus{v1.ConditionTrue, v1.ConditionFalse, v1.ConditionUnknown}, status) {
		return fmt.Errorf("condition %q: must be TYPE=True, TYPE=False or TYPE=Unknown, as MemoryPressure=True", c.Condition)
	}
	return n.eachSelected(&c.Nodes, func(name string) {
		n.reportCondition(name, v1.NodeConditionType(kind), status)
	})
}

// reportCondition has a node report a condition, with a heartbeat. A node of a hand-written
// manifest that reports nothing else reports that it is ready as well, because node health
// ignores nodes without that condition.
func (n *nodes) reportCondition(name string, kind v1.NodeConditionType, status v1.ConditionStatus) {
	n.report.addEvent(Event{Kind: "ConditionChanged", Node: name, Message: fmt.Sprintf("%s=%s", kind, status)})
	n.changeNode(name, func(node *v1.Node) {
		if readyOf(node) == "" {
			setReady(node, v1.ConditionTrue, n.clock.time())
		}
		now := metav1.NewTime(n.clock.time())
		setCondition(node, v1.NodeCondition{Type: kind, Status: status, LastTransitionTime: now, LastHeartbeatTime: now})
	})
}

// mostNodes bounds how many nodes are added at once: a typing error would otherwise use up
// all memory. It is twenty times the 5,000 nodes that Kubernetes supports.
const mostNodes = 100_000

// addLike creates nodes like another: new, healthy, without the taints and conditions of that
// node's own state. They are named MODEL-copy-1 and so on; names that exist are skipped.
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
		// Without a CSINode, the volume limits of the copies would be unknown, and so
		// unlimited.
		if csi, ok := n.scheduler.c.CSINodes.Get("", a.Like); ok {
			csi = csi.DeepCopy()
			csi.Name = name
			n.scheduler.showObject(cycle.CSINodes, csi)
		}
		n.announceNode(node, "like "+a.Like)
	}

	return nil
}

// announceNode has the controllers and node health see a new node, and reports it.
func (n *nodes) announceNode(node *v1.Node, message string) {
	m := n.named[node.Name]
	n.joined(m)
	n.seen(m)
	n.report.addEvent(Event{Kind: "NodeAdded", Node: node.Name, Message: message})
}

// applyNode adds a node, or changes the one of its name as kubectl apply does: labels are
// added or changed, taints replaced if the manifest has any. What the manifest does not name
// stays. It returns true if the manifest has another capacity, which stays as well: it is
// status.
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

	n.report.tellTaints(node.Name, before, m.object.Spec.Taints)
	return otherCapacity
}

// sampleNodes counts the nodes for a sample of the timeline.
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
		if node.Taints.Unschedulable || keepsOff(m.object) {
			s.Tainted++
		}
	}
	return s
}
