// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide/effort"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// index is the view of the cluster shared by all plans, rankings and bases: the domains and labels
// of nodes, the nodes of placed pods, and the affinity terms of placed and nominated pods. It
// follows the cluster's log.
//
// Every entry point of the Decider calls followLog first: the layers that use the index assume that
// it has applied the whole log.
type index struct {
	c      *cluster.Cluster
	limits *effort.Limits
	meter  *effort.Meter

	hardWeight int32             // see plugins.TermCounter
	learners   []plugins.Learner // scorers that implement plugins.Learner

	synced       int    // position in the log
	nodesVersion uint64 // grows when a node is added, removed or changed

	// Topologies are created when a plan first needs them. Their IDs are never reused, so an ID in
	// the key of a base always refers to the same topology.
	topologies   map[topologyKey]*topology
	nextTopology int32
	keys         labelKeys

	terms   terms
	scratch []byte // scratch space for termEffects
	placed  placed
	budgets budgetChanges
	guests  map[int32][]*cluster.PodClass // by node: classes of the nominated pods counted by terms

	// parts holds, by node, the number assigned to the node's nodeParts. Nodes with equal nodeParts
	// have the same number, and manyParts is the count of distinct numbers. partsVersion is the
	// value of nodesVersion for which the numbers were computed.
	parts        []int32
	manyParts    int
	partsVersion uint64

	// balance holds, by node, the score for the balance of its CPU and memory requests. Scorers
	// compare it with the score after adding a pod. Nodes with nominated pods have hasGuests set,
	// which makes the value negative.
	balance []int8
}

type topologyKey struct {
	label   string
	perNode bool
}

// newIndex scans the whole cluster.
func newIndex(c *cluster.Cluster, profile *plugins.Profile, limits *effort.Limits, meter *effort.Meter) *index {
	ix := &index{
		c: c, limits: limits, meter: meter, topologies: map[topologyKey]*topology{},
		keys: labelKeys{nodes: map[string]int{}}, guests: map[int32][]*cluster.PodClass{},
	}

	for _, s := range profile.Scorers {
		if f, is := s.Scorer.(plugins.TermCounter); is {
			ix.hardWeight, _ = f.TermWeights()
		}
		if l, is := s.Scorer.(plugins.Learner); is {
			ix.learners = append(ix.learners, l)
		}
	}

	ix.readAnew()
	return ix
}

// followLog applies the log to the data shared by rankings and bases.
func (ix *index) followLog() {
	changes, known := ix.c.Log.Since(ix.synced)
	if !known {
		ix.readAnew()
		return
	}

	for i := range changes {
		change := &changes[i]
		ix.updateBalance(change.Node)
		switch change.Kind {
		case cluster.NodeChanged:
			ix.nodesVersion++
			ix.readNode(change.Node)
			ix.followNominations(change.Node)
		case cluster.PodAdded:
			ix.terms.addPod(change.Class)
			ix.placed.countPod(change.Class, change.Node, change.Terminating, 1)
		case cluster.PodRemoved:
			ix.terms.removePod(change.Class)
			ix.placed.countPod(change.Class, change.Node, change.Terminating, -1)
		case cluster.Nomination:
			ix.followNominations(change.Node)
		}
	}

	ix.synced = ix.c.Log.Len()
}

// readAnew scans the whole cluster: for a new index, and after the log has dropped changes that the
// index had not applied. Versions continue to grow, so that older data is recognized as outdated.
func (ix *index) readAnew() {
	ix.synced = ix.c.Log.Len()
	ix.nodesVersion++
	ix.terms = newTerms(ix.terms.version + 1)
	ix.countPlaced()
	clear(ix.guests)

	for i, n := range ix.c.Nodes {
		ix.updateBalance(int32(i))
		ix.readNode(int32(i))
		ix.followNominations(int32(i))
		if n == nil {
			continue
		}
		for _, p := range n.Pods {
			ix.terms.addPod(p.Class)
		}
	}
}

// readNode rereads a node's labels.
func (ix *index) readNode(node int32) {
	ix.keys.updateNode(ix.c, node)
	for _, t := range ix.topologies {
		t.updateNode(ix.c, node)
	}
}

// nodeParts holds the parts of a node read by a plan without perNode, except for pods and size.
type nodeParts struct {
	cluster.Parts
	hostname bool
}

// partsOfNodes returns the fields parts and manyParts, recomputed if nodes have changed.
func (ix *index) partsOfNodes() (of []int32, many int) {
	if ix.partsVersion == ix.nodesVersion {
		return ix.parts, ix.manyParts
	}

	numbers := map[nodeParts]int32{}
	ix.parts = slices.Grow(ix.parts[:0], len(ix.c.Nodes))
	for _, n := range ix.c.Nodes {
		parts := nodeParts{}
		if n != nil {
			parts = nodeParts{n.Parts, n.Hostname.Known}
			parts.Size = nil
		}
		number, known := numbers[parts]
		if !known {
			number = int32(len(numbers))
			numbers[parts] = number
		}
		ix.parts = append(ix.parts, number)
	}
	ix.manyParts, ix.partsVersion = len(numbers), ix.nodesVersion
	return ix.parts, ix.manyParts
}

