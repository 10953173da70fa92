// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// skeletonFor returns the skeleton for a simple class, or nil if such classes must be planned
// individually.
func (pn *planner) skeletonFor(p *cluster.Pod) *skeleton {
	class := p.Class
	key := binary.NativeEndian.AppendUint64(pn.key[:0], class.Static[0])
	key = binary.NativeEndian.AppendUint64(key, class.Static[1])
	key = binary.NativeEndian.AppendUint64(key, pn.c.DeviceClasses.Version)
	if pn.scoreKey != nil {
		key = append(key, pn.scoreKey(p)...)
	}
	pn.key = key
	sk := pn.skeletons[string(key)]
	// A class without requests is not representative: scorers may skip it.
	if class.Requests.MilliCPU+class.Requests.Memory > 0 {
		switch {
		case sk == nil:
			if len(pn.skeletons) >= maxSkeletons {
				clear(pn.skeletons)
			}
			pn.dropBulkySkeletons(class.Bulk)
			sk = pn.newSkeleton(p)
			pn.skeletons[string(key)] = sk
		case sk.bulk() > bulky && class.Bulk <= bulky:
			// The plans of smaller classes are kept longer, and must not retain the large example.
			number := sk.skeleton
			*sk = *pn.newSkeleton(p)
			sk.skeleton = number
		}
	}
	if sk == nil {
		return nil
	}
	sk.used = pn.meter.Clock
	if !sk.suits {
		return nil
	}
	return sk
}

// dropBulkySkeletons drops the least recently used skeletons with large examples, until there is
// room for another one.
func (pn *planner) dropBulkySkeletons(another int) {
	if another == 0 {
		return
	}
	var large []string
	total := another
	for key, sk := range pn.skeletons {
		if sk.bulk() > 0 {
			large, total = append(large, key), total+sk.bulk()
		}
	}

	if total <= cluster.MostBulk {
		return
	}
	slices.SortFunc(large, func(a, b string) int { return cmp.Compare(pn.skeletons[a].used, pn.skeletons[b].used) })
	for ; total > cluster.MostBulk && len(large) > 0; large = large[1:] {
		total -= pn.skeletons[large[0]].bulk()
		delete(pn.skeletons, large[0])
	}
}

func (pn *planner) newSkeleton(p *cluster.Pod) *skeleton {
	example := *p
	example.Class = p.Class.WithoutTarget()
	pn.nextSkeleton++
	sk := &skeleton{plan: plan{example: &example, skeleton: pn.nextSkeleton}}
	pl := &sk.plan
	if len(pn.profile.Extenders) > 0 || !pn.planPlugins(pl) {
		return sk
	}

	for _, f := range pn.profile.Filters {
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

	for _, s := range pn.profile.Scorers {
		if f, is := s.Scorer.(plugins.Spreader); is {
			sk.soft, sk.weight = f, s.Weight
		} else if f, is := s.Scorer.(plugins.Selective); is {
			sk.ask = append(sk.ask, f)
		}
	}

	pn.planRoom(pl)
	// The bounds of a box apply to the scores of this pod and of all pods that differ only in the
	// amounts, unless a scorer skips the pod or its score cannot be bounded.
	sk.suits = pl.way == ranked && len(pl.asked)+len(pl.askedScores) == 0 && !pl.perNode && pl.onlyRoom() &&
		!pl.room.skips && len(pl.room.others) == 0 && pl.maxRoom < maxBuckets
	return sk
}

// planFrom makes the plan of a class from its skeleton. ok is false if the class needs a plan from
// all plugins instead.
func (pn *planner) planFrom(sk *skeleton, p *cluster.Pod) (pl *plan, ok bool) {
	class := p.Class
	if class.TermError != nil {
		return nil, false
	}

	for _, plugin := range sk.ask {
		if appliesTo(plugin, pn.c, p) {
			return nil, false
		}
	}

	pl = &plan{}
	*pl = sk.plan
	pl.example, pl.room = p, pl.room.forClass(class)
	var err error
	if sk.hard != nil {
		if pl.hard, err = sk.hard.Hard(pn.c, p); err != nil {
			return nil, false
		}
	}

	pl.soft, pl.everyKey, pl.spreadWeight = nil, false, sk.weight
	if sk.soft != nil {
		if pl.soft, pl.everyKey, err = sk.soft.Soft(pn.c, p); err != nil {
			return nil, false
		}
	}

	pl.inclusion, pl.tallies = nil, nil
	pn.planTallies(pl)
	return pl, !pn.needsScan(pl)
}

// recent is the number of plans kept. recentBulky is the number of plans kept for unusually large
// classes; it is small because the pods of such a class may have been deleted.
const recent, recentBulky = 1 << 9, 1 << 3

// bulky is the minimum bulk of an unusually large class. It ensures that the plans of all other
// classes together stay below cluster.MostBulk.
const bulky = cluster.MostBulk / recent
