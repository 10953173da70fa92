package provision

import (
	"fmt"
	"math"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// zones chooses zones beforehand for pods whose constraints are by zone, which a packing does not
// know: those that spread go where fewest like them are, and those that want to be together go
// where the first of them went.
//
// The packing counts nothing across bins, so it cannot keep zones even. That is decided here,
// before it.
type zones struct {
	d     *demand
	alike map[likeness]int  // how many pods of a look went to a domain
	given map[string]string // by group: the zone
}

// look is that of the pod's class: to the constraints of other pods, those with the same are the
// same.
type likeness struct {
	look        [2]uint64
	key, domain string
}

// newZones returns zones to which no pod has been given yet.
func newZones(d *demand) *zones {
	return &zones{d: d, alike: map[likeness]int{}, given: map[string]string{}}
}

// choose returns those of the kinds that a pod goes to: of one zone, if its constraints are by
// zone, and all of them otherwise. What it chooses counts for the pods after it, so pods are to be
// given in the order in which they are tried.
func (z *zones) choose(p *cluster.Pod, kinds []int) []int {
	class := p.Class
	for _, own := range z.d.spreads.of(class).own {
		if own.key != v1.LabelHostname {
			kinds = z.spread(class, &own, kinds)
		}
	}

	for _, term := range class.RequiredAffinity {
		if term.TopologyKey == v1.LabelTopologyZone && term.Matches(class, nil) {
			key := fmt.Sprint(term.Namespaces, term.Selector.String())
			zone, known := z.given[key]
			// The first pod of a group that wants to be together takes the first zone that it may
			// go to; those after it follow, if they may.
			if !known || len(z.in(kinds, v1.LabelTopologyZone, zone)) == 0 {
				zone = z.of(kinds, v1.LabelTopologyZone)[0]
				z.given[key] = zone
			}
			return z.in(kinds, v1.LabelTopologyZone, zone)
		}
	}

	return kinds
}

// spread returns those of the kinds that are in the domain to which a pod of the class goes: among
// the domains that the constraint allows, it is the one with the fewest pods like it, so that what
// others count stays even.
func (z *zones) spread(class *cluster.PodClass, own *ownSpread, kinds []int) []int {
	best, fewest := "", math.MaxInt
	// All domains that can be bought have to be known before the lowest count is asked for.
	for _, domain := range z.of(kinds, own.key) {
		own.add(domain)
	}
	for _, domain := range z.of(kinds, own.key) {
		like := z.alike[likeness{class.Look, own.key, domain}]
		if !own.allows(domain) {
			// A domain that is not allowed comes last: the engine may know better, and some domain
			// has to be given.
			like += math.MaxInt32 + own.counts[domain]
		}
		if like < fewest {
			best, fewest = domain, like
		}
	}

	// From here on this pod counts as if it were placed there; assign counts anew.
	z.alike[likeness{class.Look, own.key, best}]++
	for _, k := range z.d.spreads.of(class).counted {
		if k.key == own.key {
			k.count(best)
		}
	}
	return z.in(kinds, own.key, best)
}

// of are the values that the kinds have for a label, sorted.
func (z *zones) of(kinds []int, key string) (list []string) {
	for _, k := range kinds {
		if value := z.d.kinds[k].labels[key]; !slices.Contains(list, value) {
			list = append(list, value)
		}
	}
	slices.Sort(list)
	return list
}

// in are those of the kinds that have a value for a label. The order stays. A label that a kind
// lacks has the value "".
func (z *zones) in(kinds []int, key, value string) (list []int) {
	for _, k := range kinds {
		if z.d.kinds[k].labels[key] == value {
			list = append(list, k)
		}
	}
	return list
}
