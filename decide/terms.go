package decide

import (
	"fmt"
	"io"
	"slices"

	"github.com/berth-k8s/berth/cluster"
	"github.com/berth-k8s/berth/plugins"
)

// terms knows the pod affinity and anti-affinity of placed pods, since these may reject or draw any waiting pod. Of classes that
// have the same, one is known. They are added when their first pod is placed, and stay.
type terms struct {
	known   map[[2]uint64]bool
	order   []*cluster.PodClass
	version int
}

func (t *terms) add(class *cluster.PodClass) {
	if !class.HasAffinity() || t.known[class.Affinities] {
		return
	}
	t.known[class.Affinities] = true
	t.order = append(t.order, class)
	t.version++
}

// repelling lists the topology keys by which any of the classes may repel the waiting pod.
func (t *terms) repelling(a *plugins.Affinities) (keys []string) {
	for _, class := range t.order {
		for _, key := range a.RepelledBy(class) {
			if !slices.Contains(keys, key) {
				keys = append(keys, key)
			}
		}
	}
	slices.Sort(keys)
	return keys
}

// voting lists the topology keys by which any of the classes may vote for the waiting pod's node, for their own reasons.
func (t *terms) voting(a *plugins.Affinities, hardWeight int32) (keys []string) {
	for _, class := range t.order {
		for _, vote := range a.Votes(class, hardWeight) {
			if !slices.Contains(keys, vote.Key) {
				keys = append(keys, vote.Key)
			}
		}
	}
	slices.Sort(keys)
	return keys
}

// describe writes down what all classes have to say of the waiting pod.
func (t *terms) describe(w io.Writer, a *plugins.Affinities, hardWeight int32) {
	for i, class := range t.order {
		repelled, votes := a.RepelledBy(class), a.Votes(class, hardWeight)
		if len(repelled)+len(votes) > 0 {
			fmt.Fprintln(w, i, repelled, votes)
		}
	}
}
