// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
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
