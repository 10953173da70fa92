package decide

import (
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// placed knows on which nodes the pods of each class are. A class is found by its labels, so that
// whoever counts the pods that a selector means looks at these and not at all that there are; and
// by its terms, for those who are meant by them.
type placed struct {
	classes map[int32]*classPods // by ID
	byLabel map[label]map[*classPods]bool
	byTerms map[[2]uint64]map[*classPods]bool // by PodClass.Affinities
}

// classPods are the pods of a class.
type classPods struct {
	class *cluster.PodClass
	nodes map[int32]podCount
}

// podCount counts pods on a node, those that are leaving apart.
type podCount struct{ staying, leaving int32 }

func newPlaced() placed {
	return placed{map[int32]*classPods{}, map[label]map[*classPods]bool{}, map[[2]uint64]map[*classPods]bool{}}
}

// count counts a pod that came to a node or left it.
func (p *placed) count(class *cluster.PodClass, node int32, terminating bool, by int32) {
	pods := p.classes[class.ID]
	if pods == nil {
		pods = &classPods{class, map[int32]podCount{}}
		p.list(pods)
	}
	n := pods.nodes[node]
	if terminating {
		n.leaving += by
	} else {
		n.staying += by
	}
	if n != (podCount{}) {
		pods.nodes[node] = n
		return
	}
	if delete(pods.nodes, node); len(pods.nodes) == 0 {
		p.unlist(pods)
	}
}

func (p *placed) list(pods *classPods) {
	p.classes[pods.class.ID] = pods
	for key, value := range pods.class.Labels {
		insert(p.byLabel, label{Key: key, Value: value}, pods)
	}
	if pods.class.HasAffinity() {
		insert(p.byTerms, pods.class.Affinities, pods)
	}
}

func (p *placed) unlist(pods *classPods) {
	delete(p.classes, pods.class.ID)
	for key, value := range pods.class.Labels {
		remove(p.byLabel, label{Key: key, Value: value}, pods)
	}
	if pods.class.HasAffinity() {
		remove(p.byTerms, pods.class.Affinities, pods)
	}
}

func insert[K comparable](index map[K]map[*classPods]bool, key K, pods *classPods) {
	if index[key] == nil {
		index[key] = map[*classPods]bool{}
	}
	index[key][pods] = true
}

func remove[K comparable](index map[K]map[*classPods]bool, key K, pods *classPods) {
	if delete(index[key], pods); len(index[key]) == 0 {
		delete(index, key)
	}
}

// counted lists the classes whose pods may count in the tallies of a plan. all: they may be any.
func (d *Decider) counted(pl *plan) (classes map[*classPods]bool, all bool) {
	classes = map[*classPods]bool{}
	for _, selector := range pl.selectors() {
		of, everybody := cluster.RequiredLabels(selector)
		if everybody {
			return nil, true
		}
		for _, at := range of {
			for pods := range d.placed.byLabel[at] {
				classes[pods] = true
			}
		}
	}
	if pl.filtersPods || pl.scoresPods {
		for _, users := range d.terms.about(pl.example.Class.Labels) {
			if pl.strangersSummed && pl.apart(users.class.Affinities) {
				continue
			}
			for pods := range d.placed.byTerms[users.class.Affinities] {
				classes[pods] = true
			}
		}
	}
	return classes, false
}

// selectors lists what the pods of the class themselves mean others by.
func (pl *plan) selectors() (list []labels.Selector) {
	for i := range pl.hard {
		list = append(list, pl.hard[i].Selector)
	}
	for i := range pl.soft {
		list = append(list, pl.soft[i].Selector)
	}
	own := pl.example.Class
	for _, terms := range [][]cluster.Term{own.RequiredAffinity, own.RequiredAntiAffinity} {
		for i := range terms {
			list = append(list, terms[i].Selector)
		}
	}
	for _, terms := range [][]cluster.WeightedTerm{own.PreferredAffinity, own.PreferredAntiAffinity} {
		for i := range terms {
			list = append(list, terms[i].Selector)
		}
	}
	return list
}
