// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"math"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/fragmentation"
)

// ObjectScorer is a scorer with scores that may depend on API objects other than nodes and pods. If
// they do, the scorer is called for every decision, and scores of unchanged nodes are not cached.
type ObjectScorer interface {
	Scorer
	ScoresByObjects() bool
}

// ScoresByObjects implements [ObjectScorer]. Scores depend on the driver's devices and the claims
// holding them. The same is true for pods without claims, because the CPU they take strands
// devices.
func (f *Fragmentation) ScoresByObjects() bool { return f.claims != nil }

// driverDevices are the devices of one driver, counted in the plugin's terms. They are read through
// the profile's DynamicResources, which keeps the index of devices and claims.
type driverDevices struct {
	*DynamicResources
	driver string
	scores claimScores
}

// rounding keeps computed shares from falling below a whole step: in floating point, 3 of 10 can
// become 2.9999 steps.
const rounding = 1e-6

// claimScores caches the scores of nodes for pods with equal demands, until the nodes, or the
// claims holding their devices, change. All scores belong to one future: learning drops all of
// them.
type claimScores struct {
	future *future
	scores map[claimScoresKey][]claimScore // by the nodes' numbers
}

// claimScoresKey holds a pod's demands. Pods with equal keys cost the same on every node.
type claimScoresKey struct {
	shape       *deviceShape
	cpu, memory int64
}

// claimScore is a node's score and all of its inputs. It is valid while the inputs compare equal.
type claimScore struct {
	node        *cluster.Node
	own         *nodeDevices
	at          uint64 // value of the index's counter at the last change of own or of the shared devices
	free, size  roomOnly
	labels      *cluster.LabelSet
	score, fine int64
}

// roomOnly is CPU (thousandths) and memory (bytes).
type roomOnly struct{ cpu, memory int64 }

// mostClaimScores bounds the scores cached over all keys, about 20 MB. The scores of one key are
// always cached, regardless of the number of nodes.
const mostClaimScores = 1 << 18

// keptFor returns the cached scores for pods with the demands of the key, by the nodes' numbers.
// Unwritten slots have a nil node.
func (s *claimScores) keptFor(u *future, key claimScoresKey, nodes int) []claimScore {
	// Check for existing entries before the bound applies, because they take no additional memory.
	if known := s.scores[key]; s.future == u && len(known) >= nodes {
		return known
	}
	if s.future != u || (len(s.scores)+1)*nodes > mostClaimScores {
		s.future, s.scores = u, map[claimScoresKey][]claimScore{}
	}
	s.scores[key] = make([]claimScore, nodes+nodes/8)
	return s.scores[key]
}

// scoreByClaims is Score if a driver of devices held by claims is configured. Each goroutine writes
// only the slots of its nodes.
func (f *Fragmentation) scoreByClaims(c *cluster.Cluster, p *cluster.Pod) Scoring {
	a := f.claims.attemptFor(c, p) // also updates the index
	if a.err != nil || a.rejection != nil {
		return Scoring{}
	}
	future, x, r := f.coming.currentFuture(f, c), &f.claims.index, &p.Class.Requests
	var kept []claimScore
	// With extended resources the pod's demands depend on the node, which is not in the key.
	if a.extended == nil {
		kept = f.claims.scores.keptFor(future, claimScoresKey{a.shape, r.MilliCPU, r.Memory}, len(c.Nodes))
	}

	exact := func(n *cluster.Node) (score, fine int64) {
		// Read all inputs of the score before the lookup: comparing them shows whether the cached
		// score is still valid.
		now := claimScore{
			node: n, labels: n.Labels,
			free: roomOnly{n.Size.MilliCPU - n.Requested.MilliCPU, n.Size.Memory - n.Requested.Memory},
			size: roomOnly{n.Size.MilliCPU, n.Size.Memory},
		}
		if int(n.Index) < len(kept) && kept[n.Index].node == n {
			known := &kept[n.Index]
			now.own, now.at = known.own, max(known.own.changed, x.sharedAt)
			if now.score, now.fine = known.score, known.fine; now == *known {
				return now.score, now.fine
			}
		}
		cost, task := f.costByClaims(a, future, p, n)
		now.score, now.fine = future.outlookOf(n).Score(cost, &task, MaxScore), -cost
		if int(n.Index) < len(kept) {
			now.own = x.devicesOf(n.Name)
			now.at = max(now.own.changed, x.sharedAt)
			kept[n.Index] = now
		}
		return now.score, now.fine
	}
	return Scoring{Exact: exact, Node: func(n *cluster.Node) (int64, error) {
		score, _ := exact(n)
		return score, nil
	}}
}

