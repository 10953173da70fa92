// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simkubelet

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/node/pressure"
)

// Fleet holds all simulated nodes of one process. Only one goroutine may use it.
//
// A method that applies a change takes the present time and does all work due for the changed
// object. It sets timers for later work. The state of nodes and pods is kept in the API: if an
// action is lost, its effect is missing in the API, and the action is sent again.
type Fleet struct {
	shape Shape
	// nodes holds the nodes by name: the nodes 1 to Count, and nodes of an earlier, larger run,
	// which are being deleted with their pods.
	nodes map[string]*node
	// pods holds the pods bound to one of nodes.
	pods   map[types.UID]*pod
	lots   addressLots
	timers timers
	out    []Action
	// live counts registered nodes.
	live int
	// rand jitters heartbeats. It is seeded, so that a run can be repeated.
	rand *rand.Rand
}

// node is one simulated node.
type node struct {
	// number counts from 1. It is 0 for a node of an earlier, larger run, which is kept only to be
	// deleted.
	number int
	name   string
	// object is the newest observed object; nil before registration and after deletion. It belongs
	// to the watch and must not be modified.
	object *v1.Node
	// gone is set after a deletion. It stays set until another client creates a Node of this name.
	gone bool
	// silent is set while an annotation stops the heartbeat. The node's pods are then frozen: they
	// neither start nor end, and deletions are not observed, as on a machine cut off from the
	// network.
	silent   bool
	labelled bool // labels were checked in this process
	pods     map[types.UID]*pod
	// lot is the number of the node's address range; it is set only if this process registered the
	// node. address is the node's own address, empty before its registration.
	lot     int
	address string
	ips     ipPool

	busy     bool      // an action for the object or its status is in progress
	failures int       // number of consecutive failed requests
	statusAt time.Time // time of the next report without changes
	reported time.Time // time of the last report
	status   timer
	renewing bool
	asked    time.Time // time of the last renewal request
	renew    timer

	// core evaluates resource pressure. It is nil until the node has a pod with declared usage, so
	// that other nodes cost nothing. pressed lists the conditions that are under pressure.
	core    *pressure.Core
	pressed []v1.NodeConditionType
	measure timer
}

// New returns a fleet of shape's nodes, none of them registered.
func New(shape Shape) *Fleet {
	f := &Fleet{
		shape: shape,
		nodes: make(map[string]*node, shape.Count),
		pods:  map[types.UID]*pod{},
		rand:  rand.New(rand.NewPCG(1, uint64(shape.Count))),
	}
	for number := 1; number <= shape.Count; number++ {
		n := &node{number: number, name: shape.Name(number), pods: map[types.UID]*pod{}}
		n.status.fire = func(now time.Time) { f.checkNode(n, now) }
		n.renew.fire = func(now time.Time) { f.renewLease(n, now) }
		n.measure.fire = func(now time.Time) { f.measureNode(n, now) }
		f.nodes[n.name] = n
	}
	return f
}

// Start registers the missing nodes, in the order of their numbers. NodesListed must be called
// first, with the nodes of the cluster. Start fails if those nodes leave too few address ranges
// free.
func (f *Fleet) Start(now time.Time) error {
	for number := 1; number <= f.shape.Count; number++ {
		n := f.nodes[f.shape.Name(number)]
		if n.object != nil || n.busy {
			continue
		}
		if n.lot = f.lots.take(&f.shape); n.lot == 0 {
			return fmt.Errorf("node %s: no address range is left: the cluster's other nodes have the rest of %s", n.name, podNetwork)
		}
		f.registerNode(n, now)
	}
	return nil
}

// NodesListed applies a list of all nodes with its resource version: nodes missing from the list
// have been deleted. Nodes of this shape beyond its count are removed. A list may be older than
// objects already received from a watch or a response, so versions are compared. Of foreign nodes,
// only the addresses are recorded.
func (f *Fleet) NodesListed(list []*v1.Node, version string, now time.Time) {
	there := make(map[string]bool, len(list))
	for _, object := range list {
		there[object.Name] = true
		f.lots.takeOf(&f.shape, object)
		if f.shape.Beyond(object.Name) && object.Labels[LabelSimulated] != "" {
			f.retireNode(object)
			continue
		}
		f.NodeSeen(object, now)
	}
	for number := 1; number <= f.shape.Count; number++ {
		// The list does not contain nodes registered after its creation.
		n := f.nodes[f.shape.Name(number)]
		if n.object != nil && !there[n.name] && olderThan(n.object.ResourceVersion, version) {
			f.NodeGone(n.object, now)
		}
	}
}

