// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

// devices is the known state of devices. The Core builds one from watches, and each attempt builds
// another one from its reads.
type devices struct {
	claims map[types.NamespacedName]*ClaimState
	pools  map[Pool]*pool
	slices map[string]*slice
	rules  map[string]*rule
	sorted []*rule // the rules, by name
}

// pool is a pool of devices. Only slices of the newest generation count.
type pool struct {
	slices map[string]*slice
	claims map[types.NamespacedName]bool // claims with devices of the pool
	// offers maps the names of devices to their slices. It is nil until slicesByDevice computes it.
	offers map[string]*slice
}

// slice is a slice with the starts of its devices' taints.
type slice struct {
	Slice
	held map[string][]Held // the NoExecute taints of its devices
	list uint32
}

// rule is a rule with the pods it evicts, and the state of its status.
type rule struct {
	RuleState
	pods           map[*pod]bool // pods evicted by the rule
	statusInFlight bool          // a status write is in flight
}

// newDevices returns an empty state.
func newDevices() devices {
	return devices{
		claims: map[types.NamespacedName]*ClaimState{}, pools: map[Pool]*pool{}, slices: map[string]*slice{}, rules: map[string]*rule{},
	}
}

// deadlineOf returns the time at which the pod must leave because of its devices, and the names of
// the rules requiring it, sorted and without duplicates. asked includes rules that the claims
// tolerate for a limited time, because the statuses of these rules count the pods still to be
// evicted.
//
// A claim tolerates a taint as defined by the API: forever through a toleration without effect, or
// without seconds, and otherwise for the fewest seconds of all matching tolerations, counted from
// the addition of the taint.
func (d *devices) deadlineOf(p *Pod) (least Due, asked []string) {
	for _, ref := range p.Claims {
		c := d.claims[types.NamespacedName{Namespace: p.Name.Namespace, Name: ref.Name}]
		if c == nil || !c.servesPod(p, ref) {
			continue
		}
		for i := range c.Uses {
			use := &c.Uses[i]
			for held, by := range d.taintsOf(use.Device) {
				stay, ends := claimTolerates(&held.Taint, use.Tolerations)
				if !ends {
					continue
				}
				if by != "" {
					asked = append(asked, by)
				}
				if at := held.Since.Add(stay); least.Stays() || at.Before(least.At) {
					least = Due{At: at, Taint: held.Taint, Device: use.Device, Rule: by}
				}
			}
		}
	}

	slices.Sort(asked)
	return least, slices.Compact(asked)
}

// taintsOf yields the NoExecute taints of a device, each with the rule causing it, or "" for a
// taint in the device's slice.
func (d *devices) taintsOf(device Device) func(yield func(Held, string) bool) {
	return func(yield func(Held, string) bool) {
		for _, held := range d.publishedTaints(device) {
			if !yield(held, "") {
				return
			}
		}
		for _, r := range d.sorted {
			if r.evictsPods() && r.selectsDevice(device) && !yield(r.Held, r.Name) {
				return
			}
		}
	}
}

// publishedTaints returns the taints in a device's slice.
func (d *devices) publishedTaints(device Device) []Held {
	pool := d.pools[device.poolOf()]
	if pool == nil {
		return nil
	}
	if s := pool.slicesByDevice()[device.Name]; s != nil {
		return s.held[device.Name]
	}
	return nil
}

// slicesByDevice maps the names of the pool's devices to their slices. As defined by the API, only
// slices of the newest generation count: a driver that republishes a pool writes slice after slice,
// and the slices of the previous generation are void. If a device is in two slices, the first slice
// by name counts.
func (of *pool) slicesByDevice() map[string]*slice {
	if of.offers != nil {
		return of.offers
	}
	newest := int64(math.MinInt64)
	for _, s := range of.slices {
		newest = max(newest, s.Generation)
	}

	of.offers = map[string]*slice{}
	for _, name := range slices.Sorted(maps.Keys(of.slices)) {
		s := of.slices[name]
		for i := range s.Devices {
			if s.Generation == newest && of.offers[s.Devices[i].Name] == nil {
				of.offers[s.Devices[i].Name] = s
			}
		}
	}

	return of.offers
}

// claimTolerates returns the duration for which a claim with these tolerations tolerates the taint.
// ends is false if it does so forever.
func claimTolerates(taint *v1.Taint, tolerations []resourcev1.DeviceToleration) (stay time.Duration, ends bool) {
	tainted := resourcev1.DeviceTaint{Key: taint.Key, Value: taint.Value, Effect: resourcev1.DeviceTaintEffectNoExecute}
	least, endless := time.Duration(-1), false
	for _, t := range tolerations {
		if !resourceclaim.ToleratesTaint(t, tainted) {
			continue
		}
		if t.TolerationSeconds == nil || t.Effect == "" { // the seconds of a toleration without effect are ignored
			return 0, false
		}

		seconds, ends := stayDuration(*t.TolerationSeconds)
		if !ends {
			endless = true
		} else if least < 0 || seconds < least {
			least = seconds
		}
	}
	if least < 0 {
		return 0, !endless
	}
	return least, true
}