// costByClaims returns the reduction of a node's worth by the pod, and the pod's total demand: the
// amount of task includes the devices of all claims.
func (f *Fragmentation) costByClaims(a *attempt, u *future, p *cluster.Pod, n *cluster.Node) (cost int64, task fragmentation.Task) {
	d := f.scratches.Get().(*scratch)
	defer f.scratches.Put(d)
	task = f.taskOf(p)
	task.Amount = 0
	before, after, device := f.placeClaims(a, u, d, p, n)
	if device == noDeviceFits {
		return fragmentation.Worst, task
	}
	o := u.outlookOf(n)
	for i, free := range before.Devices {
		task.Amount += free - after.Devices[i]
	}
	return o.Worth(before) - o.Worth(after), task
}

// noDeviceFits is the device of a pod that fits on no device.
const noDeviceFits = fragmentation.NoDevice - 1

// placeClaims returns the free room of a node before and after a placement of the pod and its open
// claims at the lowest cost, and the device of the last share, or noDeviceFits. The result is
// stored in the scratch space, and is valid until the next use of the scratch space. The driver's
// devices count only if the node lacks the extended resource.
func (f *Fragmentation) placeClaims(a *attempt, u *future, d *scratch, p *cluster.Pod, n *cluster.Node) (
	before, after *fragmentation.Room, device int,
) {
	next, amounts := f.taskOf(p), []int64(nil)
	if d.readNode(f, n); len(d.room.Devices) == 0 {
		whole := float64(f.devices.Whole())
		for _, free := range a.d.index.freeOf(a.localSlices(n), f.claims.driver) {
			d.room.Devices = append(d.room.Devices, max(0, int64(free*whole+rounding)))
		}
		amounts = f.claimedAmounts(a.offerAt(n).results)
	}
	if next.Amount > 0 { // an amount of the extended resource
		amounts, next.Amount = []int64{next.Amount}, 0
	}

	device = fragmentation.NoDevice
	before, after = &d.room, d.room.After(&next, device, f.devices.Whole())
	o := u.outlookOf(n)
	for _, next.Amount = range amounts {
		// The first step has taken the pod's CPU and memory.
		next.CPU, next.Memory = 0, 0
		if !fragmentation.Fits(after.Devices, next.Amount, f.devices.Whole()) {
			return before, after, noDeviceFits
		}
		_, device = o.Cost(after, &next)
		after = after.After(&next, device, f.devices.Whole())
	}
	return before, after, device
}

// claimedAmounts lists the amounts of the driver's devices taken by allocations, in steps: the sum
// of all whole devices, and each share. Admin access takes nothing.
func (f *Fragmentation) claimedAmounts(results []resourcev1.AllocationResult) (amounts []int64) {
	whole := f.devices.Whole()
	var devices int64
	for i := range results {
		for j := range results[i].Devices.Results {
			r := &results[i].Devices.Results[j]
			if r.Driver != f.claims.driver || r.AdminAccess != nil && *r.AdminAccess {
				continue
			}
			amount := int64(math.Ceil(f.claims.index.shareOfDevice(r)*float64(whole) - rounding))
			if amount >= whole {
				devices += whole
			} else {
				amounts = append(amounts, amount)
			}
		}
	}

	// Whole devices precede shares as a single amount: only shares are distinguished.
	if devices > 0 {
		amounts = append([]int64{devices}, amounts...)
	}
	return amounts
}

// claimedTask returns the amounts that the plugin counts for a placed pod, including the devices
// held by its claims.
func (f *Fragmentation) claimedTask(c *cluster.Cluster, p *cluster.Pod) fragmentation.Task {
	task := f.taskOf(p)
	if f.claims == nil || len(p.Spec().ResourceClaims) == 0 {
		return task
	}
	// Avoid attemptFor: the last attempt may belong to a pod in the middle of its device search.
	claims, _, rejection := claimsOf(c, p.Object())
	if rejection != nil {
		return task
	}

	var results []resourcev1.AllocationResult
	for _, claim := range claims {
		if claim.Status.Allocation != nil {
			results = append(results, *claim.Status.Allocation)
		}
	}
	f.claims.followClaims(c) // the index holds the size of each share
	for _, amount := range f.claimedAmounts(results) {
		task.Amount += amount
	}
	if whole := f.devices.Whole(); task.Amount > whole { // several shares count as whole devices
		task.Amount = (task.Amount + whole - 1) / whole * whole
	}
	return task
}