// followNominations records the pods nominated to a node. Their terms count as if the pods were
// placed, because the pods may be placed there.
func (ix *index) followNominations(node int32) {
	before := ix.guests[node]
	var now []*cluster.PodClass
	if n := ix.c.Nodes[node]; n != nil {
		for _, p := range n.Nominated {
			ix.terms.addPod(p.Class)
			now = append(now, p.Class)
		}
	}
	for _, class := range before {
		ix.terms.removePod(class)
	}
	if len(now) > 0 {
		ix.guests[node] = now
	} else {
		delete(ix.guests, node)
	}
}

// updateBalance computes a node's balance; see index.
func (ix *index) updateBalance(node int32) {
	for int(node) >= len(ix.balance) {
		ix.balance = append(ix.balance, 0)
	}
	ix.balance[node] = 0
	if room := &ix.c.Rooms[node]; room.CPU > 0 && room.Memory > 0 {
		ix.balance[node] = int8(plugins.BalanceScore(room.RequestedCPU, room.CPU, room.RequestedMemory, room.Memory))
	}
	if n := ix.c.Nodes[node]; n != nil && len(n.Nominated) > 0 {
		ix.balance[node] |= hasGuests
	}
}

// hasGuests is set in the balance of nodes with nominated pods.
const hasGuests = -128

// topologyFor returns the topology of a label, creating it if necessary. The index keeps it up to
// date.
func (ix *index) topologyFor(label string, perNode bool) *topology {
	key := topologyKey{label, perNode}
	t, known := ix.topologies[key]
	if !known {
		t = newTopology(ix.c, label, perNode)
		t.id = ix.nextTopology
		ix.nextTopology++
		ix.topologies[key] = t
	}
	return t
}

// mayBeRepelled reports whether the required anti-affinity of any pod matches the class.
func (ix *index) mayBeRepelled(class *cluster.PodClass) bool {
	users := ix.terms.usersFor(class.Labels)
	if len(users) == 0 {
		return false
	}
	affinities := plugins.NewAffinities(ix.c, class)
	return slices.ContainsFunc(users, func(u *termUsers) bool {
		return len(u.class.RequiredAntiAffinity) > 0 && len(ix.termEffects(u, class, affinities).repelled) > 0
	})
}

// manyLabels is the minimum number of labels that a pod must have for the cost of matching other
// pods' terms to be estimated in advance.
const manyLabels = 1000

// selectsTooMuch reports whether it would cost more than half of an attempt's effort to match the
// pod's terms against the looks that they may select, or to match the pod's labels against the
// terms of other pods. An object may hold tens of thousands of terms or labels.
func (ix *index) selectsTooMuch(p *cluster.Pod) bool {
	class := p.Class
	if class.Labels.Len() >= manyLabels && ix.looksAtLabels(class) > ix.limits.Effort/2 {
		return true
	}
	if len(class.RequiredAffinity)+len(class.RequiredAntiAffinity)+len(class.PreferredAffinity)+
		len(class.PreferredAntiAffinity) < ix.limits.ManyTerms {
		return false
	}

	terms, _ := sizeOf(class)
	selectors := termSelectors(class)
	ix.nameKeys(selectors...)
	most, found := ix.limits.Effort/2/max(1, int(terms)), &ix.placed
	if found.looks.Len() <= most {
		return false
	}

	found.beginSearch()
	for _, selector := range selectors {
		labels, everybody := cluster.RequiredLabels(selector)
		if everybody {
			return true
		}
		for _, at := range labels {
			if found.findLooks(&found.byLabel, shortHashOf(at.Key, at.Value)); len(found.found) > most {
				return true
			}
		}
	}

	return false
}

// looksAtLabels estimates the number of labels to compare when matching other pods' terms against
// the class.
func (ix *index) looksAtLabels(class *cluster.PodClass) (looks int) {
	for _, users := range ix.terms.usersFor(class.Labels) {
		for term := range users.countTerms() {
			looks += users.selectorOf(term).Looks(class.Labels)
		}
	}
	return looks
}

// ErrTooLong is the error of a preemption that exhausts its effort before finding a node. Computed
// results are kept if possible, and the next attempt continues from them.
var ErrTooLong error = &effort.TooLongError{What: "finding pods to preempt"}

var errTermsTooLong error = &effort.TooLongError{What: "counting the pods that so many terms may select"}

var errGuestsTooLong error = &effort.TooLongError{What: "judging nodes that other pods are nominated to"}
