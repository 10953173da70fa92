// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// topology divides the nodes by the value of one label into domains, represented by small integers.
// It is shared by all rankings and bases.
//
// Invariant: the chain of a domain contains exactly the nodes in that domain. changes grows
// whenever a node moves to another domain, so that rankings can detect outdated counts.
type topology struct {
	id  int32 // never reused
	key string
	// perNode is set if every node is a separate domain. If key is not empty, nodes without a host
	// name have no domain.
	perNode bool

	domain []int32 // by node; none if the node lacks the label or does not exist
	values map[string]int32
	names  []string // label values, by domain
	// vacant lists domains that lost their last node. New values reuse these domains. This is safe
	// because counts by domain are recomputed after a node has moved to another domain.
	vacant []int32
	// The nodes of a domain form a chain: first by domain, next by node.
	first, next []int32
	changes     int // number of moves of nodes to another domain or to none
}

const none = int32(-1)

// newTopology reads the domain of every node.
func newTopology(c *cluster.Cluster, key string, perNode bool) *topology {
	t := &topology{key: key, perNode: perNode, values: map[string]int32{}}
	for i := range c.Nodes {
		t.updateNode(c, int32(i))
	}
	return t
}

// domainCount returns the number of domains, including vacant ones.
func (t *topology) domainCount() int {
	if t.perNode {
		return len(t.domain)
	}
	return len(t.first)
}

// isAlone reports whether the node is the only one in its domain.
func (t *topology) isAlone(node int32) bool {
	domain := t.domain[node]
	return domain != none && (t.perNode || t.first[domain] == node && t.next[node] == none)
}

// updateNode rereads the node's label.
func (t *topology) updateNode(c *cluster.Cluster, node int32) {
	for int(node) >= len(t.domain) {
		t.domain, t.next = append(t.domain, none), append(t.next, none)
	}
	now := t.readDomain(c.Nodes[node], node)
	if before := t.domain[node]; before != now {
		t.changes++
		t.unlinkNode(node, before)
		t.linkNode(node, now)
	}
}

func (t *topology) readDomain(n *cluster.Node, node int32) int32 {
	if n == nil {
		return none
	}
	if t.perNode {
		if n.Hostname.Known || t.key == "" {
			return node
		}
		return none
	}

	value, ok := n.Lookup(t.key)
	if !ok {
		return none
	}

	domain, known := t.values[value]
	if known {
		return domain
	}

	if last := len(t.vacant) - 1; last >= 0 {
		domain, t.vacant = t.vacant[last], t.vacant[:last]
		t.names[domain] = value
	} else {
		domain = int32(len(t.first))
		t.first, t.names = append(t.first, none), append(t.names, value)
	}

	t.values[value] = domain
	return domain
}

// linkNode inserts a node into the chain of its domain. Chains are linked through arrays indexed by
// node, so a change of a domain allocates no memory. A topology with perNode has no chains, since
// each node is its own domain.
func (t *topology) linkNode(node, domain int32) {
	t.domain[node] = domain
	if domain != none && !t.perNode {
		t.next[node], t.first[domain] = t.first[domain], node
	}
}

// unlinkNode removes a node from its domain. If the domain has no nodes left, its number is reused
// for the next new domain. Code that stores domain numbers must therefore check changes.
func (t *topology) unlinkNode(node, domain int32) {
	t.domain[node] = none
	if domain == none || t.perNode {
		return
	}
	if t.first[domain] == node {
		if t.first[domain] = t.next[node]; t.first[domain] == none {
			delete(t.values, t.names[domain])
			t.names[domain] = ""
			t.vacant = append(t.vacant, domain)
		}
		return
	}

	for before := t.first[domain]; before != none; before = t.next[before] {
		if t.next[before] == node {
			t.next[before] = t.next[node]
			return
		}
	}
}

// eachNode calls f for every node of the domain.
func (t *topology) eachNode(domain int32, f func(node int32)) {
	if t.perNode {
		f(domain)
		return
	}
	for node := t.first[domain]; node != none; node = t.next[node] {
		f(node)
	}
}

// topologyAxis is a topology used by a base to group its nodes.
type topologyAxis struct {
	*topology
	byCount bool // there are many domains, so nodes are divided only by whether they have a domain
	soft    bool // a soft constraint uses the topology, so limitAxes must not set byCount
}

// inclusionSet counts, by domain, the nodes included by a hard spread constraint. The constraint
// considers only the domains with such a node.
type inclusionSet struct {
	keys       []*topology // topologies of all hard constraints of the pod; included nodes have all their labels
	constraint plugins.SpreadConstraint
	topology   *topology

	domains  []int32 // by node: domain in which it is counted, or none
	included []int32 // by domain: number of included nodes
	present  int     // number of domains with included nodes
}

// updateNode recounts a node; n is nil for a deleted node.
func (s *inclusionSet) updateNode(node int32, n *cluster.Node, by *plugins.SpreadInclusion) {
	for int(node) >= len(s.domains) {
		s.domains = append(s.domains, none)
	}
	now := none
	if n != nil && !slices.ContainsFunc(s.keys, func(t *topology) bool { return t.domain[node] == none }) &&
		by.Includes(&s.constraint, n) {
		now = s.topology.domain[node]
	}

	for len(s.included) < s.topology.domainCount() {
		s.included = append(s.included, 0)
	}
	before := s.domains[node]
	if before == now {
		return
	}

	s.domains[node] = now
	if now != none {
		if s.included[now]++; s.included[now] == 1 {
			s.present++
		}
	}

	if before != none {
		if s.included[before]--; s.included[before] == 0 {
			s.present--
		}
	}
}
