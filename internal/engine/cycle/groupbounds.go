package cycle

import (
	"cmp"
	"iter"
	"math"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// domainBound is the least that it can cost to make room for a group in a domain, judged by CPU,
// memory, one more resource and the number of pods alone. It costs nothing where the group may fit
// as things are.
type domainBound struct {
	domain  string
	highest int64 // the highest priority of a pod that has to leave
	count   int   // how many have to leave
}

func (b *domainBound) compare(o *domainBound) int {
	return cmp.Or(cmp.Compare(b.highest, o.highest), cmp.Compare(b.count, o.count))
}

// leaving tells whether a pod may leave for a group, and with what priority that is to be compared.
type leaving func(p *cluster.Pod) (priority int64, leaves bool)

// leftAlready is the priority of a pod whose leaving costs nothing.
const leftAlready = math.MinInt64

// promising lists the domains in which as many members as are needed may fit once the pods have
// left that may (nil: none). Those come first where that costs least; the others stay in order.
func (a *groupAttempt) promising(key string, domains []string, leaves leaving) (list []domainBound) {
	nodes, least := a.nodesBy(key), a.leastRequest()
	for _, domain := range domains {
		if b, ok := a.boundOn(nodes[domain], least, leaves); ok {
			b.domain = domain
			list = append(list, b)
		}
	}
	slices.SortStableFunc(list, func(x, y domainBound) int { return x.compare(&y) })
	return list
}

// roomiest is the first of the domains that hold most members.
func (a *groupAttempt) roomiest(key string, domains []string) (roomiest string) {
	nodes, least := a.nodesBy(key), a.leastRequest()
	most := -1
	for _, domain := range domains {
		if n := least.most(freeOn(nodes[domain], least.name, nil)); n > most {
			roomiest, most = domain, n
		}
	}
	return roomiest
}

// nodesBy returns the nodes of each domain.
func (a *groupAttempt) nodesBy(key string) map[string][]*cluster.Node {
	if a.byDomain == nil {
		a.byDomain = map[string][]*cluster.Node{}
		for _, n := range a.cluster.Nodes {
			if n == nil {
				continue
			}
			if domain, ok := labelOf(n, key); ok {
				a.byDomain[domain] = append(a.byDomain[domain], n)
			}
		}
	}
	return a.byDomain
}

// boundOn returns the bound for a set of nodes. It is not ok if too few members fit there even when
// all pods have left that may.
func (a *groupAttempt) boundOn(nodes []*cluster.Node, least leastRequest, leaves leaving) (b domainBound, ok bool) {
	b.highest = leftAlready
	if !slices.ContainsFunc(a.profile.Filters, filtersRoom) {
		return b, true
	}

	f := freeOn(nodes, least.name, leaves)
	if least.most(f) >= a.need {
		return b, true
	}

	priorities := f.priorities()
	i, _ := slices.BinarySearchFunc(priorities, a.need, func(priority int64, need int) int {
		return cmp.Compare(least.most(f.without(priority)), need)
	})
	if i == len(priorities) {
		return b, false
	}

	b.highest, b.count = priorities[i], least.fewest(f, priorities[i], a.need)
	return b, true
}

func filtersRoom(f plugins.Filter) bool {
	_, is := f.(plugins.RoomFilter)
	return is
}

// amounts are what a pod requests, or what is free on a node, of CPU, memory, the other resource of
// a leastRequest, and pods. They are integers, so that a node with just enough is never left out;
// sums saturate.
type amounts struct{ cpu, memory, other, pods int64 }

func (x amounts) plus(y amounts) amounts {
	return amounts{rules.Sum(x.cpu, y.cpu), rules.Sum(x.memory, y.memory), rules.Sum(x.other, y.other), rules.Sum(x.pods, y.pods)}
}

func (x amounts) max(y amounts) amounts {
	return amounts{max(x.cpu, y.cpu), max(x.memory, y.memory), max(x.other, y.other), max(x.pods, y.pods)}
}

func requestOf(p *cluster.PodClass, other v1.ResourceName) amounts {
	return amounts{p.Requests.MilliCPU, p.Requests.Memory, p.Requests.Scalars[other], 1}
}

// vacancy is what is free on some nodes, and what becomes free with the pods that may leave.
type vacancy struct {
	nodes   []amounts
	leavers []leaver
}

type leaver struct {
	amounts
	node     int
	priority int64
}

func freeOn(nodes []*cluster.Node, other v1.ResourceName, leaves leaving) (f vacancy) {
	for i, n := range nodes {
		left := amounts{
			n.Size.MilliCPU - n.Requested.MilliCPU, n.Size.Memory - n.Requested.Memory,
			n.Size.Scalars[other] - n.Requested.Scalars[other], n.Size.Pods - int64(len(n.Pods)),
		}
		if leaves != nil {
			for _, p := range n.Pods {
				switch priority, may := leaves(p); {
				case may && priority == leftAlready:
					left = left.plus(requestOf(p.Class, other))
				case may:
					f.leavers = append(f.leavers, leaver{requestOf(p.Class, other), i, priority})
				}
			}
		}
		f.nodes = append(f.nodes, left)
	}

	return f
}

// priorities lists those of the pods that may leave, the lowest first.
func (f vacancy) priorities() (list []int64) {
	for i := range f.leavers {
		if n := len(list); n == 0 || list[n-1] != f.leavers[i].priority {
			list = append(list, f.leavers[i].priority)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// without is what is free when all pods up to a priority have left that may.
func (f vacancy) without(priority int64) vacancy {
	nodes := slices.Clone(f.nodes)
	for i := range f.leavers {
		if l := &f.leavers[i]; l.priority <= priority {
			nodes[l.node] = nodes[l.node].plus(l.amounts)
		}
	}
	return vacancy{nodes: nodes}
}

// leastRequest returns the least that a member requests of each resource.
func (a *groupAttempt) leastRequest() leastRequest {
	least := leastRequest{amounts{math.MaxInt64, math.MaxInt64, math.MaxInt64, 1}, a.common()}
	for _, m := range a.members {
		r := requestOf(m.item.Class, least.name)
		least.cpu, least.memory, least.other = min(least.cpu, r.cpu), min(least.memory, r.memory), min(least.other, r.other)
	}
	return least
}

// leastRequest names the other resource that is looked at; "" if none is.
type leastRequest struct {
	amounts
	name v1.ResourceName
}

// common returns a resource beside CPU and memory that every member requests of its node, as GPUs.
// None is where there are device classes: a node may have it as devices.
func (a *groupAttempt) common() v1.ResourceName {
	i := slices.IndexFunc(a.profile.Filters, filtersRoom)
	if i < 0 || a.cluster.DeviceClasses.Len() > 0 {
		return ""
	}

	filter := a.profile.Filters[i].(plugins.RoomFilter)
	names := filter.Others(&a.members[0].item.Class.Requests)
	for _, m := range a.members {
		if len(names) == 0 {
			return ""
		}
		if m.item.Class != a.members[0].item.Class {
			own := filter.Others(&m.item.Class.Requests)
			names = slices.DeleteFunc(names, func(name v1.ResourceName) bool { return !slices.Contains(own, name) })
		}
	}

	if len(names) == 0 {
		return ""
	}
	return names[0]
}

// leastTogether is the least CPU, and the least memory, that as many members as are needed request
// together.
func (a *groupAttempt) leastTogether() (sum amounts) {
	cpu, memory := make([]int64, len(a.members)), make([]int64, len(a.members))
	for i, m := range a.members {
		r := requestOf(m.item.Class, "")
		cpu[i], memory[i] = r.cpu, r.memory
	}
	slices.Sort(cpu)
	slices.Sort(memory)
	for i := range min(a.need, len(a.members)) {
		sum = sum.plus(amounts{cpu: cpu[i], memory: memory[i], pods: 1})
	}
	return sum
}

// isFree tells whether all nodes together have so much CPU and memory free, or taken by members.
func (a *groupAttempt) isFree(wanted amounts) bool {
	if !slices.ContainsFunc(a.profile.Filters, filtersRoom) {
		return true
	}
	var free amounts
	for i := range a.cluster.Rooms {
		room := &a.cluster.Rooms[i]
		free = free.plus(amounts{cpu: max(0, room.CPU-room.RequestedCPU), memory: max(0, room.Memory-room.RequestedMemory)})
	}
	for _, m := range a.placed {
		free = free.plus(requestOf(m.item.Class, ""))
	}
	return free.cpu >= wanted.cpu && free.memory >= wanted.memory
}

// on returns how many members at most fit into what is free on a node.
func (r leastRequest) on(left amounts) int {
	most := left.pods
	if r.cpu > 0 {
		most = min(most, left.cpu/r.cpu)
	}
	if r.memory > 0 {
		most = min(most, left.memory/r.memory)
	}
	if r.other > 0 {
		most = min(most, left.other/r.other)
	}
	return int(max(0, min(most, math.MaxInt32)))
}

// most returns how many members at most fit on the nodes.
func (r leastRequest) most(f vacancy) (sum int) {
	for i := range f.nodes {
		sum += r.on(f.nodes[i])
	}
	return sum
}

// fewest returns how many pods at least have to leave, of those up to a priority, until as many
// members fit as are needed: if the largest leave, and what they leave can be put together.
func (r leastRequest) fewest(f vacancy, priority int64, need int) int {
	var left amounts
	for i := range f.nodes {
		left = left.plus(f.nodes[i].max(amounts{}))
	}

	all := max(1, int64(need)-left.pods)
	for _, x := range [...]struct {
		lacks int64
		of    func(*leaver) int64
	}{
		{times(need, r.cpu) - left.cpu, func(l *leaver) int64 { return l.cpu }},
		{times(need, r.memory) - left.memory, func(l *leaver) int64 { return l.memory }},
		{times(need, r.other) - left.other, func(l *leaver) int64 { return l.other }},
	} {
		var sizes []int64
		for i := range f.leavers {
			if f.leavers[i].priority <= priority && x.lacks > 0 {
				sizes = append(sizes, x.of(&f.leavers[i]))
			}
		}
		slices.Sort(sizes)
		count := 0
		for lacks := x.lacks; lacks > 0 && count < len(sizes); count++ {
			lacks -= sizes[len(sizes)-1-count]
		}
		all = max(all, int64(count))
	}

	return int(all)
}

// times multiplies and saturates.
func times(count int, amount int64) int64 {
	if amount > 0 && int64(count) > math.MaxInt64/amount {
		return math.MaxInt64
	}
	return int64(count) * amount
}

// What the parts of an attempt cost, in judgements of a node by the plain evaluator.
const (
	costOfDecision   = 10  // about one member
	costOfPreemption = 20  // for one member
	costOfRemoval    = 4   // of a pod, with its return
	costOfDomain     = 200 // to be confined to it, and the first decision there
)

// mostEffort bounds what is spent on trying domains one after the other: all pods share the
// goroutine that decides, and a group must not hold it for longer than a tenth of a second. It is
// enough for a few domains in which each member has to be placed.
func (a *groupAttempt) mostEffort() int {
	return a.searchLimit + costOfDomain + 4*costOfDecision*len(a.members)
}

// spent tells whether the effort is used up, or the bound of the attempt reached.
func (a *groupAttempt) spent() bool { return a.effort >= a.mostEffort() || a.over() }

// inTurn yields one domain after the other until the effort is used up, which cut then tells. After
// half of it the rest follows at random, so that no domain is left out forever; where one domain
// may take all of it, every other attempt begins at random.
func (a *groupAttempt) inTurn(list []domainBound) iter.Seq[*domainBound] {
	return func(yield func(*domainBound) bool) {
		a.effort = 0
		shuffled := false
		for i := range list {
			if i > 0 && a.spent() {
				a.cut = true
				return
			}

			if rest := list[i:]; !shuffled && (a.effort >= a.mostEffort()/2 || a.group.Shortened%2 == 1) {
				shuffled = true
				a.rng.Shuffle(len(rest), func(i, j int) { rest[i], rest[j] = rest[j], rest[i] })
			}

			a.untried = len(list) - i
			if !yield(&list[i]) {
				return
			}
		}
	}
}
