package decide

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// A base is a ranking in which no pod counts. The workloads of a cluster differ in their selectors, and often in nothing else: then
// nodes stand alike for all of them but where one of them counts pods. So the first look at such a class takes over where the nodes
// stand in the base, and looks at the nodes of those domains alone.

// baseKey is what classes share that have a base in common: what they ask of nodes, and by which keys they are spread and keep their
// distance, whoever is meant by it.
type baseKey struct {
	shape     [2]uint64
	structure string
	devices   uint64 // version
}

// structure describes the plan but for the selectors.
func (pl *plan) structure() string {
	var b strings.Builder
	fmt.Fprintln(&b, pl.everyKey, len(pl.early), len(pl.late), len(pl.contents), pl.room != nil, pl.imageWorth)
	for i := range pl.asked {
		fmt.Fprintln(&b, pl.asked[i].filter.Name())
	}
	for i := range pl.tallies {
		t := &pl.tallies[i]
		fmt.Fprintf(&b, "%d %s", t.purpose, t.key)
		if c := t.constraint; c != nil {
			fmt.Fprintf(&b, " %s %s", c.NodeAffinityPolicy, c.NodeTaintsPolicy)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

const (
	// maxBases bounds how many there are, maxSeen how many keys are known of which one class has been seen.
	maxBases, maxSeen = 32, 1 << 12
	// fewStatics is up to how many a first look is taken over: they are copied.
	fewStatics = 256
)

// bases are the bases of a decider. The second class of a kind makes one.
type bases struct {
	rankings map[baseKey]*ranking
	seen     map[baseKey]bool
}

// firstLook makes a ranking.
func (d *Decider) firstLook(class *cluster.PodClass, pl *plan) *ranking {
	if len(pl.tallies) > 0 && !pl.perNode {
		if base := d.base(class, pl); base != nil {
			return newFromBase(pl, base)
		}
	}
	return newRanking(d, pl)
}

// base returns the base for a class, up to date, or nil if it is not worth one.
func (d *Decider) base(class *cluster.PodClass, pl *plan) *ranking {
	key := baseKey{class.Shape, pl.structure(), d.c.DeviceClasses.Version}
	base := d.bases.rankings[key]
	switch {
	case base != nil:
		base.catchUp()
	case !d.bases.seen[key]:
		if len(d.bases.seen) >= maxSeen {
			clear(d.bases.seen)
		}
		d.bases.seen[key] = true
		return nil
	default:
		d.dropBases()
		empty := *pl
		empty.countsNobody = true
		base = newRanking(d, &empty)
		d.bases.rankings[key] = base
	}
	base.used = d.clock
	if len(base.byParts)+len(base.byStatic)+len(base.reasons) > fewStatics {
		return nil
	}
	return base
}

// dropBases drops those that were not used lately, and the one used least recently where there are too many.
func (d *Decider) dropBases() {
	var oldest baseKey
	for key, base := range d.bases.rankings {
		if d.clock-base.used > idle {
			delete(d.bases.rankings, key)
		} else if first := d.bases.rankings[oldest]; first == nil || base.used < first.used {
			oldest = key
		}
	}
	if len(d.bases.rankings) >= maxBases {
		delete(d.bases.rankings, oldest)
	}
}

// newFromBase makes the ranking of a plan.
func newFromBase(pl *plan, base *ranking) *ranking {
	d := base.d
	r := &ranking{d: d, plan: pl, seen: base.seen, counts: base.counts, live: none, effects: map[int32][]effect{}}
	for i := range pl.tallies {
		t := pl.tallies[i].start(d)
		// As in the base: there it was found out when the nodes were last others.
		t.byCount = base.tallies[i].byCount
		if t.purpose == spreadHard {
			copy(t.included, base.tallies[i].included)
			t.present = base.tallies[i].present
			t.level(0, int32(t.present))
		}
		r.tallies = append(r.tallies, t)
	}
	r.copyGroups(base)
	r.countPods()
	for k, t := range r.tallies {
		if !t.byCount {
			continue
		}
		nothing := base.tallies[k]
		for domain, count := range t.count {
			if count != 0 && t.value(int32(domain)) != nothing.value(int32(domain)) {
				t.topology.each(int32(domain), r.reassess)
			}
		}
	}
	return r
}

// copyGroups takes over where nodes stand.
func (r *ranking) copyGroups(of *ranking) {
	r.bucket, r.at = slices.Clone(of.bucket), slices.Clone(of.at)
	r.statics, r.byParts, r.byStatic = slices.Clip(of.statics), maps.Clone(of.byParts), maps.Clone(of.byStatic)
	r.reasons, r.byText = slices.Clip(of.reasons), maps.Clone(of.byText)
	r.byKey, r.byLong, r.vacant = maps.Clone(of.byKey), maps.Clone(of.byLong), slices.Clone(of.vacant)
	nodes := 0
	for _, g := range of.groups {
		nodes += int(g.ok)
	}
	r.groups = make([]*group, len(of.groups))
	places := make([]int32, 0, nodes)
	for i, g := range of.groups {
		copied := &group{key: g.key, long: g.long, values: g.values, ok: g.ok, rejected: slices.Clone(g.rejected), inUse: slices.Clone(g.inUse)}
		r.groups[i] = copied
		if g.buckets == nil {
			continue
		}
		copied.buckets = make([][]int32, len(g.buckets))
		for b, list := range g.buckets {
			if len(list) > 0 {
				from := len(places)
				places = append(places, list...)
				copied.buckets[b] = slices.Clip(places[from:])
			}
		}
	}
}
