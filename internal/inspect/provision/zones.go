// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"fmt"
	"math"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// zones chooses zones in advance for pods with constraints by zone. Spreading pods go to the zone
// with the fewest similar pods, and pods with affinity to each other follow the first of them.
//
// The packing counts nothing across bins, so it cannot keep zones even; the zones are therefore
// chosen before the packing.
type zones struct {
	d     *demand
	alike map[likeness]int  // number of pods by look and domain
	given map[string]string // chosen zone by affinity term
}

// likeness identifies similar pods in a domain. look is the Look of the pods' class: pods with the
// same look are equivalent for the constraints of other pods.
type likeness struct {
	look        [2]uint64
	key, domain string
}

// newZones returns zones without any choices.
func newZones(d *demand) *zones {
	return &zones{d: d, alike: map[likeness]int{}, given: map[string]string{}}
}

// choose narrows the kinds of a pod to one zone if it has constraints by zone, and otherwise
// returns all kinds. A choice counts for later pods, so callers must pass pods in the order of
// attempts.
func (z *zones) choose(p *cluster.Pod, kinds []int) []int {
	class := p.Class
	for _, own := range z.d.spreads.spreadingOf(class).own {
		if own.key != v1.LabelHostname {
			kinds = z.spread(class, &own, kinds)
		}
	}

	for _, term := range class.RequiredAffinity {
		if term.TopologyKey == v1.LabelTopologyZone && term.Matches(class, nil) {
			key := fmt.Sprint(term.Namespaces, term.Selector.String())
			zone, known := z.given[key]
			// The first pod with this term takes its first possible zone; the pods after it follow
			// if they can.
			if !known || len(z.kindsIn(kinds, v1.LabelTopologyZone, zone)) == 0 {
				zone = z.zonesOf(kinds, v1.LabelTopologyZone)[0]
				z.given[key] = zone
			}
			return z.kindsIn(kinds, v1.LabelTopologyZone, zone)
		}
	}

	return kinds
}

// spread narrows the kinds to one domain for a pod of the class. Among the domains allowed by the
// constraint, it chooses the domain with the fewest similar pods, which also keeps the counts of
// other constraints even.
func (z *zones) spread(class *cluster.PodClass, own *ownSpread, kinds []int) []int {
	best, fewest := "", math.MaxInt
	// Add all available domains before computing the lowest count.
	for _, domain := range z.zonesOf(kinds, own.key) {
		own.add(domain)
	}
	for _, domain := range z.zonesOf(kinds, own.key) {
		like := z.alike[likeness{class.Look, own.key, domain}]
		if !own.allows(domain) {
			// A disallowed domain is the last choice, but a possible one, because some domain must
			// be chosen.
			like += math.MaxInt32 + own.counts[domain]
		}
		if like < fewest {
			best, fewest = domain, like
		}
	}

	// From here on this pod counts as placed there, until assign resets the counts.
	z.alike[likeness{class.Look, own.key, best}]++
	for _, k := range z.d.spreads.spreadingOf(class).counted {
		if k.key == own.key {
			k.count(best)
		}
	}
	return z.kindsIn(kinds, own.key, best)
}

// zonesOf returns the values of the kinds for a label, sorted.
func (z *zones) zonesOf(kinds []int, key string) (list []string) {
	for _, k := range kinds {
		if value := z.d.kinds[k].labels[key]; !slices.Contains(list, value) {
			list = append(list, value)
		}
	}
	slices.Sort(list)
	return list
}

// kindsIn returns the kinds with a value for a label, in the same order. A label missing from a
// kind has the value "".
func (z *zones) kindsIn(kinds []int, key, value string) (list []int) {
	for _, k := range kinds {
		if z.d.kinds[k].labels[key] == value {
			list = append(list, k)
		}
	}
	return list
}
