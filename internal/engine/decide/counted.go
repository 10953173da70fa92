package decide

import (
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// counted lists the classes whose pods may count in the tallies of a plan, each once. all: any
// class may. The list is good until the next call.
func (pl *plan) counted(ix *index) (classes []*classPods, all bool) {
	p := &ix.placed
	p.begin()
	for _, selector := range pl.selectors() {
		of, everybody := cluster.RequiredLabels(selector)
		if everybody {
			return nil, true
		}
		for _, at := range of {
			p.find(p.byLabel[hashOf(at.Key, at.Value)])
		}
	}

	if pl.filtersPods || pl.scoresPods {
		for _, users := range ix.terms.about(pl.example.Class.Labels) {
			if pl.strangersSummed && pl.apart(users.class.Affinities) {
				continue
			}
			p.find(p.byTerms[users.class.Affinities])
		}
	}

	return p.found, false
}

// selectors lists the selectors with which the class itself refers to other pods.
func (pl *plan) selectors() (list []*rules.Selector) {
	for i := range pl.hard {
		list = append(list, pl.hard[i].Selector)
	}
	for i := range pl.soft {
		list = append(list, pl.soft[i].Selector)
	}
	return append(list, termSelectors(pl.example.Class)...)
}

// saidTo returns what all terms say about the pending pod of a plan. Keys that no node has are left
// out.
func (pl *plan) saidTo(ix *index) (s said) {
	own := pl.example.Class
	for _, users := range ix.terms.about(own.Labels) {
		by := ix.saidOf(users, own, pl.affinities)
		if !pl.filtersPods {
			by.repelled = nil
		}
		if !pl.countsVotes() {
			by.votes = nil
		}
		if len(by.repelled)+len(by.votes) > 0 {
			s.by = append(s.by, by)
		}
	}
	slices.SortFunc(s.by, func(a, b saidBy) int { return slices.Compare(a.affinities[:], b.affinities[:]) })
	return s
}
