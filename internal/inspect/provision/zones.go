package provision

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// zones chooses zones beforehand for pods whose constraints are by zone, which a packing does not
// know: those that spread over zones go round them, and those that want to be together go where the
// first of them went.
type zones struct {
	d     *demand
	turn  map[string]int
	given map[string]string // by group: the zone
}

func newZones(d *demand) *zones {
	return &zones{d: d, turn: map[string]int{}, given: map[string]string{}}
}

func (z *zones) choose(p *cluster.Pod, kinds []int) []int {
	class := p.Class
	for i, s := range class.Spec.TopologySpreadConstraints {
		if s.TopologyKey == v1.LabelTopologyZone && s.WhenUnsatisfiable == v1.DoNotSchedule {
			list := z.of(kinds)
			key := fmt.Sprint(class.Namespace, selectorText(class.SpreadSelectors, i), list)
			zone := list[z.turn[key]%len(list)]
			z.turn[key]++
			return z.in(kinds, zone)
		}
	}

	for _, term := range class.RequiredAffinity {
		if term.TopologyKey == v1.LabelTopologyZone && term.Matches(class, nil) {
			key := fmt.Sprint(term.Namespaces, term.Selector.String())
			zone, known := z.given[key]
			if !known || len(z.in(kinds, zone)) == 0 {
				zone = z.of(kinds)[0]
				z.given[key] = zone
			}
			return z.in(kinds, zone)
		}
	}

	return kinds
}

func selectorText(list []*rules.Selector, at int) string {
	if at < len(list) && list[at] != nil {
		return list[at].String()
	}
	return ""
}

// of are the zones of the kinds, the one with the cheapest offers first.
func (z *zones) of(kinds []int) (list []string) {
	for _, k := range kinds {
		if zone := z.d.kinds[k].labels[v1.LabelTopologyZone]; !slices.Contains(list, zone) {
			list = append(list, zone)
		}
	}
	slices.Sort(list)
	return list
}

// in are those of the kinds that are in a zone.
func (z *zones) in(kinds []int, zone string) (list []int) {
	for _, k := range kinds {
		if z.d.kinds[k].labels[v1.LabelTopologyZone] == zone {
			list = append(list, k)
		}
	}
	return list
}
