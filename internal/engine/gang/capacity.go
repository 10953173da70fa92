// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"cmp"
	"math"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// amounts holds amounts of CPU, memory, the other resource of a leastRequest, and pods: either the
// requests of a pod or the free amounts of a node. Amounts are integers, so that a node with
// exactly enough room is never excluded; sums saturate.
type amounts [4]int64

// The indexes of the resources of a fixed name in amounts.
const (
	ofCPU, ofMemory = 0, 1
	ofPods          = 3
)

func amountsOf(r *cluster.Resources, other v1.ResourceName, pods int64) amounts {
	return amounts{r.MilliCPU, r.Memory, r.Scalars[other], pods}
}

func requestOf(p *cluster.PodClass, other v1.ResourceName) amounts {
	return amountsOf(&p.Requests, other, 1)
}

func (x amounts) plus(y amounts) amounts {
	for i := range x {
		x[i] = rules.Sum(x[i], y[i])
	}
	return x
}

func (x amounts) negated() amounts {
	for i := range x {
		x[i] = -x[i]
	}
	return x
}

// atLeastZero replaces negative amounts by 0: the pods on a node may request more than the node
// has.
func (x amounts) atLeastZero() amounts {
	for i := range x {
		x[i] = max(x[i], 0)
	}
	return x
}

// A leaveRule reports whether a pod may leave for a group, and the priority used to compare the pod
// with others.
type leaveRule func(p *cluster.Pod) (priority int64, leaves bool)

// leftAlready is the priority of a pod that can leave at no cost.
const leftAlready = math.MinInt64

// freeCapacity holds the free amounts of some nodes, and the pods that may leave.
type freeCapacity struct {
	nodes   []amounts
	leavers []leaver
}

type leaver struct {
	amounts
	node     int
	priority int64
	pod      *cluster.Pod
}

// freeCapacityOn returns the free capacity of nodes. A nil rule lets no pod leave.
func freeCapacityOn(nodes []*cluster.Node, other v1.ResourceName, mayLeave leaveRule) (v freeCapacity) {
	for i, n := range nodes {
		left := amountsOf(&n.Size.Resources, other, n.Size.Pods).plus(amountsOf(&n.Requested, other, int64(len(n.Pods))).negated())
		if mayLeave != nil {
			for _, p := range n.Pods {
				switch priority, may := mayLeave(p); {
				case may && priority == leftAlready:
					left = left.plus(requestOf(p.Class, other))
				case may:
					v.leavers = append(v.leavers, leaver{requestOf(p.Class, other), i, priority, p})
				}
			}
		}
		v.nodes = append(v.nodes, left)
	}

	return v
}

// listPriorities lists the priorities of the pods that may leave, the lowest first.
func (v freeCapacity) listPriorities() []int64 {
	list := rules.Mapped(v.leavers, func(l leaver) int64 { return l.priority })
	slices.Sort(list)
	return slices.Compact(list)
}

// without returns the free capacity after all leavers of at most the given priority have left.
func (v freeCapacity) without(priority int64) freeCapacity {
	nodes := slices.Clone(v.nodes)
	for i := range v.leavers {
		if l := &v.leavers[i]; l.priority <= priority {
			nodes[l.node] = nodes[l.node].plus(l.amounts)
		}
	}
	return freeCapacity{nodes: nodes}
}

// leastRequest is the minimum of the members' requests by resource. name is the other resource
// considered; "" for none.
type leastRequest struct {
	amounts
	name v1.ResourceName
}

// countOn returns the maximum number of members that fit into the free amounts of a node.
func (r leastRequest) countOn(left amounts) int {
	most := int64(math.MaxInt32)
	for i, amount := range r.amounts {
		if amount > 0 {
			most = min(most, left[i]/amount)
		}
	}
	return int(max(0, most))
}

// countIn returns the maximum number of members that fit on the nodes.
func (r leastRequest) countIn(v freeCapacity) (sum int) {
	for i := range v.nodes {
		sum += r.countOn(v.nodes[i])
	}
	return sum
}

// fewestLeavers returns a lower bound for the number of pods of at most the given priority that
// must leave so that need members fit. It assumes that the largest pods leave, and that their room
// can be combined across nodes.
func (r leastRequest) fewestLeavers(v freeCapacity, priority int64, need int) int {
	var free amounts
	for _, left := range v.nodes {
		free = free.plus(left.atLeastZero())
	}
	fewest := max(1, int64(need)-free[ofPods]) // every leaver frees one slot
	for i := range ofPods {
		fewest = max(fewest, countLargest(v.leavers, priority, times(need, r.amounts[i])-free[i], i))
	}
	return int(fewest)
}

