// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"iter"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// labelKeys counts the nodes by label key. A term with a key absent from all nodes has no effect
// and is not counted.
//
// version grows only when a key appears or disappears, so relabelling nodes does not invalidate
// plans.
type labelKeys struct {
	nodes   map[string]int // number of nodes with the key
	read    []nodeKeys     // by node: the keys counted for it
	version int            // grows when a key gets its first node or loses its last node
}

type nodeKeys struct {
	labels   *cluster.LabelSet
	hostname bool
}

// updateNode recounts a node's keys.
func (k *labelKeys) updateNode(c *cluster.Cluster, node int32) {
	for int(node) >= len(k.read) {
		k.read = append(k.read, nodeKeys{})
	}
	var now nodeKeys
	if n := c.Nodes[node]; n != nil {
		now = nodeKeys{n.Labels, n.Hostname.Known}
	}
	before := k.read[node]
	if now == before {
		return
	}
	k.read[node] = now
	k.countKeys(now, 1)
	k.countKeys(before, -1)
}

// countKeys adds the labels of a node to the counts, or subtracts them.
func (k *labelKeys) countKeys(of nodeKeys, by int) {
	if of.hostname {
		k.addNodes(v1.LabelHostname, by)
	}
	if of.labels != nil {
		for key := range of.labels.Map {
			k.addNodes(key, by)
		}
	}
}

func (k *labelKeys) addNodes(key string, by int) {
	before := k.nodes[key]
	if now := before + by; now > 0 {
		k.nodes[key] = now
	} else {
		delete(k.nodes, key)
	}
	if before == 0 || before+by == 0 {
		k.version++
	}
}

// hasKey reports whether any node has the key.
func (k *labelKeys) hasKey(key string) bool { return k.nodes[key] > 0 }

// namedKeys holds the pod label keys used by selectors so far. Before searching for looks, callers
// must name the keys of the selectors. From the class of a look, callers must read only the labels
// with named keys.
//
// A new key splits looks and requires a recount of all pods. The recount is necessary even if no
// current pod has a label with the key, because the class of a look may have such a label although
// its pods were removed. To bound the number of recounts, all keys count as named once there are
// more than mostNamed.
type namedKeys struct {
	keys []string // sorted
	all  bool
}

// mostNamed bounds the number of individually named keys. Each key costs a scan of all pods.
const mostNamed = 64

// lookOf returns the look of a class, shared by all classes with the same labels for named keys.
func (n *namedKeys) lookOf(class *cluster.PodClass) [2]uint64 {
	if n.all {
		return class.Look
	}
	return class.LookBy(n.keys)
}

// labelsOf yields those labels of a class that have named keys.
func (n *namedKeys) labelsOf(class *cluster.PodClass) iter.Seq2[string, string] {
	if n.all {
		return class.Labels.All()
	}
	return class.LabelsWith(n.keys)
}

// add names the keys of a selector, and reports whether any key is new.
func (n *namedKeys) add(selector *rules.Selector) (news bool) {
	if n.all {
		return false
	}
	requirements, _ := selector.Requirements()
	for i := range requirements {
		at, known := slices.BinarySearch(n.keys, requirements[i].Key)
		if known {
			continue
		}
		news = true
		if len(n.keys) == mostNamed {
			n.keys, n.all = nil, true
			break
		}
		n.keys = slices.Insert(n.keys, at, requirements[i].Key)
	}
	return news
}

// nameKeys names the keys of selectors. Call it before searching for looks that match the
// selectors.
func (ix *index) nameKeys(selectors ...*rules.Selector) {
	news := false
	for _, selector := range selectors {
		if ix.placed.named.add(selector) {
			news = true
		}
	}
	if news {
		ix.countPlaced()
	}
}

// countPlaced recounts all placed pods.
func (ix *index) countPlaced() {
	ix.placed = placed{named: ix.placed.named, round: ix.placed.round}
	for _, n := range ix.c.Nodes {
		if n == nil {
			continue
		}
		ix.meter.Looked += len(n.Pods)
		for _, p := range n.Pods {
			ix.placed.countPod(p.Class, n.Index, p.Terminating, 1)
		}
	}
}