// devicesOfDriver counts the driver's devices exclusive to one node, by node. A set of counters is
// one device, regardless of the number of possible partitions.
func devicesOfDriver(c *cluster.Cluster, driver string) map[string]int64 {
	count := map[string]int64{}
	for slice := range c.ResourceSlices.Each {
		if slice.Spec.Driver != driver || slice.Spec.NodeName == nil {
			continue
		}
		count[*slice.Spec.NodeName] += int64(len(slice.Spec.SharedCounters))
		for i := range slice.Spec.Devices {
			if len(slice.Spec.Devices[i].ConsumesCounters) == 0 {
				count[*slice.Spec.NodeName]++
			}
		}
	}
	return count
}

// freeOf lists the free share of each of a driver's devices, in 0..1. For a device shared by claims
// the scarcest capacity counts; for partitions the scarcest counter counts.
func (x *deviceIndex) freeOf(own []*resourcev1.ResourceSlice, driver string) (free []float64) {
	var counters map[counterSet]*counted
	for _, slice := range own {
		if slice.Spec.Driver != driver {
			continue
		}
		if len(slice.Spec.SharedCounters) > 0 {
			if counters == nil {
				counters = x.countersOf(own)
			}
			for i := range slice.Spec.SharedCounters {
				free = append(free, counters[counterSet{poolOf(slice), slice.Spec.SharedCounters[i].Name}].least())
			}
		}

		// Devices that share counters are parts of the counters' hardware, which was listed above.
		for i := range slice.Spec.Devices {
			device, id := &slice.Spec.Devices[i], deviceOf(slice, i)
			switch {
			case len(device.ConsumesCounters) > 0:
			case x.taken.AllocatedDevices.Has(id):
				free = append(free, 0)
			default:
				free = append(free, x.leastFree(device, id))
			}
		}
	}
	return free
}

// leastFree is the free share of the scarcest capacity; 1 for an unshared device.
func (x *deviceIndex) leastFree(device *resourcev1.Device, id structured.DeviceID) float64 {
	least := 1.0
	for name, taken := range x.taken.AggregatedCapacity[id] {
		capacity := device.Capacity[name]
		if all := capacity.Value.AsApproximateFloat64(); all > 0 && taken != nil {
			least = min(least, 1-taken.AsApproximateFloat64()/all)
		}
	}
	return least
}

// shareOfDevice is the share of a device, or of its counters, taken by an allocation, in 0..1. A
// device no longer listed by its driver counts as a whole one.
func (x *deviceIndex) shareOfDevice(r *resourcev1.DeviceRequestAllocationResult) (share float64) {
	pool := x.pools[poolID{r.Driver, r.Pool}]
	// The driver no longer publishes the pool: the device is only known to be taken.
	if pool == nil {
		return 1
	}
	var device *resourcev1.Device
	counters := map[string]map[string]resourcev1.Counter{}
	for _, slice := range pool.slices {
		for i := range slice.Spec.SharedCounters {
			counters[slice.Spec.SharedCounters[i].Name] = slice.Spec.SharedCounters[i].Counters
		}
		for i := range slice.Spec.Devices {
			if slice.Spec.Devices[i].Name == r.Device {
				device = &slice.Spec.Devices[i]
			}
		}
	}
	if device == nil {
		return 1
	}

	// The largest share of all capacities and counters counts: the remaining capacities are of
	// little use once the scarcest capacity is taken.
	for name, taken := range r.ConsumedCapacity {
		capacity := device.Capacity[name]
		if all := capacity.Value.AsApproximateFloat64(); all > 0 {
			share = max(share, taken.AsApproximateFloat64()/all)
		}
	}
	for _, use := range device.ConsumesCounters {
		for name, taken := range use.Counters {
			all := counters[use.CounterSet][name]
			if of := all.Value.AsApproximateFloat64(); of > 0 {
				share = max(share, taken.Value.AsApproximateFloat64()/of)
			}
		}
	}
	// A device that is neither shared nor a partition is taken as a whole.
	if len(r.ConsumedCapacity)+len(device.ConsumesCounters) == 0 {
		return 1
	}
	return min(share, 1)
}
