// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// allocatorFeatures are the features enabled by default in Kubernetes v1.37.
var allocatorFeatures = structured.Features{
	AdminAccess: true, PrioritizedList: true, PartitionableDevices: true, DeviceTaints: true, DeviceBindingAndStatus: true,
	ConsumableCapacity: true,
}

// findAllocations returns the node's offer to the claims. Its sources, from the cheapest to the
// dearest, are the cached offer of this node and shape, the cached offer of a node like it, and a
// search.
func (a *attempt) findAllocations(n *cluster.Node, open []*resourcev1.ResourceClaim, shape *deviceShape) *claimAllocations {
	if shape != nil {
		if known := shape.allocationsAt(n, &a.d.index); known != nil {
			return known
		}

		// The result of a search serves all nodes with the same likeness.
		like, pools, alike := a.d.index.likenessOf(n)
		if alike {
			if known := shape.allocationsLike(n, like, pools); known != nil {
				a.keepAllocations(n, shape, known)
				return known
			}
			found := a.searchOnce(n, open, shape)
			if !found.ofAttempt() {
				undo := shape.keepExample(like, pools, found)
				a.noteUndo(undo)
			}
			return found
		}
	}

	return a.searchOnce(n, open, shape)
}

// searchOnce searches the node, unless an earlier search of it failed, and keeps the result. An
// error, or a rejection that names a pool, is kept with the attempt rather than the shape, because
// it must not serve other attempts.
func (a *attempt) searchOnce(n *cluster.Node, open []*resourcev1.ResourceClaim, shape *deviceShape) *claimAllocations {
	where := individualOf(n)
	a.mutex.Lock()
	failed := a.failures[where]
	a.mutex.Unlock()
	if failed != nil {
		return failed
	}
	began := a.limit.spent.Load()
	if begin, _ := costOfSearching(open, 0); a.limit.spendCost(begin) { // nodes without a cached offer are no longer searched
		return a.timedOut(n)
	}
	found, final := a.searchDevices(n, open)
	if !final && began == 0 && !a.d.strict { // another attempt would not complete the search either
		found = tooHard
	}

	failure := found.ofAttempt()
	switch {
	case failure && final:
		a.mutex.Lock()
		if a.failures == nil {
			a.failures = map[individual]*claimAllocations{}
		}
		a.failures[where] = found
		a.mutex.Unlock()
	case !failure && shape != nil:
		a.keepAllocations(n, shape, found)
	}
	return found
}

// keepAllocations caches a finding about a node for the shape, and notes its undo. It adds the node
// to the attempt's count of findings, which Unfinished reports.
func (a *attempt) keepAllocations(n *cluster.Node, shape *deviceShape, found *claimAllocations) {
	forget := shape.keepAllocations(n, &a.d.index, found)
	a.mutex.Lock()
	a.found++
	a.mutex.Unlock()
	a.noteUndo(func() {
		forget()
		a.found--
	})
}

// noteUndo records the undo of a finding. Undos run from the last to the first.
func (a *attempt) noteUndo(undo func()) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	a.undo = append(a.undo, undo)
}

// mustRetry implements Judge.Again. Several goroutines together may spend more than a single
// goroutine, because they may search similar nodes at the same time. If they stayed within the
// limit, a single goroutine would have stayed within the limit as well. Otherwise mustRetry
// discards their findings and one goroutine searches all nodes again, so that the nodes left out
// because of the limit are deterministic.
func (a *attempt) mustRetry() bool {
	exceeded := a.limit.isExceeded(a.limit.spent.Load()) && !a.limit.isExceeded(a.before)
	if exceeded {
		for _, f := range slices.Backward(a.undo) {
			f()
		}
		// The costs of expressions were measured at the expense of this attempt, and are discarded
		// with its other findings.
		if a.shared != nil {
			a.shared.costs = nil
		}
	}
	a.undo = nil
	if !a.limit.isExceeded(a.before) {
		a.limit.spent.Store(a.before)
	}
	return exceeded
}

