package decide

import (
	"encoding/binary"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// skeleton is what the plans of simple classes with the same requirements of single nodes have in
// common: everything except for room and what depends on the classes' selectors. It is made for the
// first such class.
type skeleton struct {
	plan
	suits   bool             // a base can serve: only room, static parts and other pods matter
	selects bool             // a filter of the profile is a plugins.Targeter
	used    uint64           // when, by the decider's clock
	ask     []any            // plugins that have an effect on some of the classes; see applies
	hard    plugins.Spreader // nil: none
	soft    plugins.Spreader
	weight  int64 // of soft
}

// maxSkeletons bounds how many are kept.
const maxSkeletons = 1 << 10

// skeletonFor returns the skeleton for a simple class, or nil if classes like it have to be planned
// one by one.
func (d *Decider) skeletonFor(p *cluster.Pod) *skeleton {
	class := p.Class
	key := binary.NativeEndian.AppendUint64(d.key[:0], class.Static[0])
	key = binary.NativeEndian.AppendUint64(key, class.Static[1])
	key = binary.NativeEndian.AppendUint64(key, d.c.DeviceClasses.Version)
	if d.worth != nil {
		key = append(key, d.worth(p)...)
	}
	d.key = key
	sk := d.skeletons[string(key)]
	// A class that requests nothing is no example for the others: scorers may skip it.
	if sk == nil && class.Requests.MilliCPU+class.Requests.Memory > 0 {
		if len(d.skeletons) >= maxSkeletons {
			clear(d.skeletons)
		}
		sk = d.newSkeleton(p)
		d.skeletons[string(key)] = sk
	}
	if sk == nil {
		return nil
	}
	sk.used = d.clock
	if !sk.suits {
		return nil
	}
	return sk
}

func (d *Decider) newSkeleton(p *cluster.Pod) *skeleton {
	example := *p
	example.Class = p.Class.WithoutTarget()
	d.nextSkeleton++
	sk := &skeleton{plan: plan{example: &example, skeleton: d.nextSkeleton}}
	pl := &sk.plan
	if len(d.profile.Extenders) > 0 || !d.planPlugins(pl) {
		return sk
	}
	for _, f := range d.profile.Filters {
		switch f := f.(type) {
		case plugins.Spreader:
			sk.hard = f
		case plugins.Targeter:
			sk.selects = true
		case plugins.TermCounter, plugins.Steady:
		case plugins.Selective:
			sk.ask = append(sk.ask, f)
		default:
			return sk
		}
	}
	for _, s := range d.profile.Scorers {
		if f, is := s.Scorer.(plugins.Spreader); is {
			sk.soft, sk.weight = f, s.Weight
		} else if f, is := s.Scorer.(plugins.Selective); is {
			sk.ask = append(sk.ask, f)
		}
	}
	d.planRoom(pl)
	sk.suits = pl.way == ranked && len(pl.asked)+len(pl.askedScores) == 0 && !pl.perNode && pl.onlyRoom() && pl.room.bounded() && pl.maxRoom < maxBuckets
	return sk
}

// planFrom makes the plan of a class from its skeleton. ok is false if the class needs a plan from
// all plugins instead.
func (d *Decider) planFrom(sk *skeleton, p *cluster.Pod) (pl *plan, ok bool) {
	class := p.Class
	if class.TermError != nil {
		return nil, false
	}
	for _, plugin := range sk.ask {
		if applies(plugin, d.c, p) {
			return nil, false
		}
	}
	pl = &plan{}
	*pl = sk.plan
	pl.example, pl.room = p, pl.room.of(class)
	var err error
	if sk.hard != nil {
		if pl.hard, err = sk.hard.Hard(d.c, p); err != nil {
			return nil, false
		}
	}
	pl.soft, pl.everyKey, pl.spreadWeight = nil, false, sk.weight
	if sk.soft != nil {
		if pl.soft, pl.everyKey, err = sk.soft.Soft(d.c, p); err != nil {
			return nil, false
		}
	}
	pl.inclusion, pl.tallies = nil, nil
	d.planTallies(pl)
	return pl, !d.unsuited(pl)
}
