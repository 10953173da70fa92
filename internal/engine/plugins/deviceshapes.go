// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"encoding/binary"
	"sync"
	"sync/atomic"

	resourcev1 "k8s.io/api/resource/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// deviceShapes caches the allocations each node offers to claims, by the content of the claims: a
// node makes the same offer to pods with claims that differ only in name. An entry is valid until
// the node's devices, or the claims holding them, change; see [deviceIndex].
type deviceShapes struct {
	classes uint64 // the version of the device classes behind all entries
	byKey   map[string]*deviceShape
	asked   uint64 // counts lookups, to order shapes by last use
	size    int    // total size of the keys
}

// deviceShape holds each node's offer to claims with equal content. Several goroutines search nodes
// concurrently; each writes only the slot of its node.
type deviceShape struct {
	nodes []atomic.Pointer[nodeAllocations] // by the nodes' numbers
	// used is the value of deviceShapes.asked at the shape's last use.
	used uint64

	mutex    sync.Mutex
	examples map[likeness]exampleAllocations
}

// nodeAllocations is a node's offer and the state it was computed from.
type nodeAllocations struct {
	*claimAllocations
	node individual
	own  *nodeDevices
	at   uint64 // the index's counter at the time of the computation
}

// claimAllocations holds the allocations for claims, in the order of the claims, or the reason for
// their absence. It is shared and must not be modified.
type claimAllocations struct {
	results   []resourcev1.AllocationResult
	rejection *Rejection
	names     bool // the rejection names the claim or a pool, so it is limited to one attempt
}

// ofAttempt reports whether the finding is limited to one attempt: an error, or a rejection that
// must not be repeated for similar claims and nodes.
func (g *claimAllocations) ofAttempt() bool {
	return g.rejection != nil && g.rejection.Err != nil || g.names
}

// mostAllocations bounds the entries cached over all shapes: about 40 MB. mostAsked, in bytes,
// bounds the total of cached claim contents, because the cached claims may no longer exist. It is
// half of MostBulk, because entries repeat some of the content.
const mostAllocations, mostAsked = 1 << 16, cluster.MostBulk / 2

// shapeOf returns the shape of claims, or nil if their content cannot be encoded. A shape of very
// long claims is not cached: it serves this attempt only. As the cluster grows, a shape gets an
// eighth more slots than there are nodes.
func (s *deviceShapes) shapeOf(c *cluster.Cluster, claims []*resourcev1.ResourceClaim) *deviceShape {
	key, ok := shapeKey(claims)
	if !ok {
		return nil
	}

	// The key contains the names of classes but not their selectors.
	if s.byKey == nil || s.classes != c.DeviceClasses.Version {
		s.byKey, s.classes, s.size = map[string]*deviceShape{}, c.DeviceClasses.Version, 0
	}
	s.asked++
	shape := s.byKey[key]

	if shape == nil || len(shape.nodes) < len(c.Nodes) {
		s.makeRoom(key, len(c.Nodes))
		// Make a new shape, because other goroutines may still use the old shape, which has too few
		// slots for new nodes.
		grown := &deviceShape{nodes: make([]atomic.Pointer[nodeAllocations], len(c.Nodes)+len(c.Nodes)/8)}
		if shape != nil {
			for i := range shape.nodes {
				grown.nodes[i].Store(shape.nodes[i].Load())
			}
		}
		if shape == nil && len(key) <= mostAsked {
			s.size += len(key)
		}
		if shape = grown; len(key) > mostAsked {
			return shape
		}
		s.byKey[key] = shape
	}

	shape.used = s.asked
	return shape
}

// makeRoom evicts the least recently used shapes, except for the given one. Each eviction scans all
// shapes. Shapes are few, because each has a slot for every node.
func (s *deviceShapes) makeRoom(except string, nodes int) {
	for len(s.byKey) > 0 && ((len(s.byKey)+1)*nodes > mostAllocations || s.size+len(except) > mostAsked) {
		oldest, found := "", false
		for key, shape := range s.byKey {
			if key != except && (!found || shape.used < s.byKey[oldest].used) {
				oldest, found = key, true
			}
		}
		if !found {
			return
		}
		delete(s.byKey, oldest)
		s.size -= len(oldest)
	}
}

// shapeKey encodes the content of claims: their device specs, each preceded by its length, so that
// different lists of claims have different encodings. It omits names.
func shapeKey(claims []*resourcev1.ResourceClaim) (string, bool) {
	var key []byte
	for _, claim := range claims {
		devices, err := claim.Spec.Devices.Marshal()
		if err != nil {
			return "", false
		}
		key = binary.AppendUvarint(key, uint64(len(devices)))
		key = append(key, devices...)
	}
	return string(key), true
}

// allocationsAt returns a node's offer, or nil if it is unknown or outdated by a change of the
// node's devices, of devices not tied to one node, or of the node itself. The comparison with the
// index's counters needs no lock.
func (s *deviceShape) allocationsAt(n *cluster.Node, x *deviceIndex) *claimAllocations {
	if int(n.Index) >= len(s.nodes) {
		return nil
	}
	g := s.nodes[n.Index].Load()
	if g == nil || g.at < g.own.changed || g.at < x.sharedAt || g.node != individualOf(n) {
		return nil
	}
	return g.claimAllocations
}

// keepAllocations stores a node's offer, previously unknown. undo removes it.
func (s *deviceShape) keepAllocations(n *cluster.Node, x *deviceIndex, found *claimAllocations) (undo func()) {
	if int(n.Index) >= len(s.nodes) {
		return func() {}
	}
	s.nodes[n.Index].Store(&nodeAllocations{claimAllocations: found, node: individualOf(n), own: x.devicesOf(n.Name), at: x.now})
	return func() { s.nodes[n.Index].Store(nil) }
}