// evidenceFor returns the objects to read before evicting the pod now: only the claims, pools and
// rules that make the pod due, so that one attempt reads little in a cluster with many rules. If
// these objects no longer require the eviction, the pod stays until its next deadline.
func (d *devices) evidenceFor(p *Pod, now time.Time) (read ReadDevices) {
	for _, ref := range p.Claims {
		c := d.claims[types.NamespacedName{Namespace: p.Name.Namespace, Name: ref.Name}]
		if c == nil || !c.servesPod(p, ref) {
			continue
		}
		asks := false
		for i := range c.Uses {
			use := &c.Uses[i]
			for held, by := range d.taintsOf(use.Device) {
				stay, ends := claimTolerates(&held.Taint, use.Tolerations)
				if !ends || held.Since.Add(stay).After(now) {
					continue
				}
				asks = true
				id := use.Device.poolOf()
				if by != "" {
					read.Rules = append(read.Rules, by)
				} else if at := (PoolAt{id, d.pools[id].slicesByDevice()[use.Device.Name].Node}); !slices.Contains(read.Pools, at) {
					read.Pools = append(read.Pools, at)
				}
			}
		}
		if asks {
			read.Claims = append(read.Claims, c.Name)
		}
	}

	slices.Sort(read.Rules)
	read.Rules = slices.Compact(read.Rules)
	return read
}

// poolOf returns the pool, creating it if necessary.
func (d *devices) poolOf(id Pool) *pool {
	of := d.pools[id]
	if of == nil {
		of = &pool{slices: map[string]*slice{}, claims: map[types.NamespacedName]bool{}}
		d.pools[id] = of
	}
	return of
}

// setClaim sets a claim, replacing any of the same name, and adds it to the pools of its devices.
func (d *devices) setClaim(c *ClaimState) {
	d.dropClaim(c.Name)
	d.claims[c.Name] = c
	for i := range c.Uses {
		d.poolOf(c.Uses[i].Device.poolOf()).claims[c.Name] = true
	}
}

// dropClaim removes the claim with the name, if known.
func (d *devices) dropClaim(name types.NamespacedName) {
	c := d.claims[name]
	if c == nil {
		return
	}
	delete(d.claims, name)
	for i := range c.Uses {
		id := c.Uses[i].Device.poolOf()
		if pool := d.pools[id]; pool != nil {
			delete(pool.claims, name)
			d.dropIfUnused(id)
		}
	}
}

// setSlice sets a slice, replacing any of the same name. The mapping of devices to slices is
// recomputed on demand.
func (d *devices) setSlice(s *slice) {
	d.dropSlice(s.Name)
	d.slices[s.Name] = s
	pool := d.poolOf(s.Pool)
	pool.slices[s.Name], pool.offers = s, nil
}

// dropSlice removes the slice with the name, if known.
func (d *devices) dropSlice(name string) {
	s := d.slices[name]
	if s == nil {
		return
	}
	delete(d.slices, name)
	pool := d.pools[s.Pool]
	delete(pool.slices, name)
	pool.offers = nil
	d.dropIfUnused(s.Pool)
}

// dropIfUnused removes a pool without slices and claims.
func (d *devices) dropIfUnused(id Pool) {
	if pool := d.pools[id]; len(pool.slices) == 0 && len(pool.claims) == 0 {
		delete(d.pools, id)
	}
}

// setRule sets a rule, replacing any of the same name.
func (d *devices) setRule(r *rule) {
	d.rules[r.Name] = r
	d.sortRules()
}

// dropRule removes the rule with the name, if known.
func (d *devices) dropRule(name string) {
	delete(d.rules, name)
	d.sortRules()
}

// sortRules sorts the rules by name, so that of several rules with the same deadline, the same rule
// is always reported.
func (d *devices) sortRules() {
	d.sorted = slices.SortedFunc(maps.Values(d.rules), func(a, b *rule) int { return strings.Compare(a.Name, b.Name) })
}

// claimsIn returns the claims with devices of matching pools. The caller owns the map.
func (d *devices) claimsIn(fits func(Pool) bool) map[types.NamespacedName]bool {
	names := map[types.NamespacedName]bool{}
	for id, pool := range d.pools {
		if fits(id) {
			maps.Copy(names, pool.claims)
		}
	}
	return names
}
