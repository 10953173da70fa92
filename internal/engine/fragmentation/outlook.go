package fragmentation

import (
	"slices"
	"sync/atomic"
)

// The weights of the terms: see doc.go. They were chosen on nine mixes of a GPU cluster's trace.
// The result hardly depends on them: with balance half or twice as heavy, or far a third, it stays
// within a tenth of a percent.
const (
	// farWeight: what is lost in the end counts for more than what the next task could use.
	farWeight = 16
	// balancePart is a fifth: one device of five is lost when all CPU is gone. The more CPU is
	// lacking in all, the more is lost, up to every one; see Remainders.scarcity.
	balancePart = 5
)

// Room is what is free on a node. It belongs to the caller, who may use it again.
type Room struct {
	CPU, Memory int64 // thousandths, bytes
	WholeCPU    int64 // of the node
	Devices     []int64
}

// Outlook values nodes for the tasks that may run on them. Its answers do not change, and may be
// asked for by several goroutines at once. It answers in time proportional to the devices of a
// node, however many tasks there are: their weights are summed up beforehand.
//
// Tasks of weights 0.5 (a share of 500), 0.3 (a share of 200) and 0.2 (one whole device of 1000),
// with CPU and memory for all of them:
//
//	a device with 300 free:   only the share of 200 fits, so 300 * 0.3 can be used on average
//	a device with 1000 free:  all fit, so 1000 * (0.5 + 0.3 + 0.2)
type Outlook struct {
	whole int64 // a device, in steps
	far   *Remainders

	tasks []Task // that want devices
	// What the tasks want, ascending.
	cpus, memories []int64
	// A row for each number of cpus and of memories that are free, made when it is first needed. In
	// a row, the weights of the tasks for which these suffice: those that want a share of at most a
	// size, and then those that want at most so many whole devices; as far as the near term counts.
	rows   []atomic.Pointer[[]int64]
	width  int
	sizes  int     // of shares
	rankOf []uint8 // by steps: how many sizes of shares fit in; see maxSizes
	counts int     // of whole devices, at most
}

// maxSizes bounds how many sizes of shares are told apart; further ones count as the next larger.
const maxSizes = 200

// NewOutlook prepares the tasks that may run on a kind of node. The weights are those of all tasks,
// which may be more: what cannot run on the node finds nothing useful there.
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

// rankShares gives the sizes of shares their ranks.
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

// fillRow sums the weights of the tasks for which CPU and memory suffice.
func (o *Outlook) fillRow(row []int64, cpu, memory int64) {
	for i := range o.tasks {
		t := &o.tasks[i]
		switch {
		case t.CPU > cpu || t.Memory > memory:
		case t.Amount < o.whole:
			row[max(1, o.rankOf[t.Amount])] += t.Weight
		default:
			row[o.sizes+1+int(t.Amount/o.whole)] += t.Weight
		}
	}

	// A task for which less suffices can use more, too.
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

// view is the worth of a node with so much CPU and memory, as a function of its devices. row is
// shared: it must not be changed.
type view struct {
	o   *Outlook
	row []int64
}

// viewOf finds the row, or makes it.
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

// upTo counts the numbers of a sorted list that are at most a number.
func upTo(list []int64, most int64) int {
	at, found := slices.BinarySearch(list, most)
	if found {
		at++
	}
	return at
}

// deviceWorth is the worth of one device with so much free, without what depends on the other
// devices.
func (v view) deviceWorth(free int64) int64 {
	return free*v.row[v.o.rankOf[free]] - farWeight*v.o.far.left[free]
}

// wholeWorth is the worth of so many whole devices for tasks that want whole ones.
func (v view) wholeWorth(whole int64) int64 {
	return whole * v.o.whole * v.row[v.o.sizes+1+min(int(whole), v.o.counts)]
}

// imbalanceOf is what is stranded because CPU and devices are free in different proportion: half of
// the CPU and all devices free differ by one half, which counts squared. 0 without devices.
func (o *Outlook) imbalanceOf(r *Room, cpu, free int64) int64 {
	capacity := int64(len(r.Devices)) * o.whole
	if capacity == 0 || r.WholeCPU <= 0 {
		return 0
	}
	const bits = 16
	d := (max(cpu, 0)<<bits)/r.WholeCPU - free<<bits/capacity
	weight := scarce + (balancePart-1)*o.far.scarcity
	return capacity * ((d * d) >> bits) * weight / (balancePart * scarce) << 4 // 2*16 bits of fraction become 20
}

// Terms are the worth of a node, by what it is made of.
type Terms struct {
	Near, Far, Imbalance int64
}

// Worth values what is free on a node.
func (o *Outlook) Worth(r *Room) int64 {
	t := o.weighTerms(r)
	return t.Near - farWeight*t.Far - t.Imbalance
}

// Terms values what is free on a node, term by term, each as if it counted in full.
func (o *Outlook) Terms(r *Room) Terms {
	t := o.weighTerms(r)
	t.Near = t.Near * 100 / o.far.nearPercent
	return t
}

// weighTerms sums up the terms over the devices of a node. It does not allocate, except for a row
// that is needed for the first time.
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

// Loss is how much of what is free the tasks cannot use, in thousandths of a device: the mean of
// the terms by their weights.
func (o *Outlook) Loss(r *Room) int64 {
	var free int64
	for _, part := range r.Devices {
		free += part
	}
	return (free*one - o.Worth(r)) / (o.whole * one * (1 + farWeight) / 1000)
}

// Thousandths brings a term of a worth to thousandths of a device.
func Thousandths(term, whole int64) int64 { return term / (whole * one / 1000) }
