package plugins

import (
	"math"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/fragmentation"
)

// ObjectScorer is a scorer whose scores may depend on API objects other than nodes and pods. It is
// asked again for every decision then, instead of keeping the scores of nodes that have not
// changed.
type ObjectScorer interface {
	Scorer
	ScoresByObjects() bool
}

// ScoresByObjects implements [ObjectScorer]: nodes are scored by the devices of the driver, which
// claims hold, also for pods without claims: the CPU that they take strands devices.
func (f *Fragmentation) ScoresByObjects() bool { return f.claims != nil }

// driverDevices are the devices of one driver, as the plugin counts devices. They are read through
// the profile's DynamicResources, which keeps the index of devices and claims.
type driverDevices struct {
	*DynamicResources
	driver string
	scores claimScores
}

// rounding keeps what quantities are divided into from falling below a whole step: shares are
// computed in floating point, where 3 of 10 can come out as 2.9999 steps.
const rounding = 1e-6

// claimScores keeps what nodes score for pods that ask for the same, until the nodes, or the claims
// that hold their devices, change. They are of one future: when something new was learnt all are
// dropped.
type claimScores struct {
	future *future
	of     map[claimScoresKey][]claimScore // by the nodes' numbers
}

// claimScoresKey is what pods ask for. Pods with equal keys cost the same on every node.
type claimScoresKey struct {
	shape       *deviceShape
	cpu, memory int64
}

// claimScore is a node's score and all that it was computed from. It holds as long as that compares
// equal.
type claimScore struct {
	node        *cluster.Node
	own         *nodeDevices
	at          uint64 // the index's count
	free, size  roomOnly
	labels      *cluster.LabelSet
	score, fine int64
}

// roomOnly is CPU (thousandths) and memory (bytes).
type roomOnly struct{ cpu, memory int64 }

// mostClaimScores bounds how many scores are kept over all keys, about 20 MB. Those of one key are
// kept however many nodes there are.
const mostClaimScores = 1 << 18

// keptFor returns where the scores for such pods are kept, by the nodes' numbers. Places that were
// never written have no node.
func (s *claimScores) keptFor(u *future, key claimScoresKey, nodes int) []claimScore {
	// Before the bound is looked at: what is there already takes no more memory.
	if known := s.of[key]; s.future == u && len(known) >= nodes {
		return known
	}
	if s.future != u || (len(s.of)+1)*nodes > mostClaimScores {
		s.future, s.of = u, map[claimScoresKey][]claimScore{}
	}
	s.of[key] = make([]claimScore, nodes+nodes/8)
	return s.of[key]
}

// scoreByClaims is Score where nodes are scored by the devices that claims hold. Each goroutine
// writes to the places of its own nodes.
func (f *Fragmentation) scoreByClaims(c *cluster.Cluster, p *cluster.Pod) Scoring {
	a := f.claims.attemptFor(c, p) // which also brings the index up to date
	if a.err != nil || a.rejection != nil {
		return Scoring{}
	}
	future, x, r := f.coming.currentFuture(f, c), &f.claims.index, &p.Class.Requests
	var kept []claimScore
	// With extended resources what a pod asks for depends on the node, which the key does not tell.
	if a.extended == nil {
		kept = f.claims.scores.keptFor(future, claimScoresKey{a.shape, r.MilliCPU, r.Memory}, len(c.Nodes))
	}

	exact := func(n *cluster.Node) (score, fine int64) {
		// All that the score depends on is read before it is looked up: comparing it tells whether
		// it still holds.
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

// costByClaims is what a pod takes from the worth of a node, and all it takes. task is for
// comparing the cost with the size of the pod: its amount is over all of its claims.
func (f *Fragmentation) costByClaims(a *attempt, u *future, p *cluster.Pod, n *cluster.Node) (cost int64, task fragmentation.Task) {
	d := f.desks.Get().(*desk)
	defer f.desks.Put(d)
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

// noDeviceFits stands for the device of a pod for which there is none.
const noDeviceFits = fragmentation.NoDevice - 1

// placeClaims returns what is free on a node before and after the pod and its open claims are put
// there where they cost least, and the device of the last share; noDeviceFits if there is none. It
// uses the desk: the result is valid until the desk is used again. The driver's devices count where
// the node does not have the extended resource.
func (f *Fragmentation) placeClaims(a *attempt, u *future, d *desk, p *cluster.Pod, n *cluster.Node) (
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
	if next.Amount > 0 { // of the extended resource
		amounts, next.Amount = []int64{next.Amount}, 0
	}

	device = fragmentation.NoDevice
	before, after = &d.room, d.room.After(&next, device, f.devices.Whole())
	o := u.outlookOf(n)
	for _, next.Amount = range amounts {
		// The pod's CPU and memory were taken with the first step.
		next.CPU, next.Memory = 0, 0
		if !fragmentation.Fits(after.Devices, next.Amount, f.devices.Whole()) {
			return before, after, noDeviceFits
		}
		_, device = o.Cost(after, &next)
		after = after.After(&next, device, f.devices.Whole())
	}
	return before, after, device
}

// claimedAmounts is what allocations take of the driver's devices, in steps: all whole ones
// together, and each share. Admin access takes nothing.
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

	// Whole devices come first and as one amount: only parts are told apart.
	if devices > 0 {
		amounts = append([]int64{devices}, amounts...)
	}
	return amounts
}

// claimedTask is what the plugin learns of a pod that is on a node, with what its claims hold.
func (f *Fragmentation) claimedTask(c *cluster.Cluster, p *cluster.Pod) fragmentation.Task {
	task := f.taskOf(p)
	if f.claims == nil || len(p.Spec().ResourceClaims) == 0 {
		return task
	}
	// Not an attempt: the last one may be that of a pod whose devices are still searched for.
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
	f.claims.followClaims(c) // what share of a device that is, the index tells
	for _, amount := range f.claimedAmounts(results) {
		task.Amount += amount
	}
	if whole := f.devices.Whole(); task.Amount > whole { // several shares count as whole devices
		task.Amount = (task.Amount + whole - 1) / whole * whole
	}
	return task
}

// devicesOfDriver counts the devices of a driver that nodes have alone, by node. A set of counters
// is one device, however many partitions can be made of it.
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

// freeOf is what is free of each of a driver's devices, of one: of a device of which claims take
// shares, the capacity of which the least is free counts, and likewise of the counters from which
// partitions are made.
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

		// Devices that share counters are parts of what the counters stand for, which was listed
		// above.
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

// leastFree is the share that is free of the capacity of which the least is; 1 for a device that
// nobody shares.
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

// shareOfDevice is what an allocation takes of a device, or of the counters that it is made from,
// in 0..1. A device that its driver no longer lists counts as a whole one.
func (x *deviceIndex) shareOfDevice(r *resourcev1.DeviceRequestAllocationResult) (share float64) {
	pool := x.pools[poolID{r.Driver, r.Pool}]
	// The driver no longer publishes the pool: nothing is known of the device but that it is taken.
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

	// The largest share of all capacities and counters: what is left of the others is of little use
	// without that one.
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