// costOfExpressions is the maximum cost of evaluating one of the claims' selector expressions for a
// device on the grounds. over is set if measuring it has exceeded the limit.
func (a *attempt) costOfExpressions(open []*resourcev1.ResourceClaim, on *grounds) (cost int64, over bool) {
	read := func(selectors []resourcev1.DeviceSelector) {
		for i := range selectors {
			if selectors[i].CEL == nil || over {
				continue
			}
			of := a.expressions.costs.costOf(selectors[i].CEL.Expression)
			switch {
			case of.compiled == nil && of.most > heavyExpression:
				over = a.limit.spendCost(of.most)
			case of.compiled != nil && of.most > cost:
				of.most, over = a.costOn(on, selectors[i].CEL.Expression, of)
			}
			cost = max(cost, of.most)
		}
	}
	eachSelection(a.c, open, read)
	return cost, over
}

// costOn is the maximum cost of a heavy expression for a device on the grounds. Measuring it is
// limited to the estimated cost of one evaluation; beyond that the estimate counts.
func (a *attempt) costOn(on *grounds, expression string, of expressionCost) (cost int64, over bool) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	cost, known := on.costs[expression]
	if known {
		return cost, false
	}

	// Heavy expressions often read a single attribute: their measured cost is a fraction of the
	// estimate.
	sum := int64(0)
	for _, slice := range on.slices {
		for i := range slice.Spec.Devices {
			if sum >= of.most {
				cost = of.most
				break
			}
			one := of.costOn(slice.Spec.Driver, &slice.Spec.Devices[i])
			if a.limit.spendCost(one) {
				return 0, true
			}
			sum, cost = sum+one, max(cost, one)
		}
	}

	if on.costs == nil {
		on.costs = map[string]int64{}
	}
	on.costs[expression] = cost
	return cost, false
}

// searchDevices searches the node for devices for all open claims. The search may try all
// combinations of devices, so it is cut off at the limit, like upstream's. The result of a cut-off
// search is not final: with a higher limit it could differ.
func (a *attempt) searchDevices(n *cluster.Node, open []*resourcev1.ResourceClaim) (found *claimAllocations, final bool) {
	if err := tooMany(open); err != nil {
		return &claimAllocations{rejection: &Rejection{Err: err}}, true
	}
	grounds, err := a.groundsOf(n)
	if err != nil {
		return &claimAllocations{rejection: &Rejection{Err: err}}, true
	}
	return a.searchOn(grounds, n, open)
}

// searchOn searches the grounds, which may hold fewer devices than the node: chooseDevices first
// offers only the best devices.
func (a *attempt) searchOn(on *grounds, n *cluster.Node, open []*resourcev1.ResourceClaim) (found *claimAllocations, final bool) {
	expressions, over := a.costOfExpressions(open, on)
	if over {
		return a.timedOut(n), false
	}

	_, step := costOfSearching(open, on.devices)
	ctx := &searchContext{context.Background(), &a.limit, step, expressions}
	results, err := on.allocator.Allocate(ctx, n.Object(), open)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return a.timedOut(n), false
	case err != nil && asksForUnreadyPool(err):
		return &claimAllocations{rejection: rejectUnresolvable(codeDevicesNotAllocatable, "%v", err), names: true}, true
	case errors.Is(err, structured.ErrFailedAllocationOnNode):
		return &claimAllocations{rejection: rejectUnresolvable(codeDevicesNotAllocatable, "%v", err)}, true
	case err != nil:
		return &claimAllocations{rejection: &Rejection{Err: err}}, true
	// If the devices are insufficient, the allocator returns neither results nor an error.
	case len(results) != len(open) && a.d.preempts:
		return devicesHeld, true
	case len(results) != len(open):
		return noDevices, true
	}

	return &claimAllocations{results: results}, true
}

// tooMany refuses claims with the allocator's error for more devices than a claim can hold. It only
// detects sums that would overflow in the allocator and make it panic.
func tooMany(open []*resourcev1.ResourceClaim) error {
	for _, claim := range open {
		var sum int64
		for i := range claim.Spec.Devices.Requests {
			sum = rules.Sum(sum, fewestDevices(&claim.Spec.Devices.Requests[i]))
		}
		if sum > math.MaxInt64/2 {
			return fmt.Errorf("claim %s: number of requested devices %d exceeds the claim limit of %d",
				klog.KObj(claim), sum, resourcev1.AllocationResultsMaxSize)
		}
	}
	return nil
}

