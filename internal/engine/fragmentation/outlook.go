// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package fragmentation

import (
	"slices"
	"sync/atomic"
)

// The weights of the terms: see doc.go. They were chosen on nine mixes of a GPU cluster's trace.
// The result hardly depends on them: half or double the weight of balance, or a third of the weight
// of far, changes it by at most a tenth of a percent.
const (
	// farWeight: capacity lost in the end counts for more than capacity usable by the next task.
	farWeight = 16
	// balancePart stands for a fifth: a node with all CPU used counts a fifth of its devices as
	// lost. The part grows with the scarcity of CPU, up to all devices; see Remainders.scarcity.
	balancePart = 5
)

// Room is the free capacity of a node. It belongs to the caller, who may reuse it.
type Room struct {
	CPU, Memory int64 // thousandths, bytes
	WholeCPU    int64 // allocatable CPU of the node
	Devices     []int64
}

// Outlook values nodes for the tasks that may run on them. It is immutable and safe for concurrent
// use. Its functions take time proportional to the devices of a node, however many tasks there are:
// the weights of tasks are summed up beforehand.
//
// Tasks of weights 0.5 (a share of 500), 0.3 (a share of 200) and 0.2 (one whole device of 1000),
// with CPU and memory for all of them:
//
//	a device with 300 free:   only the share of 200 fits, so 300 * 0.3 can be used on average
//	a device with 1000 free:  all fit, so 1000 * (0.5 + 0.3 + 0.2)
type Outlook struct {
	whole int64 // size of a device, in steps
	far   *Remainders

	tasks []Task // the tasks that request devices
	// The CPU and memory requests of the tasks, ascending.
	cpus, memories []int64
	// rows has one row for each pair of a number of satisfied cpus and a number of satisfied
	// memories, created on first use. A row holds sums of the weights of the tasks satisfied by
	// both: first of the shares up to each size, then of the requests for up to each number of
	// whole devices. The sums are scaled by the weight of the near term.
	rows   []atomic.Pointer[[]int64]
	width  int
	sizes  int     // number of distinguished share sizes
	rankOf []uint8 // number of share sizes that fit, by free steps; see maxSizes
	counts int     // the most whole devices requested by a task
}

// maxSizes bounds the number of distinguished share sizes; further ones count as the next larger.
const maxSizes = 200

// NewOutlook prepares the tasks that may run on a kind of node. The weights may add up to less than
// one: the node is worth nothing to the remaining tasks, which cannot run there.
func NewOutlook(tasks []Task, devices Devices, far *Remainders) *Outlook {
	o := &Outlook{whole: devices.Whole(), far: far}
	var shares []int64
	for _, t := range tasks {
		if t.Amount == 0 {
			continue
		}
		o.tasks = append(o.tasks, t)
		o.cpus, o.memories = append(o.cpus, t.CPU), append(o.memories, t.Memory)
		if t.Amount < o.whole {
			shares = append(shares, t.Amount)
		} else {
			o.counts = max(o.counts, int(t.Amount/o.whole))
		}
	}

	slices.Sort(o.cpus)
	slices.Sort(o.memories)
	o.cpus, o.memories = slices.Compact(o.cpus), slices.Compact(o.memories)
	o.rankShares(shares)
	o.width = o.sizes + 1 + o.counts + 1
	o.rows = make([]atomic.Pointer[[]int64], (len(o.cpus)+1)*(len(o.memories)+1))
	return o
}

// rankShares assigns ranks to the sizes of shares.
func (o *Outlook) rankShares(shares []int64) {
	slices.Sort(shares)
	shares = slices.Compact(shares)
	for len(shares) > maxSizes {
		shares = slices.Delete(shares, 0, 1)
	}
	o.sizes = len(shares)
	o.rankOf = make([]uint8, o.whole+1)
	for free := range o.rankOf {
		rank, found := slices.BinarySearch(shares, int64(free))
		if found {
			rank++
		}
		o.rankOf[free] = uint8(rank)
	}
}

