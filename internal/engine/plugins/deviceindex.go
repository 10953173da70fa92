// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// deviceIndex indexes the devices in slices and claims: the nodes that offer each device, and the
// taken devices. It follows the tables of its cluster change by change, and records for every node
// the last change of its devices, so that results for the other nodes stay valid.
//
// It changes only in followCluster, never while nodes are judged, except for nodes and contents:
// these may grow during judging, guarded by the mutex.
type deviceIndex struct {
	c *cluster.Cluster
	// claims and slices are the versions of the tables followed so far. The counter now is the
	// number of changes applied.
	claims, slices, now uint64

	sliceOf map[string]*resourcev1.ResourceSlice
	// sharedPools counts the pools that are not tied to single nodes. sharedAt is the value of
	// the counter at the last change of such a slice or of its devices.
	sharedPools int
	sharedAt    uint64

	// mutex guards nodes and contents, which may grow during judging.
	mutex    sync.Mutex
	nodes    map[string]*nodeDevices
	contents map[string]*deviceContent

	// held is the counted allocation of each claim. claimsIn lists these claims by the pools of
	// their devices, each with a holder found on a node (see attempt.isReleasing), or nil.
	held     map[cluster.Name]*resourcev1.AllocationResult
	claimsIn map[poolID]map[cluster.Name]*cluster.Pod
	deviceUse
	// extended lists the claims for extended resources by pod; owners holds the pod of each such
	// claim.
	extended map[types.UID]map[cluster.Name]bool
	owners   map[cluster.Name]types.UID
}

// deviceUse counts the use of devices by claims. holders counts the claims holding a device as a
// whole, and shares lists the claims holding a share of a device; taken holds the same information
// in the allocator's form.
type deviceUse struct {
	pools   map[poolID]*devicePool // all pools of the index, to look up devices
	holders map[structured.DeviceID]int
	shares  map[structured.DeviceID]map[structured.SharedDeviceID]*resourcev1.DeviceRequestAllocationResult
	taken   structured.AllocatedState
}

func newDeviceUse(pools map[poolID]*devicePool) deviceUse {
	return deviceUse{
		pools:   pools,
		holders: map[structured.DeviceID]int{},
		shares:  map[structured.DeviceID]map[structured.SharedDeviceID]*resourcev1.DeviceRequestAllocationResult{},
		taken: structured.AllocatedState{
			AllocatedDevices: sets.New[structured.DeviceID](), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
			AggregatedCapacity: structured.NewConsumedCapacityCollection(),
		},
	}
}

// poolID identifies a pool: names of pools are unique only within a driver.
type poolID struct{ driver, name string }

// devicePool is a pool of devices. Its slices, by name, may belong to several nodes.
type devicePool struct {
	slices map[string]*resourcev1.ResourceSlice
	// nodes are the nodes with an exclusive slice of the pool. shared reports slices for more than
	// one node.
	nodes  map[string]bool
	shared bool
}

// nodeDevices are the devices tied to a single node. A node's entry lives as long as the index:
// callers keep a pointer to it to compare changed.
type nodeDevices struct {
	pools   map[poolID]*devicePool
	slices  []*resourcev1.ResourceSlice // slices of all the node's pools, by name; lazily filled
	content *nodeContent                // content of these slices; lazily filled
	changed uint64                      // value of deviceIndex.now at the last change of these devices, or of the claims holding them
}

// followCluster brings the index up to date. It rebuilds the index for another cluster, and if most
// entries belong to deleted nodes. now continues to count, which invalidates all earlier results.
func (x *deviceIndex) followCluster(c *cluster.Cluster) {
	if x.c == c && x.claims == c.ResourceClaims.Version && x.slices == c.ResourceSlices.Version {
		return
	}
	if x.c != c || len(x.nodes) > 2*len(c.Nodes)+len(x.sliceOf) { // too many deleted nodes
		*x = deviceIndex{
			c: c, now: x.now + 1, claims: c.ResourceClaims.Version - 1, slices: c.ResourceSlices.Version - 1,
			sliceOf: map[string]*resourcev1.ResourceSlice{}, nodes: map[string]*nodeDevices{}, contents: map[string]*deviceContent{},
			held: map[cluster.Name]*resourcev1.AllocationResult{}, claimsIn: map[poolID]map[cluster.Name]*cluster.Pod{},
			deviceUse: newDeviceUse(map[poolID]*devicePool{}),
			extended:  map[types.UID]map[cluster.Name]bool{}, owners: map[cluster.Name]types.UID{},
		}
		x.sharedAt = x.now
		x.readSlices(nil)
		for claim := range c.ResourceClaims.Each {
			x.readClaim(cluster.Name{Namespace: claim.Namespace, Name: claim.Name})
		}
		x.claims, x.slices = c.ResourceClaims.Version, c.ResourceSlices.Version
		// The first call of Since makes the tables keep the changes since that version.
		c.ResourceClaims.Since(x.claims)
		c.ResourceSlices.Since(x.slices)
		return
	}
	if x.slices != c.ResourceSlices.Version {
		names, known := c.ResourceSlices.Since(x.slices)
		if !known {
			names = nil
		}
		x.slices = c.ResourceSlices.Version
		x.readSlices(names)
	}
	if x.claims != c.ResourceClaims.Version {
		x.followClaims()
	}
}