// fewestDevices is the least number of devices that can satisfy the request, as far as the request
// specifies a number.
func fewestDevices(r *resourcev1.DeviceRequest) int64 {
	if r.Exactly != nil {
		return exactCount(r.Exactly.AllocationMode, r.Exactly.Count)
	}
	least := int64(math.MaxInt64)
	for i := range r.FirstAvailable {
		least = min(least, exactCount(r.FirstAvailable[i].AllocationMode, r.FirstAvailable[i].Count))
	}
	return least
}

// exactCount is the number of devices requested, or 0 for a request of all matching devices.
func exactCount(mode resourcev1.DeviceAllocationMode, count int64) int64 {
	if mode != resourcev1.DeviceAllocationModeExactCount {
		return 0
	}
	return count
}

// Unfinished is the error of an attempt that has exhausted its limit. Its findings about nodes are
// kept for the next attempt.
type Unfinished struct {
	Node  string // node at which the search stopped
	Found int    // number of nodes with findings
}

// Error implements error, in upstream's words.
func (u *Unfinished) Error() string {
	return fmt.Sprintf("node %s: timed out trying to allocate devices", u.Node)
}

// timedOut is the offer of a node at which the limit was exceeded. Under a strict limit the attempt
// fails for good, so its progress does not matter.
func (a *attempt) timedOut(n *cluster.Node) *claimAllocations {
	if a.d.strict {
		return &claimAllocations{rejection: &Rejection{Err: &Unfinished{Node: n.Name}}}
	}
	a.mutex.Lock()
	defer a.mutex.Unlock()
	return &claimAllocations{rejection: &Rejection{Err: &Unfinished{n.Name, a.found}}}
}

// tooHard is the offer of nodes that need more than the limit of a whole attempt.
var tooHard = &claimAllocations{rejection: rejectUnresolvable(codeDevicesTooHard, "finding devices takes too long")}

// asksForUnreadyPool reports whether a request for all devices met an incomplete or invalid pool.
// Such a pool rules out only this node, and the remaining nodes are still tried, although v1.37's
// allocator returns the error of an invalid claim (kubernetes#141898).
func asksForUnreadyPool(err error) bool {
	return strings.Contains(err.Error(), ": asks for all devices, but resource pool ")
}

// noDevices is the offer of nodes that cannot satisfy all claims.
var noDevices = &claimAllocations{rejection: rejectUnresolvable(codeDevicesNotAllocatable, "cannot allocate all claims")}

// devicesHeld replaces noDevices if preemption may release devices.
var devicesHeld = &claimAllocations{rejection: &Rejection{Code: codeDevicesNotAllocatable, Reasons: noDevices.rejection.Reasons, Held: true}}

// grounds are the searched slices of a node: its local slices, or, if nodes share pools, all slices
// of the cluster. In the latter case all nodes have the same grounds.
type grounds struct {
	allocator structured.Allocator
	slices    []*resourcev1.ResourceSlice
	devices   int64            // approximate number of devices reachable from the node
	costs     map[string]int64 // costs of heavy expressions, for the devices of the slices
}

// groundsOf returns the grounds that matter to the node.
func (a *attempt) groundsOf(n *cluster.Node) (*grounds, error) {
	x := &a.d.index
	if x.sharedPools == 0 {
		return a.newGrounds(x.slicesFor(n.Name), 1, x.taken)
	}
	a.mutex.Lock()
	defer a.mutex.Unlock()
	var err error
	if a.shared == nil {
		a.shared, err = a.newGrounds(a.c.ResourceSlices.All(), a.c.Len(), x.taken)
	}
	return a.shared, err
}

func devicesOf(slices []*resourcev1.ResourceSlice) (n int64) {
	for _, slice := range slices {
		n += int64(len(slice.Spec.Devices))
	}
	return n
}

// newGrounds prepares an allocator for slices shared by the given number of nodes. The number of
// devices is then a mean, good enough to estimate the cost of a step. The allocator reads taken,
// which must not change while the allocator is in use.
func (a *attempt) newGrounds(slices []*resourcev1.ResourceSlice, nodes int, taken structured.AllocatedState) (*grounds, error) {
	allocator, err := structured.NewAllocator(context.Background(), allocatorFeatures, taken,
		classLister{a.c}, slices, a.expressions.cache)
	if err != nil {
		return nil, err
	}
	return &grounds{allocator: allocator, slices: slices, devices: devicesOf(slices) / int64(nodes)}, nil
}
