package decide

import (
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/berth-k8s/berth/cluster"
	"github.com/berth-k8s/berth/plugins"
)

// terms knows the pod affinity and anti-affinity of placed pods, and of those nominated to nodes that are known, since these may
// reject or draw any waiting pod. Of classes that have the same, one is known.
type terms struct {
	known map[[2]uint64]*termUsers
	order []*termUsers // all that are known, by age
	// unused counts those that no pod has any more. They are kept for a while, since a pod that leaves often comes again: dropping
	// them makes every plan anew.
	unused  int
	version int // grows when terms are added or dropped
}

// termUsers are the pods with the same affinity.
type termUsers struct {
	class *cluster.PodClass // one of theirs
	pods  int
}

// fewUnused terms are not worth the trouble of dropping.
const fewUnused = 64

func (t *terms) add(class *cluster.PodClass) {
	if !class.HasAffinity() {
		return
	}
	users := t.known[class.Affinities]
	switch {
	case users == nil:
		users = &termUsers{class: class}
		t.known[class.Affinities] = users
		t.order = append(t.order, users)
		t.version++
	case users.pods == 0:
		t.unused--
	}
	users.pods++
}

// remove is for a pod that was added. Terms without pods go when they have become the greater part.
func (t *terms) remove(class *cluster.PodClass) {
	if !class.HasAffinity() {
		return
	}
	users := t.known[class.Affinities]
	if users.pods--; users.pods > 0 {
		return
	}
	if t.unused++; t.unused > fewUnused+len(t.order)/2 {
		t.dropUnused()
	}
}

func (t *terms) dropUnused() {
	gone := func(users *termUsers) bool { return users.pods == 0 }
	t.order = slices.DeleteFunc(t.order, gone)
	maps.DeleteFunc(t.known, func(_ [2]uint64, users *termUsers) bool { return gone(users) })
	t.unused = 0
	t.version++
}

// clear forgets all pods, to be counted anew.
func (t *terms) clear() {
	*t = terms{known: map[[2]uint64]*termUsers{}, version: t.version + 1}
}

// repelling lists the topology keys by which any of the classes may repel the waiting pod.
func (t *terms) repelling(a *plugins.Affinities) (keys []string) {
	for _, users := range t.order {
		for _, key := range a.RepelledBy(users.class) {
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
	for _, users := range t.order {
		for _, vote := range a.Votes(users.class, hardWeight) {
			if !slices.Contains(keys, vote.Key) {
				keys = append(keys, vote.Key)
			}
		}
	}
	slices.Sort(keys)
	return keys
}

// describe writes down what all classes have to say of the waiting pod: the same for terms that went and came again.
// Keys that no node has are left out.
func (t *terms) describe(w io.Writer, a *plugins.Affinities, hardWeight int32, keys *labelKeys) {
	var lines []string
	for _, users := range t.order {
		repelled := slices.DeleteFunc(a.RepelledBy(users.class), func(key string) bool { return !keys.has(key) })
		votes := slices.DeleteFunc(a.Votes(users.class, hardWeight), func(v plugins.Vote) bool { return !keys.has(v.Key) })
		if len(repelled)+len(votes) > 0 {
			lines = append(lines, fmt.Sprintln(users.class.Affinities, repelled, votes))
		}
	}
	slices.Sort(lines)
	for _, line := range lines {
		io.WriteString(w, line)
	}
}
