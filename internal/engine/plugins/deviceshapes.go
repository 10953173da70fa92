package plugins

import (
	"encoding/binary"
	"sync"
	"sync/atomic"

	resourcev1 "k8s.io/api/resource/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// deviceShapes keeps what nodes can give to claims, by what the claims ask for: to a node, pods
// whose claims differ only in their names are the same. An answer is valid until the node's
// devices, or the claims that hold them, change; see [deviceIndex].
type deviceShapes struct {
	classes uint64 // the version of the device classes that all was found out with
	byKey   map[string]*deviceShape
	asked   uint64 // counts questions, to tell which shape was asked for last
	size    int    // of the keys
}

// deviceShape is what each node can give to claims that ask for the same. Nodes are searched by
// several goroutines at once: each writes only the place of its node.
type deviceShape struct {
	nodes []atomic.Pointer[nodeGift] // by the nodes' numbers
	// used is deviceShapes.asked when the shape was asked for last.
	used uint64

	mutex    sync.Mutex
	examples map[likeness]exampleGift
}

// nodeGift is what a node can give, and the state that this was computed from.
type nodeGift struct {
	*gift
	node individual
	own  *nodeDevices
	at   uint64 // the index's count when it was found out
}

// gift is the allocations for claims, in the order of the claims, or the reason why there are none.
// It is shared, and must not be changed.
type gift struct {
	results   []resourcev1.AllocationResult
	rejection *Rejection
	names     bool // the rejection names the claim or a pool, so it is of one attempt
}

// ofAttempt reports whether what was found counts for one attempt: an error, or a rejection that
// other claims and nodes like these must not repeat.
func (g *gift) ofAttempt() bool { return g.rejection != nil && g.rejection.Err != nil || g.names }

// mostGifts bounds how many answers are kept over all shapes: about 40 MB. mostAsked, in bytes,
// bounds what is asked for in all, which the answers repeat in part: the claims may be gone.
const mostGifts, mostAsked = 1 << 16, cluster.MostBulk / 2

// shapeOf returns the shape of claims; nil if what they ask for cannot be encoded. A shape of very
// long claims is not kept: it serves this attempt only. The places of a shape grow with the
// cluster, by an eighth more than needed.
func (s *deviceShapes) shapeOf(c *cluster.Cluster, claims []*resourcev1.ResourceClaim) *deviceShape {
	key, ok := shapeKey(claims)
	if !ok {
		return nil
	}

	// Claims name classes, whose selectors are not in the key.
	if s.byKey == nil || s.classes != c.DeviceClasses.Version {
		s.byKey, s.classes, s.size = map[string]*deviceShape{}, c.DeviceClasses.Version, 0
	}
	s.asked++
	shape := s.byKey[key]

	if shape == nil || len(shape.nodes) < len(c.Nodes) {
		s.makeRoom(key, len(c.Nodes))
		// A new shape, since others may still hold the old one, whose places are too few for new
		// nodes.
		grown := &deviceShape{nodes: make([]atomic.Pointer[nodeGift], len(c.Nodes)+len(c.Nodes)/8)}
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

// makeRoom forgets the least recently used shapes, except for one. It goes through all of them each
// time; there are few, because each has a place for every node.
func (s *deviceShapes) makeRoom(except string, nodes int) {
	for len(s.byKey) > 0 && ((len(s.byKey)+1)*nodes > mostGifts || s.size+len(except) > mostAsked) {
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

// shapeKey encodes all that claims ask for: their device specs, each preceded by its length, so
// that no two lists of claims have the same encoding. Names are left out.
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

// giftAt returns what a node can give, or nil if that is not known or may have changed: the node's
// own devices, devices that are not of one node, or the node itself. The comparison with the
// index's counters costs no lock.
func (s *deviceShape) giftAt(n *cluster.Node, x *deviceIndex) *gift {
	if int(n.Index) >= len(s.nodes) {
		return nil
	}
	g := s.nodes[n.Index].Load()
	if g == nil || g.at < g.own.changed || g.at < x.sharedAt || g.node != individualOf(n) {
		return nil
	}
	return g.gift
}

// keepGift stores what a node can give, which was not known. undo forgets it.
func (s *deviceShape) keepGift(n *cluster.Node, x *deviceIndex, found *gift) (undo func()) {
	if int(n.Index) >= len(s.nodes) {
		return func() {}
	}
	s.nodes[n.Index].Store(&nodeGift{gift: found, node: individualOf(n), own: x.devicesOf(n.Name), at: x.now})
	return func() { s.nodes[n.Index].Store(nil) }
}
