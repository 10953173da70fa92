package plugins

import (
	"context"
	"errors"
	"fmt"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// allocatorFeatures are those that Kubernetes v1.36 enables by default.
var allocatorFeatures = structured.Features{
	AdminAccess: true, PrioritizedList: true, PartitionableDevices: true, DeviceTaints: true, DeviceBindingAndStatus: true,
	ConsumableCapacity: true,
}

// find returns what the node can give to the claims, from what is known of their shape or else by a
// search.
func (a *attempt) find(n *cluster.Node, open []*resourcev1.ResourceClaim, shape *deviceShape) *gift {
	if shape != nil {
		if known := shape.at(n, &a.d.index); known != nil {
			return known
		}
	}
	if a.limit.over() { // of thousands of nodes, what is not known is not looked into any more
		return timedOut(n)
	}
	if shape != nil {
		like, pools, alike := a.d.index.likenessOf(n)
		if alike {
			if known := shape.like(n, like, pools); known != nil {
				shape.keep(n, &a.d.index, known)
				return known
			}
			found := a.searchOnce(n, open, shape)
			if found.rejection == nil || found.rejection.Err == nil {
				shape.keepExample(like, pools, found)
			}
			return found
		}
	}
	return a.searchOnce(n, open, shape)
}

// searchOnce searches the node, unless a search has failed, and keeps the result.
func (a *attempt) searchOnce(n *cluster.Node, open []*resourcev1.ResourceClaim, shape *deviceShape) *gift {
	where := site{n.Name, n.Labels}
	a.mutex.Lock()
	failed := a.failures[where]
	a.mutex.Unlock()
	if failed != nil {
		return failed
	}
	found, final := a.search(n, open)
	failure := found.rejection != nil && found.rejection.Err != nil
	switch {
	case failure && final:
		a.mutex.Lock()
		if a.failures == nil {
			a.failures = map[site]*gift{}
		}
		a.failures[where] = found
		a.mutex.Unlock()
	case !failure && shape != nil:
		shape.keep(n, &a.d.index, found)
	}
	return found
}

// search looks for devices on the node for all open claims. It may have to try all combinations of
// devices, so it is cut off after a time, as upstream's. Its result is not final then.
func (a *attempt) search(n *cluster.Node, open []*resourcev1.ResourceClaim) (found *gift, final bool) {
	ctx, done := a.limit.context()
	defer done()
	allocator, err := a.allocatorFor(n)
	if err != nil {
		return &gift{rejection: &Rejection{Err: err}}, true
	}
	results, err := allocator.Allocate(ctx, n.Object(), open)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return timedOut(n), false
	case errors.Is(err, structured.ErrFailedAllocationOnNode):
		return &gift{rejection: unresolvable(codeDevicesNotAllocatable, "%v", err)}, true
	case err != nil:
		return &gift{rejection: &Rejection{Err: err}}, true
	case len(results) != len(open):
		return noDevices, true
	}
	return &gift{results: results}, true
}

func timedOut(n *cluster.Node) *gift {
	return &gift{rejection: &Rejection{Err: fmt.Errorf("node %s: timed out trying to allocate devices", n.Name)}}
}

// noDevices is the answer of nodes that cannot satisfy all claims.
var noDevices = &gift{rejection: unresolvable(codeDevicesNotAllocatable, "cannot allocate all claims")}

// allocatorFor returns an allocator with the slices that matter to the node.
func (a *attempt) allocatorFor(n *cluster.Node) (structured.Allocator, error) {
	x := &a.d.index
	if x.sharedPools == 0 {
		return a.newAllocator(x.slicesFor(n.Name))
	}
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if a.allocator == nil {
		allocator, err := a.newAllocator(a.c.ResourceSlices.All())
		if err != nil {
			return nil, err
		}
		a.allocator = allocator
	}
	return a.allocator, nil
}

func (a *attempt) newAllocator(slices []*resourcev1.ResourceSlice) (structured.Allocator, error) {
	return structured.NewAllocator(context.Background(), allocatorFeatures, a.d.index.taken, classLister{a.c}, slices, a.d.expressions())
}