// readSlices rereads the named slices, or all slices if names is nil. It rebuilds each pool that
// gains or loses a slice once.
func (x *deviceIndex) readSlices(names []cluster.Name) {
	// Slices of one pool tend to change together; rebuild the pool once for all of them.
	dirty := map[poolID]bool{}
	if names == nil {
		for name := range x.sliceOf {
			x.readSlice(name, dirty)
		}
		for slice := range x.c.ResourceSlices.Each {
			x.readSlice(slice.Name, dirty)
		}
	}
	for _, name := range names {
		x.readSlice(name.Name, dirty)
	}
	for id := range dirty {
		x.rebuildPool(id)
	}
}

// readSlice reads the current state of one slice, and records the pools it leaves and enters. A
// slice may move to another pool.
func (x *deviceIndex) readSlice(name string, dirty map[poolID]bool) {
	before := x.sliceOf[name]
	now, exists := x.c.ResourceSlices.Get("", name)
	// The slice is unchanged, like most slices when all slices are reread.
	if exists && before == now {
		return
	}

	if before != nil {
		id := poolOf(before)
		delete(x.pools[id].slices, name)
		delete(x.sliceOf, name)
		dirty[id] = true
	}

	if exists {
		id := poolOf(now)
		if x.pools[id] == nil {
			x.pools[id] = &devicePool{slices: map[string]*resourcev1.ResourceSlice{}}
		}
		x.pools[id].slices[name] = now
		x.sliceOf[name] = now
		dirty[id] = true
	}
}

func poolOf(slice *resourcev1.ResourceSlice) poolID {
	return poolID{slice.Spec.Driver, slice.Spec.Pool.Name}
}

// rebuildPool recomputes the nodes of a pool's devices. Both the nodes that lose the pool and the
// nodes that gain it have changed, so the pool is touched before and after.
func (x *deviceIndex) rebuildPool(id poolID) {
	pool := x.pools[id]
	x.touchPool(pool)
	for node := range pool.nodes {
		devices := x.devicesOf(node)
		delete(devices.pools, id)
		x.loseContent(devices)
	}

	// Subtract the old state from the counts before adding the new one.
	if pool.shared {
		x.sharedPools--
	}
	pool.nodes, pool.shared = map[string]bool{}, false
	counters := false
	for _, slice := range pool.slices {
		if isLocal(slice) {
			pool.nodes[*slice.Spec.NodeName] = true
		} else {
			pool.shared = true
		}
		counters = counters || len(slice.Spec.SharedCounters) > 0
	}

	// Devices of any slice of the pool may use the counters.
	if pool.shared = pool.shared || counters && len(pool.nodes) > 1; pool.shared {
		x.sharedPools++
	}
	for node := range pool.nodes {
		devices := x.devicesOf(node)
		if devices.pools == nil {
			devices.pools = map[poolID]*devicePool{}
		}
		devices.pools[id] = pool
		x.loseContent(devices)
	}

	x.takeSharesWhole(pool)
	x.touchPool(pool)
	if len(pool.slices) == 0 {
		delete(x.pools, id)
	}
}

// isLocal reports whether the slice's devices belong to a single node.
func isLocal(slice *resourcev1.ResourceSlice) bool {
	return slice.Spec.NodeName != nil && *slice.Spec.NodeName != ""
}

// isTaken reports whether a claim holds the device, or a share of it.
func (x *deviceIndex) isTaken(device structured.DeviceID) bool {
	return x.holders[device] > 0 || len(x.shares[device]) > 0
}

// touchPool records a change of the pool's devices, or of the claims holding them.
func (x *deviceIndex) touchPool(pool *devicePool) {
	x.now++
	for node := range pool.nodes {
		x.devicesOf(node).changed = x.now
	}
	if pool.shared {
		x.sharedAt = x.now
	}
}

// devicesOf returns a node's local devices. It returns an empty entry for a node without devices,
// never nil.
func (x *deviceIndex) devicesOf(name string) *nodeDevices {
	x.mutex.Lock()
	defer x.mutex.Unlock()
	devices := x.nodes[name]
	if devices == nil {
		devices = &nodeDevices{}
		x.nodes[name] = devices
	}
	return devices
}

// slicesFor returns all slices needed by the allocator to judge a node, provided nodes share no
// pools. A pool is only complete with all of its slices, so the result also includes other nodes'
// slices in the node's pools. It is sorted by name.
func (x *deviceIndex) slicesFor(name string) []*resourcev1.ResourceSlice {
	devices := x.devicesOf(name)
	x.mutex.Lock()
	defer x.mutex.Unlock()
	if devices.slices == nil {
		for _, pool := range devices.pools {
			devices.slices = slices.AppendSeq(devices.slices, maps.Values(pool.slices))
		}
		slices.SortFunc(devices.slices, func(a, b *resourcev1.ResourceSlice) int { return cmp.Compare(a.Name, b.Name) })
	}
	return devices.slices
}
