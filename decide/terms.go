package decide

import (
	"slices"

	"github.com/berth-k8s/berth/cluster"
	"github.com/berth-k8s/berth/plugins"
)

// terms knows the classes of placed pods that have pod affinity or anti-affinity, since these may reject or draw any waiting
// pod. Classes are added when their first pod is placed.
type terms struct {
	classes map[int32]*cluster.PodClass
	order   []*cluster.PodClass
	version int
}

func (t *terms) add(class *cluster.PodClass) {
	if !class.HasAffinity() {
		return
	}
	if _, known := t.classes[class.ID]; known {
		return
	}
	t.classes[class.ID] = class
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