// countLargest returns how many leavers of at most the given priority, the largest first, are
// needed to cover the lacking amount of one resource. If all of them together do not cover it,
// countLargest returns their number.
func countLargest(leavers []leaver, priority, lacks int64, resource int) (count int64) {
	if lacks <= 0 {
		return 0
	}

	var sizes []int64
	for i := range leavers {
		if leavers[i].priority <= priority {
			sizes = append(sizes, leavers[i].amounts[resource])
		}
	}
	slices.Sort(sizes)

	for _, size := range slices.Backward(sizes) {
		if lacks <= 0 {
			break
		}
		lacks -= size
		count++
	}
	return count
}

// times multiplies and saturates.
func times(count int, amount int64) int64 {
	if amount > 0 && int64(count) > math.MaxInt64/amount {
		return math.MaxInt64
	}
	return int64(count) * amount
}

// domainBound is the minimum cost of making room for a group in a domain, judged only by CPU,
// memory, one other resource and the number of pods. If the group may fit without evictions,
// highest is leftAlready and count is 0.
type domainBound struct {
	domain  string
	highest int64 // highest priority of a leaving pod
	count   int   // number of leaving pods
}

func (b *domainBound) compare(o *domainBound) int {
	return cmp.Or(cmp.Compare(b.highest, o.highest), cmp.Compare(b.count, o.count))
}

// boundOn returns the bound for a set of nodes. ok is false if too few members fit on them even
// after all possible leavers have left. boundOn never underestimates the room: without a room
// filter, every node has unlimited room.
func (r *Request) boundOn(nodes []*cluster.Node, least leastRequest, mayLeave leaveRule) (b domainBound, ok bool) {
	b.highest = leftAlready
	if r.roomFilter() == nil {
		return b, true
	}

	v := freeCapacityOn(nodes, least.name, mayLeave)
	if least.countIn(v) >= r.Need {
		return b, true
	}

	// The bound is the lowest priority for which the members fit after all pods of at most this
	// priority have left.
	priorities := v.listPriorities()
	i, _ := slices.BinarySearchFunc(priorities, r.Need, func(priority int64, need int) int {
		return cmp.Compare(least.countIn(v.without(priority)), need)
	})
	if i == len(priorities) {
		return b, false
	}

	b.highest, b.count = priorities[i], least.fewestLeavers(v, priorities[i], r.Need)
	return b, true
}

// roomFilter returns the profile's room filter, or nil.
func (r *Request) roomFilter() plugins.RoomFilter {
	for _, f := range r.Profile.Filters {
		if byRoom, is := f.(plugins.RoomFilter); is {
			return byRoom
		}
	}
	return nil
}

// leastRequest returns the minimum of the members' requests by resource.
func (r *Request) leastRequest() leastRequest {
	least := leastRequest{amounts{math.MaxInt64, math.MaxInt64, math.MaxInt64, 1}, r.commonResource()}
	for _, m := range r.Members {
		for i, own := range requestOf(m.Waiting.Class, least.name) {
			least.amounts[i] = min(least.amounts[i], own)
		}
	}
	return least
}

// commonResource returns a resource other than CPU and memory requested by every member, such as
// GPUs. It returns "" if there are device classes, since a node may provide the resource as
// devices.
func (r *Request) commonResource() v1.ResourceName {
	filter, first := r.roomFilter(), r.Members[0].Waiting.Class
	if filter == nil || r.Cluster.DeviceClasses.Len() > 0 {
		return ""
	}

	names := filter.Others(&first.Requests)
	for _, m := range r.Members {
		if len(names) == 0 {
			return ""
		}
		if m.Waiting.Class != first {
			own := filter.Others(&m.Waiting.Class.Requests)
			names = slices.DeleteFunc(names, func(name v1.ResourceName) bool { return !slices.Contains(own, name) })
		}
	}

	if len(names) == 0 {
		return ""
	}
	return names[0]
}

// leastTogether returns the minimum CPU and memory requested in total by the needed number of
// members.
func (r *Request) leastTogether() (sum amounts) {
	for i := range sum {
		own := rules.Mapped(r.Members, func(m *Member) int64 { return requestOf(m.Waiting.Class, "")[i] })
		slices.Sort(own)
		for _, amount := range own[:min(r.Need, len(own))] {
			sum[i] = rules.Sum(sum[i], amount)
		}
	}
	return sum
}
