// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// countedLooks lists, without duplicates, the looks of pods that may count in the tallies of a
// plan. If all is set, any look may count. The list is valid until the next call.
func (pl *plan) countedLooks(ix *index) (looks []*lookPods, all bool) {
	own := pl.ownSelectors()
	ix.nameKeys(own...)
	p := &ix.placed
	p.beginSearch()
	for _, selector := range own {
		labels, everybody := cluster.RequiredLabels(selector)
		if everybody {
			return nil, true
		}
		for _, at := range labels {
			p.findLooks(&p.byLabel, shortHashOf(at.Key, at.Value))
		}
	}

	if pl.filtersPods || pl.scoresPods {
		for _, users := range ix.terms.usersFor(pl.example.Class.Labels) {
			if pl.foreignSummed && pl.isApart(users.class.Affinities) {
				continue
			}
			p.findLooks(&p.byTerms, cluster.ShortHash(users.class.Affinities[0]))
		}
	}

	return p.found, false
}

// ownSelectors lists the selectors of the class for other pods.
func (pl *plan) ownSelectors() (list []*rules.Selector) {
	for i := range pl.hard {
		list = append(list, pl.hard[i].Selector)
	}
	for i := range pl.soft {
		list = append(list, pl.soft[i].Selector)
	}
	return append(list, termSelectors(pl.example.Class)...)
}