// retireNode removes a node left by an earlier, larger run, and treats its pods like those of a
// deleted node. The caller checks that the node is simulated, because a machine may have a name of
// this shape. The entry has number 0, so that NodeSeen ignores the node.
func (f *Fleet) retireNode(object *v1.Node) {
	if f.nodes[object.Name] == nil {
		n := &node{name: object.Name, gone: true, pods: map[types.UID]*pod{}}
		// The timer repeats the deletion until it succeeds.
		n.status.fire = func(time.Time) { f.emitAction(Action{Kind: DeleteNode, Node: n.name, UID: object.UID}) }
		f.nodes[n.name] = n
		n.status.fire(time.Time{})
	}
}

// Take returns and clears the actions to carry out. Actions on different objects may be carried out
// in any order, and concurrently.
func (f *Fleet) Take() []Action {
	out := f.out
	f.out = nil
	return out
}

// Next returns the time at which Tick is due, which may be in the past. It returns false if no
// timer is set.
func (f *Fleet) Next() (time.Time, bool) { return f.timers.nextTime() }

// Tick does the due work. If called too early, it does nothing.
func (f *Fleet) Tick(now time.Time) { f.timers.fireDue(now) }

// Live returns the number of registered nodes, including silent ones.
func (f *Fleet) Live() int { return f.live }

// emitAction adds an action to the next result of Take.
func (f *Fleet) emitAction(a Action) { f.out = append(f.out, a) }

// NodeSeen applies a node's newest object. It ignores an object that is not newer than the known
// one: watch events and responses to writes may arrive in any order.
func (f *Fleet) NodeSeen(object *v1.Node, now time.Time) {
	n := f.nodes[object.Name]
	if n == nil || n.number == 0 || object.Labels[LabelSimulated] == "" || n.object != nil &&
		!isNewer(object.ResourceVersion, n.object.ResourceVersion) {
		return
	}

	first := n.object == nil
	n.object = object
	n.gone = false
	// The range never changes. A dual-stack node's second range is not used.
	if prefix, err := netip.ParsePrefix(object.Spec.PodCIDR); err == nil {
		n.ips.prefix = prefix.Masked()
	}
	for _, a := range object.Status.Addresses {
		if a.Type == v1.NodeInternalIP && n.address == "" {
			n.address = a.Address
		}
	}
	if first {
		f.live++
		// The first report is at a node-specific point of the interval, so that nodes registered
		// together do not keep reporting together.
		n.statusAt = now.Add(time.Duration(spreadName(n.name) * float64(f.shape.StatusInterval)))
		n.silent, _ = silentUntil(object, now)
		f.renewLease(n, now)
	}

	f.checkNode(n, now)
	if first {
		f.checkPods(n, now)
	}
}

// NodeGone applies the deletion of a node: its pods are removed with it. As with a kubelet that
// keeps running, the node is not registered again.
func (f *Fleet) NodeGone(object *v1.Node, now time.Time) {
	n := f.nodes[object.Name]
	// The deletion is already known, or concerns an earlier node of the same name.
	if n == nil || n.object == nil || n.object.UID != object.UID {
		return
	}
	// Timers of a deleted node would act on a missing object.
	f.live--
	n.object, n.gone, n.silent, n.failures = nil, true, false, 0
	f.timers.clearTimer(&n.status)
	f.timers.clearTimer(&n.renew)
	f.timers.clearTimer(&n.measure)
	n.core, n.pressed = nil, nil
	f.checkPods(n, now)
}

// Done applies the outcome of an action, with the object returned by the API server, if any. It may
// be called after the node was deleted; pods are looked up by UID.
func (f *Fleet) Done(a Action, outcome Outcome, object any, now time.Time) {
	n := f.nodes[a.Node]
	if n == nil {
		return
	}

	switch a.Kind {
	case PatchPod, DeletePod:
		f.podDone(a, outcome, object, now)
	case Renew:
		n.renewing = false
		f.scheduleRenewal(n, outcome, now)
	case Register, PatchNode:
		n.busy = false
		f.nodeDone(n, outcome, object, now)
	case DeleteNode:
		if outcome == Failed {
			n.failures++
			f.timers.setTimer(&n.status, now.Add(retryDelay(n.failures)))
		}
	}
}

// nodeDone applies the response to a registration or a patch.
func (f *Fleet) nodeDone(n *node, outcome Outcome, object any, now time.Time) {
	switch outcome {
	case OK:
		n.failures = 0
		if seen, ok := object.(*v1.Node); ok && seen != nil {
			f.NodeSeen(seen, now)
		}
	case Failed:
		n.failures++
		f.timers.setTimer(&n.status, now.Add(retryDelay(n.failures)))
	case Refused:
		// A retry would be refused as well, so wait until the next report is due.
		f.timers.setTimer(&n.status, now.Add(f.shape.StatusInterval))
	case Gone:
		// The watch reports the change.
	}
}

