package plugins

import (
	"cmp"
	"slices"
	"sync"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// deviceIndex indexes what slices and claims say of devices: which node offers them, and which are
// taken. It follows the tables of its cluster change by change, and knows for every node when its
// devices last changed, so that what was computed for the other nodes stays valid.
//
// It changes only in followCluster, never while nodes are judged; only nodes and contents, which
// the mutex guards, grow then.
type deviceIndex struct {
	c *cluster.Cluster
	// claims and slices are the versions of the tables that the index has followed. now counts the
	// changes that it has applied.
	claims, slices, now uint64

	sliceOf map[string]*resourcev1.ResourceSlice
	pools   map[poolID]*devicePool
	// sharedPools counts the pools with slices that do not belong to one node alone. sharedAt is
	// when such a slice, or a device of one, last changed.
	sharedPools int
	sharedAt    uint64

	// mutex guards nodes and contents, to which nodes without devices and what they have in common
	// are added during judging.
	mutex    sync.Mutex
	nodes    map[string]*nodeDevices
	contents map[string]*deviceContent

	// held is the allocation that each claim is counted with. holders counts the claims that hold a
	// device as a whole, and shares has the claims that hold a share of one; taken is the same in
	// the allocator's form.
	held    map[cluster.Name]*resourcev1.AllocationResult
	holders map[structured.DeviceID]int
	shares  map[structured.DeviceID]map[structured.SharedDeviceID]*resourcev1.DeviceRequestAllocationResult
	taken   structured.AllocatedState
	// extended has the claims for extended resources by pod, and owners the pod of each such claim.
	extended map[types.UID]map[cluster.Name]bool
	owners   map[cluster.Name]types.UID
}

// poolID identifies a pool: names of pools are unique within a driver only.
type poolID struct{ driver, name string }

// devicePool is a pool of devices. Its slices, by name, may be of several nodes.
type devicePool struct {
	slices map[string]*resourcev1.ResourceSlice
	// nodes are the nodes with a slice of the pool to themselves. shared tells that there are
	// slices for more than one node.
	nodes  map[string]bool
	shared bool
}

// nodeDevices are the devices that belong to one node alone. The entry of a node stays the same as
// long as the index does: others keep a pointer to it to compare changed.
type nodeDevices struct {
	pools   map[poolID]*devicePool
	slices  []*resourcev1.ResourceSlice // of all its pools, by name; nil until needed
	content *nodeContent                // of these; nil until needed
	changed uint64                      // when they, or the claims that hold them, last changed
}

// followCluster brings the index up to date. It begins anew for another cluster, and when most
// entries are of nodes that no longer exist. now goes on counting then, so that what was computed
// before is out of date.
func (x *deviceIndex) followCluster(c *cluster.Cluster) {
	if x.c != c || len(x.nodes) > 2*len(c.Nodes)+len(x.sliceOf) { // too many nodes that no longer exist
		*x = deviceIndex{
			c: c, now: x.now + 1, claims: c.ResourceClaims.Version - 1, slices: c.ResourceSlices.Version - 1,
			sliceOf: map[string]*resourcev1.ResourceSlice{}, pools: map[poolID]*devicePool{}, nodes: map[string]*nodeDevices{},
			contents: map[string]*deviceContent{},
			held:     map[cluster.Name]*resourcev1.AllocationResult{}, holders: map[structured.DeviceID]int{},
			shares: map[structured.DeviceID]map[structured.SharedDeviceID]*resourcev1.DeviceRequestAllocationResult{},
			taken: structured.AllocatedState{
				AllocatedDevices: sets.New[structured.DeviceID](), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
				AggregatedCapacity: structured.NewConsumedCapacityCollection(),
			},
			extended: map[types.UID]map[cluster.Name]bool{}, owners: map[cluster.Name]types.UID{},
		}
		x.sharedAt = x.now
		x.readSlices(nil)
		for claim := range c.ResourceClaims.Each {
			x.readClaim(cluster.Name{Namespace: claim.Namespace, Name: claim.Name})
		}
		x.claims, x.slices = c.ResourceClaims.Version, c.ResourceSlices.Version
		// Asking once tells the tables from which version on to keep the changes.
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

// readSlices rereads the slices of these names, or all for nil. Pools that gain or lose a slice are
// rebuilt, once each.
func (x *deviceIndex) readSlices(names []cluster.Name) {
	// Slices of one pool tend to change together: the pool is rebuilt once for all of them.
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

// readSlice takes in one slice as it is now, and notes the pools that it leaves and enters. A slice
// may move to another pool.
func (x *deviceIndex) readSlice(name string, dirty map[poolID]bool) {
	before := x.sliceOf[name]
	now, exists := x.c.ResourceSlices.Get("", name)
	// Unchanged: after a reread of all slices this is most of them.
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

// rebuildPool recomputes which nodes a pool's devices belong to. Nodes that lose the pool and nodes
// that gain it have both changed, so it is touched before and after.
func (x *deviceIndex) rebuildPool(id poolID) {
	pool := x.pools[id]
	x.touchPool(pool)
	for node := range pool.nodes {
		of := x.devicesOf(node)
		delete(of.pools, id)
		x.loseContent(of)
	}

	// The old state is taken out of the counts before the new one is added.
	if pool.shared {
		x.sharedPools--
	}
	pool.nodes, pool.shared = map[string]bool{}, false
	for _, slice := range pool.slices {
		if isLocal(slice) {
			pool.nodes[*slice.Spec.NodeName] = true
		} else {
			pool.shared = true
		}
	}

	if pool.shared {
		x.sharedPools++
	}
	for node := range pool.nodes {
		of := x.devicesOf(node)
		if of.pools == nil {
			of.pools = map[poolID]*devicePool{}
		}
		of.pools[id] = pool
		x.loseContent(of)
	}

	x.takeSharesWhole(pool)
	x.touchPool(pool)
	if len(pool.slices) == 0 {
		delete(x.pools, id)
	}
}

// isLocal reports whether the slice's devices belong to one node alone. Slices with counters do not
// count as such: the counters are used by devices of other slices.
func isLocal(slice *resourcev1.ResourceSlice) bool {
	return slice.Spec.NodeName != nil && *slice.Spec.NodeName != "" && len(slice.Spec.SharedCounters) == 0
}

// isTaken reports whether a claim holds the device, or a share of it.
func (x *deviceIndex) isTaken(device structured.DeviceID) bool {
	return x.holders[device] > 0 || len(x.shares[device]) > 0
}

// touchPool records that the pool's devices, or the claims that hold them, have changed.
func (x *deviceIndex) touchPool(pool *devicePool) {
	x.now++
	for node := range pool.nodes {
		x.devicesOf(node).changed = x.now
	}
	if pool.shared {
		x.sharedAt = x.now
	}
}

// devicesOf returns a node's own devices; an entry without any for a node that has none. It never
// returns nil.
func (x *deviceIndex) devicesOf(name string) *nodeDevices {
	x.mutex.Lock()
	defer x.mutex.Unlock()
	of := x.nodes[name]
	if of == nil {
		of = &nodeDevices{}
		x.nodes[name] = of
	}
	return of
}

// slicesFor returns all slices that the allocator needs to judge a node, if no pool is shared
// between nodes: those of the node's pools, also slices of other nodes in them, since a pool is
// only complete with all of its slices. They are sorted by name.
func (x *deviceIndex) slicesFor(name string) []*resourcev1.ResourceSlice {
	of := x.devicesOf(name)
	x.mutex.Lock()
	defer x.mutex.Unlock()
	if of.slices == nil {
		for _, pool := range of.pools {
			for _, slice := range pool.slices {
				of.slices = append(of.slices, slice)
			}
		}
		slices.SortFunc(of.slices, func(a, b *resourcev1.ResourceSlice) int { return cmp.Compare(a.Name, b.Name) })
	}
	return of.slices
}