// fillRow sums the weights of the tasks satisfied by CPU and memory.
func (o *Outlook) fillRow(row []int64, cpu, memory int64) {
	for i := range o.tasks {
		switch t := &o.tasks[i]; {
		case t.CPU > cpu || t.Memory > memory:
		case t.Amount < o.whole:
			row[max(1, o.rankOf[t.Amount])] += t.Weight
		default:
			row[o.sizes+1+int(t.Amount/o.whole)] += t.Weight
		}
	}

	// A task satisfied by less is also satisfied by more, so the weights become running sums.
	for i := 1; i <= o.sizes; i++ {
		row[i] += row[i-1]
	}
	for i := o.sizes + 2; i < len(row); i++ {
		row[i] += row[i-1]
	}

	for i := range row {
		row[i] = row[i] * o.far.nearPercent / 100
	}
}

// view is the worth of a node with certain amounts of CPU and memory, as a function of its devices.
// row is shared: do not modify it.
type view struct {
	o   *Outlook
	row []int64
}

// viewOf finds or creates the row.
func (o *Outlook) viewOf(cpu, memory int64) view {
	at := upTo(o.cpus, cpu)*(len(o.memories)+1) + upTo(o.memories, memory)
	row := o.rows[at].Load()
	if row == nil {
		fresh := make([]int64, o.width)
		o.fillRow(fresh, cpu, memory)
		row = &fresh
		o.rows[at].Store(row)
	}
	return view{o, *row}
}

// upTo counts the numbers of a sorted list that do not exceed limit.
func upTo(list []int64, limit int64) int {
	at, found := slices.BinarySearch(list, limit)
	if found {
		at++
	}
	return at
}

// deviceWorth returns the worth of one device with the given free amount, without the part that
// depends on the other devices.
func (v view) deviceWorth(free int64) int64 {
	return free*v.row[v.o.rankOf[free]] - farWeight*v.o.far.left[free]
}

// wholeWorth returns the worth of whole devices for tasks that want whole ones.
func (v view) wholeWorth(whole int64) int64 {
	return whole * v.o.whole * v.row[v.o.sizes+1+min(int(whole), v.o.counts)]
}

// imbalanceOf returns the capacity stranded by unequal free shares of CPU and devices: with half of
// the CPU and all devices free, the shares differ by one half, which counts squared. It returns 0
// for a node without devices.
func (o *Outlook) imbalanceOf(r *Room, cpu, free int64) int64 {
	capacity := int64(len(r.Devices)) * o.whole
	if capacity == 0 || r.WholeCPU <= 0 {
		return 0
	}
	const bits = 16
	d := (max(cpu, 0)<<bits)/r.WholeCPU - free<<bits/capacity
	weight := scarce + (balancePart-1)*o.far.scarcity
	return capacity * ((d * d) >> bits) * weight / (balancePart * scarce) << 4 // 16 bits of fraction become 20, as in one
}

// Terms are the components of a node's worth.
type Terms struct {
	Near, Far, Imbalance int64
}

// Worth returns the worth of a node's free capacity.
func (o *Outlook) Worth(r *Room) int64 {
	t := o.weighTerms(r)
	return t.Near - farWeight*t.Far - t.Imbalance
}

// Terms returns the terms of a node's worth, the near term as if NearPercent were 100.
func (o *Outlook) Terms(r *Room) Terms {
	t := o.weighTerms(r)
	t.Near = t.Near * 100 / o.far.nearPercent
	return t
}

// weighTerms sums up the terms over the devices of a node. It does not allocate, except for a row
// on its first use.
func (o *Outlook) weighTerms(r *Room) (t Terms) {
	v := o.viewOf(r.CPU, r.Memory)
	var whole, sum int64
	for _, free := range r.Devices {
		t.Near += free * v.row[o.rankOf[free]]
		t.Far += o.far.left[free]
		sum += free
		if free == o.whole {
			whole++
		}
	}
	t.Near += v.wholeWorth(whole)
	t.Imbalance = o.imbalanceOf(r, r.CPU, sum)
	return t
}

// Loss returns the free capacity that tasks cannot use, in thousandths of a device: the weighted
// mean of the terms.
func (o *Outlook) Loss(r *Room) int64 {
	var free int64
	for _, part := range r.Devices {
		free += part
	}
	return (free*one - o.Worth(r)) / (o.whole * one * (1 + farWeight) / 1000)
}

// Thousandths converts a term of a worth to thousandths of a device.
func Thousandths(term, whole int64) int64 { return term / (whole * one / 1000) }
