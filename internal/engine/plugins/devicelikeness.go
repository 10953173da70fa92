// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"cmp"
	"encoding/binary"
	"maps"
	"slices"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// likeness is a map key, equal for nodes with interchangeable devices: their slices differ only in
// the names of the node and its pools, the same devices are allocated, and the consumed capacity of
// shared devices is equal. Nodes with equal likeness offer a claim the same devices, so one search
// serves, for example, a hundred nodes.
type likeness struct {
	content *deviceContent
	taken   string // a bit for each device, then the consumption of shared devices
}

// deviceContent identifies the content of a node's slices. Equal contents share one pointer while
// any node has them.
type deviceContent struct {
	key     string // its key in deviceIndex.contents
	nodes   int    // number of nodes with this content
	devices int
}

// nodeContent holds a node's local devices in the allocator's search order.
type nodeContent struct {
	content *deviceContent // nil: the node has no likeness
	pools   []poolID
	devices []structured.DeviceID
	shared  []int // indices of devices with shares
	// likeness is valid as long as nodeDevices.changed has the value at.
	likeness likeness
	at       uint64
}

// mostContents bounds the number of distinct contents. Drivers that give devices unique attributes
// make every node different.
const mostContents = 1 << 12

// likenessOf returns the node's likeness. ok is false if the node has no likeness because it shares
// devices, or parts of devices, with other nodes.
func (x *deviceIndex) likenessOf(n *cluster.Node) (like likeness, pools []poolID, ok bool) {
	if x.sharedPools > 0 {
		return likeness{}, nil, false
	}
	devices := x.withContent(n.Name)
	x.mutex.Lock()
	defer x.mutex.Unlock()
	if devices.content.content == nil {
		return likeness{}, nil, false
	}
	if devices.content.likeness.content == nil || devices.content.at != devices.changed {
		devices.content.likeness, devices.content.at = likeness{devices.content.content, string(x.takenOf(devices.content))}, devices.changed
	}
	return devices.content.likeness, devices.content.pools, true
}

// withContent returns a node's local devices with their content, which is filled in if necessary.
func (x *deviceIndex) withContent(node string) *nodeDevices {
	own := x.slicesFor(node)
	x.mutex.Lock()
	defer x.mutex.Unlock()
	devices := x.nodes[node]
	if devices.content == nil {
		devices.content = x.contentOf(node, devices, own)
	}
	return devices
}

// takenOf encodes the taken part of a node's devices, in the order of their content. Amounts are
// encoded as decimals, regardless of their original units.
func (u *deviceUse) takenOf(content *nodeContent) []byte {
	taken := make([]byte, (len(content.devices)+7)/8)
	for i, device := range content.devices {
		if u.taken.AllocatedDevices.Has(device) {
			taken[i/8] |= 1 << (i % 8)
		}
	}

	for _, i := range content.shared {
		consumed := u.taken.AggregatedCapacity[content.devices[i]]
		for _, name := range slices.Sorted(maps.Keys(consumed)) {
			if amount := consumed[name]; amount != nil && !amount.IsZero() {
				value := *amount // formatting may modify the value, which is shared
				taken = append(binary.AppendUvarint(taken, uint64(len(name))), name...)
				text := value.AsDec().String()
				taken = append(binary.AppendUvarint(taken, uint64(len(text))), text...)
			}
		}
		taken = append(taken, 0) //nolint:makezero // ends the device's entry, after the bits
	}
	return taken
}

