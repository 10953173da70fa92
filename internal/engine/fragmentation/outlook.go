package fragmentation

import "slices"

// The weights of the terms: see doc.go. They were chosen on nine mixes of a GPU cluster's trace.
// The result hardly depends on them: with balance half or twice as heavy, or far a third, it stays
// within a tenth of a percent.
const (
	// farWeight: what is lost in the end counts for more than what the next task could use.
	farWeight = 16
	// balancePart is a fifth: one device of five is lost when all CPU is gone.
	balancePart = 5
)

// Room is what is free on a node. It belongs to the caller, who may use it again.
type Room struct {
	CPU, Memory int64 // thousandths, bytes
	WholeCPU    int64 // of the node
	Devices     []int64
}

// Outlook values nodes for the tasks that may run on them. It is immutable.
type Outlook struct {
	whole int64 // a device, in steps
	far   *Remainders

	tasks  []Task  // that want devices
	memory int64   // with so much free, memory keeps no task out
	cpus   []int64 // what the tasks want, ascending
	// A row for each number of cpus that are free, and one for none. In a row, the weights of the
	// tasks with no more CPU that want a share of at most a size, and then those that want at most
	// so many whole devices.
	rows   []int64
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
		o.memory = max(o.memory, t.Memory)
		o.cpus = append(o.cpus, t.CPU)
		if t.Amount < o.whole {
			shares = append(shares, t.Amount)
		} else {
			o.counts = max(o.counts, int(t.Amount/o.whole))
		}
	}
	slices.Sort(o.cpus)
	o.cpus = slices.Compact(o.cpus)
	o.rank(shares)
	o.width = o.sizes + 1 + o.counts + 1
	o.rows = make([]int64, (len(o.cpus)+1)*o.width)
	for i := range len(o.cpus) {
		o.fill(o.rows[(i+1)*o.width:][:o.width], o.cpus[i], o.memory)
	}
	return o
}

// rank gives the sizes of shares their ranks.
func (o *Outlook) rank(shares []int64) {
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

// fill sums the weights of the tasks for which CPU and memory suffice.
func (o *Outlook) fill(row []int64, cpu, memory int64) {
	clear(row)
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
	for i := 1; i <= o.sizes; i++ {
		row[i] += row[i-1]
	}
	for i := o.sizes + 2; i < len(row); i++ {
		row[i] += row[i-1]
	}
}

// view is the worth of a node with so much CPU and memory, as a function of its devices.
type view struct {
	o   *Outlook
	row []int64
}

// view finds the row. Where memory keeps tasks out, it is made; into is then overwritten.
func (o *Outlook) view(cpu, memory int64, into *[]int64) view {
	if memory >= o.memory {
		at, found := slices.BinarySearch(o.cpus, cpu)
		if found {
			at++
		}
		return view{o, o.rows[at*o.width:][:o.width]}
	}
	if cap(*into) < o.width {
		*into = make([]int64, o.width)
	}
	row := (*into)[:o.width]
	o.fill(row, cpu, memory)
	return view{o, row}
}

// device is the worth of one device with so much free, without what depends on the other devices.
func (v view) device(free int64) int64 {
	return free*v.row[v.o.rankOf[free]] - farWeight*v.o.far.left[free]
}

// together is the worth of so many whole devices for tasks that want whole ones.
func (v view) together(whole int64) int64 {
	return whole * v.o.whole * v.row[v.o.sizes+1+min(int(whole), v.o.counts)]
}

// imbalance is what is stranded because CPU and devices are free in different proportion.
func (o *Outlook) imbalance(r *Room, cpu, free int64) int64 {
	capacity := int64(len(r.Devices)) * o.whole
	if capacity == 0 || r.WholeCPU <= 0 {
		return 0
	}
	const bits = 16
	d := (max(cpu, 0)<<bits)/r.WholeCPU - free<<bits/capacity
	return capacity * ((d * d) >> bits) / balancePart << 4 // 2*16 bits of fraction become 20
}

// Terms are the worth of a node, by what it is made of.
type Terms struct {
	Near, Far, Imbalance int64
}

// Worth values what is free on a node.
func (o *Outlook) Worth(r *Room) int64 {
	t := o.Terms(r)
	return t.Near - farWeight*t.Far - t.Imbalance
}

// Terms values what is free on a node, term by term.
func (o *Outlook) Terms(r *Room) (t Terms) {
	var row []int64
	v := o.view(r.CPU, r.Memory, &row)
	var whole, sum int64
	for _, free := range r.Devices {
		t.Near += free * v.row[o.rankOf[free]]
		t.Far += o.far.left[free]
		sum += free
		if free == o.whole {
			whole++
		}
	}
	t.Near += v.together(whole)
	t.Imbalance = o.imbalance(r, r.CPU, sum)
	return t
}
