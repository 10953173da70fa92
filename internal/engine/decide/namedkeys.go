package decide

import (
	"iter"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// namedKeys are the keys of labels of pods that selectors have named so far. Whoever searches for
// looks names the keys of its selectors first; whoever reads the labels of a look's class, reads
// those only.
//
// A key that is new divides looks, for which all pods are counted anew: also where no pod has a
// label with it, since the class of a look may have one whose pods are gone. So once there are
// mostNamed, all keys count as named.
type namedKeys struct {
	keys []string // sorted
	all  bool
}

// mostNamed is how many keys may be named, one after the other, before all are. Each costs a look
// at every pod.
const mostNamed = 64

// lookOf returns the look of a class, which is that of all classes whose labels with named keys are
// the same.
func (n *namedKeys) lookOf(class *cluster.PodClass) [2]uint64 {
	if n.all {
		return class.Look
	}
	return class.LookBy(n.keys)
}

// labelsOf yields the labels of a class that have named keys.
func (n *namedKeys) labelsOf(class *cluster.PodClass) iter.Seq2[string, string] {
	if n.all {
		return class.Labels.All()
	}
	return class.LabelsWith(n.keys)
}

// add names the keys of a selector, and reports whether one is new.
func (n *namedKeys) add(selector *rules.Selector) (news bool) {
	if n.all {
		return false
	}
	requirements, _ := selector.Requirements()
	for i := range requirements {
		at, known := slices.BinarySearch(n.keys, requirements[i].Key)
		if known {
			continue
		}
		news = true
		if len(n.keys) == mostNamed {
			n.keys, n.all = nil, true
			break
		}
		n.keys = slices.Insert(n.keys, at, requirements[i].Key)
	}
	return news
}

// nameKeys names the keys of selectors, before looks are searched for that they match.
func (ix *index) nameKeys(selectors ...*rules.Selector) {
	news := false
	for _, selector := range selectors {
		if ix.placed.named.add(selector) {
			news = true
		}
	}
	if news {
		ix.countPlaced()
	}
}

// countPlaced counts all placed pods anew.
func (ix *index) countPlaced() {
	ix.placed = placed{named: ix.placed.named, round: ix.placed.round}
	for _, n := range ix.c.Nodes {
		if n == nil {
			continue
		}
		ix.meter.Looked += len(n.Pods)
		for _, p := range n.Pods {
			ix.placed.countPod(p.Class, n.Index, p.Terminating, 1)
		}
	}
}
