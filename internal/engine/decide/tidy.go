package decide

import (
	"cmp"
	"maps"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// bytesPerNode is how much memory all rankings may take, for each node of the cluster, and
// leastBytes is the lower limit: enough for the rankings of 500 plain classes on 100,000 nodes.
const (
	bytesPerNode = 512
	leastBytes   = 128 << 20
)

// idle is the number of decisions after which something is dropped that none of them used: making
// it again then costs each of them little. often is how many decisions there are between two
// searches for such things.
const idle, often = 1 << 10, 1 << 8

// use notes that the current decision uses the ranking.
func (d *Decider) use(r *ranking) {
	r.used = d.meter.Clock
	d.latest[d.meter.Clock%uint64(len(d.latest))] = r
}

// drop forgets the ranking. Members that still refer to it keep nothing of what was in it.
func (d *Decider) drop(r *ranking) {
	delete(d.rankings, r.key)
	*r = ranking{dropped: true}
}

// dropIdle drops the ranking that has just become idle: rankings take most of the memory.
func (d *Decider) dropIdle() {
	oldest := &d.latest[d.meter.Clock%uint64(len(d.latest))]
	if r := *oldest; r != nil && !r.dropped && d.meter.Clock-r.used > idle {
		d.drop(r)
	}
	*oldest = nil
}

// tidy drops what has been idle.
func (d *Decider) tidy() {
	for _, r := range d.rankings {
		if d.meter.Clock-r.used > idle {
			d.drop(r)
		}
	}

	maps.DeleteFunc(d.effort, func(_ int32, e classEffort) bool { return d.meter.Clock-e.used > idle })
	d.byClass = cluster.Shrunk(d.byClass, &d.mostMembers)
	maps.DeleteFunc(d.byClass, func(_ int32, m *member) bool { return m.dropped || d.meter.Clock-m.asked > idle })
	d.byClass = cluster.Shrunk(d.byClass, &d.mostMembers)
	for key, b := range d.bases {
		if d.meter.Clock-b.used > idle {
			d.dropBase(key)
		}
	}

	maps.DeleteFunc(d.skeletons, func(_ string, sk *skeleton) bool { return d.meter.Clock-sk.used > idle })
	maps.DeleteFunc(d.saidEffort, func(_ uint64, e *saidEffort) bool { return d.meter.Clock-e.used > idle })
	for i := range d.plans {
		if known := &d.plans[i]; known.class != nil && d.meter.Clock-known.used > idle {
			*known = recentPlan{}
		}
	}
	d.dropTopologies(nil)
}

// bulkBytes is about how much memory a byte of a class's bulk takes: short values in long lists are
// most expensive.
const bulkBytes = 8

// makeRoom drops the rankings that were used least recently until a new one fits.
func (d *Decider) makeRoom(r *ranking) {
	limit, total := d.mostBytes(), r.bytes()
	for _, other := range d.rankings {
		total += other.bytes()
	}

	if total > limit {
		defer d.loseDropped()
	}
	for total > limit && len(d.rankings) > 0 {
		var oldest *ranking
		for _, other := range d.rankings {
			if oldest == nil || other.used < oldest.used {
				oldest = other
			}
		}
		total -= oldest.bytes()
		d.drop(oldest)
	}
}

// loseDropped forgets that classes have rankings that were dropped, which would otherwise stay in
// memory. A class has to earn another one.
func (d *Decider) loseDropped() {
	maps.DeleteFunc(d.byClass, func(class int32, m *member) bool {
		if m.dropped {
			delete(d.effort, class)
		}
		return m.dropped
	})
}

// maxBases bounds the number of bases, however little memory they take.
const maxBases = 64

// dropBases drops the bases that were used least recently until there is room for another one. All
// bases may take as much memory as all rankings.
func (d *Decider) dropBases() {
	keys, total := make([]string, 0, len(d.bases)), 0
	for key, b := range d.bases {
		keys, total = append(keys, key), total+b.bytes()
	}
	slices.SortFunc(keys, func(a, b string) int { return cmp.Compare(d.bases[a].used, d.bases[b].used) })
	for ; len(keys) >= maxBases || total > d.mostBytes() && len(keys) > 0; keys = keys[1:] {
		total -= d.bases[keys[0]].bytes()
		d.dropBase(keys[0])
	}
}

func (d *Decider) dropBase(key string) {
	b := d.bases[key]
	b.dropped = true
	delete(d.bases, key)
	for i := range d.plans {
		if d.plans[i].base == b {
			d.plans[i].base = noBase // a plan may stay for long, and must not keep the base
		}
	}
}

// noBase stands for any base that was dropped.
var noBase = &base{dropped: true}

func (d *Decider) mostBytes() int { return max(leastBytes, bytesPerNode*len(d.c.Nodes)) }