// contentOf reads the slices of a node. The result's content is nil if no other node can have the
// same likeness: a slice selects nodes by other means than this node's name, or the index already
// holds mostContents contents. The caller holds the mutex.
func (x *deviceIndex) contentOf(node string, of *nodeDevices, own []*resourcev1.ResourceSlice) *nodeContent {
	content := &nodeContent{pools: slices.SortedFunc(maps.Keys(of.pools), func(a, b poolID) int {
		return cmp.Or(cmp.Compare(a.driver, b.driver), cmp.Compare(a.name, b.name))
	})}
	var key []byte
	for _, id := range content.pools {
		for _, slice := range own { // by name, in the allocator's order
			if poolOf(slice) != id {
				continue
			}
			spec := slice.Spec
			if *spec.NodeName != node || spec.PerDeviceNodeSelection != nil || spec.NodeSelector != nil || spec.AllNodes != nil {
				return &nodeContent{}
			}
			spec.NodeName, spec.Pool.Name = nil, ""
			said, err := spec.Marshal()
			if err != nil {
				return &nodeContent{}
			}
			key = append(binary.AppendUvarint(key, uint64(len(said))), said...)
			for i := range spec.Devices {
				if shared := spec.Devices[i].AllowMultipleAllocations; shared != nil && *shared {
					content.shared = append(content.shared, len(content.devices))
				}
				content.devices = append(content.devices, structured.MakeDeviceID(id.driver, id.name, spec.Devices[i].Name))
			}
		}
		key = append(key, 0) // ends the pool: the length of a slice is never 0
	}

	known := x.contents[string(key)]
	if known == nil {
		if len(x.contents) >= mostContents {
			return &nodeContent{}
		}
		known = &deviceContent{key: string(key), devices: len(content.devices)}
		x.contents[known.key] = known
	}
	known.nodes++
	content.content = known
	return content
}

// loseContent drops the content of a node's slices, and deletes it from the index with its last
// node. Otherwise contents would accumulate, since each generation of a pool has a new one.
func (x *deviceIndex) loseContent(devices *nodeDevices) {
	if devices.content != nil && devices.content.content != nil {
		lost := devices.content.content
		if lost.nodes--; lost.nodes == 0 {
			delete(x.contents, lost.key)
		}
	}
	devices.slices, devices.content = nil, nil
}

// exampleAllocations holds the offer of one of several nodes with equal likeness. pools lists the
// pools of that node in the order of nodeContent.pools; pools with the same index correspond to
// each other.
type exampleAllocations struct {
	*claimAllocations
	pools []poolID
}

// mostExamples bounds the examples kept per shape.
const mostExamples = 1 << 10

// allocationsLike returns the known offer of a node with the likeness of n, translated to n, or
// nil. Rejections need no translation.
func (s *deviceShape) allocationsLike(n *cluster.Node, like likeness, pools []poolID) *claimAllocations {
	s.mutex.Lock()
	example, ok := s.examples[like]
	s.mutex.Unlock()
	if !ok {
		return nil
	}
	if example.rejection != nil {
		return example.claimAllocations
	}
	return example.moveTo(n.Name, pools)
}

// keepExample stores a node's offer for the nodes with equal likeness. undo removes it.
func (s *deviceShape) keepExample(like likeness, pools []poolID, found *claimAllocations) (undo func()) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.examples == nil || len(s.examples) >= mostExamples {
		s.examples = map[likeness]exampleAllocations{}
	}
	s.examples[like] = exampleAllocations{found, pools}
	return func() {
		s.mutex.Lock()
		defer s.mutex.Unlock()
		delete(s.examples, like)
	}
}

// moveTo translates the example to another node by replacing the names of pools, and of the node in
// the selector. It does not modify the example.
func (e exampleAllocations) moveTo(node string, pools []poolID) *claimAllocations {
	moved := &claimAllocations{results: make([]resourcev1.AllocationResult, len(e.results))}
	for i := range e.results {
		result := e.results[i].DeepCopy()
		for j := range result.Devices.Results {
			device := &result.Devices.Results[j]
			device.Pool = pools[slices.Index(e.pools, poolID{device.Driver, device.Pool})].name
			if device.ShareID != nil { // a new ID: the example may be reused while the share exists
				device.ShareID = new(uuid.NewUUID())
			}
		}
		if result.NodeSelector != nil { // local devices: the selector contains only the node's name
			result.NodeSelector.NodeSelectorTerms[0].MatchFields[0].Values[0] = node
		}
		moved.results[i] = *result
	}
	return moved
}