// registerNode creates the node's object. Call it only for a node without an object.
func (f *Fleet) registerNode(n *node, now time.Time) {
	n.busy = true
	f.emitAction(Action{Kind: Register, Node: n.name, Object: f.shape.Node(n.number, n.lot, now)})
}

// checkNode registers the node if it does not exist, and reports its status if it has changed or a
// report is due. It may be called at any time. It does nothing while an action for the node is in
// flight; the response to the action calls it again.
func (f *Fleet) checkNode(n *node, now time.Time) {
	if n.object == nil {
		if !n.gone && !n.busy {
			f.registerNode(n, now)
		}
		return
	}
	// Follow the annotation even while an action is in flight.
	if f.followHeartbeat(n, now); n.silent || n.busy {
		return
	}
	if f.addLabels(n) {
		return
	}
	status := f.shape.nodeStatus(n.object, n.address, n.pressed, now)
	if due := !now.Before(n.statusAt); !due && semanticEqual(&n.object.Status, &status) {
		f.timers.setTimer(&n.status, n.statusAt)
		return
	}
	// Reports are at least a second apart, so that two writers that disagree about a field do not
	// flood the API server.
	if soonest := n.reported.Add(time.Second); now.Before(soonest) {
		f.timers.setTimer(&n.status, soonest)
		return
	}
	// Renew heartbeat times only in a report that is sent anyway; they do not justify a report.
	renewHeartbeats(&status, now)
	n.busy, n.reported = true, now
	n.statusAt = now.Add(f.shape.StatusInterval)
	f.timers.setTimer(&n.status, n.statusAt)
	f.emitAction(Action{Kind: PatchNode, Node: n.name, UID: n.object.UID, Status: true,
		Patch: nodePatch(n.object.UID, nil, &n.object.Status, &status)})
}

// followHeartbeat silences or resumes the node according to the heartbeat annotation. A silent node
// keeps its pods unchanged, like a machine cut off from the network.
func (f *Fleet) followHeartbeat(n *node, now time.Time) {
	silent, until := silentUntil(n.object, now)
	if silent {
		f.timers.clearTimer(&n.status)
		f.timers.clearTimer(&n.renew)
		if !until.IsZero() {
			f.timers.setTimer(&n.status, until)
		}
	}

	if n.silent == silent {
		return
	}
	n.silent = silent
	if !silent {
		n.statusAt = now
		f.renewLease(n, now)
		f.checkPods(n, now)
	}
}

// addLabels patches missing and different labels, once per process. It returns true if there were
// any. It does not revert later changes of labels.
func (f *Fleet) addLabels(n *node) bool {
	if n.labelled {
		return false
	}
	n.labelled = true
	labels := f.shape.labelsToAdd(n.object, n.number)
	if len(labels) == 0 {
		return false
	}
	n.busy = true
	f.emitAction(Action{Kind: PatchNode, Node: n.name, UID: n.object.UID,
		Patch: nodePatch(n.object.UID, labels, &n.object.Status, &n.object.Status)})
	return true
}

// renewLease requests a renewal, unless one is in flight.
func (f *Fleet) renewLease(n *node, now time.Time) {
	if n.object == nil || n.silent || n.renewing {
		return
	}
	n.renewing, n.asked = true, now
	f.emitAction(Action{Kind: Renew, Node: n.name, UID: n.object.UID})
}

// scheduleRenewal sets the next renewal. The first renewal is at a node-specific point of the
// interval, so that nodes created together do not renew together. Each further renewal is due one
// interval after the previous request, with a kubelet's jitter; a slow API server must not stretch
// the interval. A failed renewal is repeated after a second.
//
//	interval 10 s, requested at 12:00:00, completed at 12:00:04: next at about 12:00:10
func (f *Fleet) scheduleRenewal(n *node, outcome Outcome, now time.Time) {
	if n.object == nil || n.silent {
		return
	}
	// The jitter is up to 4 % in either direction.
	interval := f.shape.RenewInterval
	next := n.asked.Add(interval + time.Duration((f.rand.Float64()-0.5)*0.08*float64(interval)))
	if n.renew.at.IsZero() {
		next = now.Add(time.Duration(spreadName(n.name) * float64(interval)))
	}
	if outcome == Failed {
		next = now.Add(time.Second)
	}
	f.timers.setTimer(&n.renew, next)
}

// checkPods calls checkPod for every pod of a node.
func (f *Fleet) checkPods(n *node, now time.Time) {
	for _, p := range inOrder(n.pods) {
		f.checkPod(p, now)
	}
}
