// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"encoding/binary"
	"hash/maphash"
	"iter"
	"math/bits"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// terms holds the pod affinity and anti-affinity of pods placed on or nominated to a node, since
// these may repel or attract any pending pod. It keeps one class for each distinct affinity.
//
// Nearly all terms require a certain label. They are indexed by that label, so a pending pod is
// compared only with the few terms that may match it, and adding or removing a term affects only
// the plans of such pods.
//
// A termUsers without pods is kept for a while. A plan that still includes its terms is correct,
// since no pod counts for them. Therefore version must grow when a pod with new terms is added, but
// not when the last pod with some terms is removed.
type terms struct {
	known cluster.Set[termUsers] // by PodClass.Affinities
	// byLabel holds the first termUsers listed under each label, by a hash of the label;
	// alsoByLabel holds all further ones. A selector may list hundreds of thousands of values, each
	// with its own entry.
	byLabel     cluster.Set[termUsers]
	alsoByLabel map[uint32][]*termUsers
	most        int          // largest size of alsoByLabel; see cluster.Shrunk
	others      []*termUsers // terms that may match pods with any labels
	changed     int          // version at the last addition to or removal from others
	// unused counts the termUsers without pods. They are kept for a while, since pods with the same
	// terms often recur, and dropping terms invalidates plans. bulk is the total size of the unused
	// terms.
	unused int
	bulk   int
	// selective is the number of termUsers with a term that selects namespaces by their labels.
	selective int
	version   int    // grows when terms are added or dropped
	round     uint64 // counts searches; see termUsers.found
	cached    effectCache
}

var labelSeed = maphash.MakeSeed()

// shortHashOf returns a hash of a label. A collision costs time but does not affect results.
func shortHashOf(key, value string) uint32 {
	return cluster.ShortHash(bits.RotateLeft64(maphash.String(labelSeed, key), 1) ^ maphash.String(labelSeed, value))
}

// termUsers represents the pods with the same affinity. It is kept for a while after the last such
// pod is removed.
type termUsers struct {
	class   *cluster.PodClass // class of one of the pods, or a copy of its terms
	version int               // version of all terms when the users were added
	found   uint64            // number of the last search that found the users
	labels  *termLabels       // nil until needed
	pods    int32
	size    int32 // number of terms
	values  int32 // number of values listed by the terms
}

// All unused terms are dropped when their number exceeds fewUnused plus an eighth of all terms, or
// when their size exceeds bulkUnused. bulkUnused is low because a listed value with its cached data
// takes far more memory than its text.
const fewUnused, bulkUnused = 64, cluster.MostBulk / 8

func newTerms(version int) terms {
	return terms{alsoByLabel: map[uint32][]*termUsers{}, changed: version, version: version}
}

// addPod counts a placed pod. Only pods with new terms change version: decisions derived from the
// terms stay valid while pods with known terms are added and removed.
func (t *terms) addPod(class *cluster.PodClass) {
	if !class.HasAffinity() {
		return
	}
	users := t.at(class.Affinities)
	switch {
	case users == nil:
		t.version++
		users = &termUsers{class: termsOf(class), version: t.version}
		users.size, users.values = sizeOf(class)
		t.known.Add(cluster.ShortHash(class.Affinities[0]), users)
		t.selective += int(asBit(class.SelectsNamespaces))
		t.listUsers(users)
	case users.pods == 0:
		t.unused--
		t.bulk -= users.class.Bulk
	}

	users.pods++
}

// at returns the users of the terms with the given digest, or nil.
func (t *terms) at(affinities [2]uint64) *termUsers {
	return t.known.Find(cluster.ShortHash(affinities[0]), func(users *termUsers) bool { return users.class.Affinities == affinities })
}

// termsOf returns the class, or only a copy of its terms if the class is large. Pods of other
// classes with the same terms may outlive the pods of this class, and should not keep all of it in
// memory.
func termsOf(class *cluster.PodClass) *cluster.PodClass {
	if class.Bulk == 0 {
		return class
	}
	return class.OfTerms()
}

// listUsers lists the users of new terms by the labels of the pods that may match.
func (t *terms) listUsers(users *termUsers) {
	for term := range users.countTerms() {
		t.listBy(users, users.selectorOf(term))
	}
	t.shrink()
}

// shrink releases the memory of a map that has become small; see cluster.Shrunk.
func (t *terms) shrink() { t.alsoByLabel = cluster.Shrunk(t.alsoByLabel, &t.most) }

// listBy lists users under the labels returned by cluster.RequiredLabels, since a matching pod has
// one of these labels, or in t.others if the selector requires no label. byLabel holds the first
// users of a label directly, not in a slice: most labels have only one entry, and a slice per label
// would take more memory than all other fields of terms.
func (t *terms) listBy(users *termUsers, selector *rules.Selector) {
	labels, everybody := cluster.RequiredLabels(selector)
	if everybody {
		t.changed = t.version
		t.others = withLast(t.others, users)
	}
	for _, at := range labels {
		hash := shortHashOf(at.Key, at.Value)
		switch first := t.byLabel.First(hash); first {
		case users:
		case nil:
			t.byLabel.Add(hash, users)
		default:
			t.alsoByLabel[hash] = withLast(t.alsoByLabel[hash], users)
		}
	}
}

// withLast appends new users, unless they are already last.
func withLast(list []*termUsers, users *termUsers) []*termUsers {
	if last := len(list) - 1; last >= 0 && list[last] == users {
		return list
	}
	return append(list, users)
}

// removePod removes a pod added before. Users without pods are dropped when there are many.
func (t *terms) removePod(class *cluster.PodClass) {
	if !class.HasAffinity() {
		return
	}
	users := t.at(class.Affinities)
	if users.pods--; users.pods > 0 {
		return
	}
	t.unused++
	t.bulk += users.class.Bulk
	if t.unused > fewUnused+t.known.Len()/8 || t.bulk > bulkUnused {
		t.dropUnused()
	}
}

// dropUnused drops all users without pods together, because each drop changes version and
// invalidates everything derived from the terms. It also drops the cached effects, which may refer
// to such users.
func (t *terms) dropUnused() {
	t.version++
	gone := func(users *termUsers) bool { return users.pods == 0 }
	before := len(t.others)
	if t.others = slices.DeleteFunc(t.others, gone); len(t.others) < before {
		t.changed = t.version
	}

	for users := range t.known.All {
		if !gone(users) {
			continue
		}
		t.selective -= int(asBit(users.class.SelectsNamespaces))
		for term := range users.countTerms() {
			labels, _ := cluster.RequiredLabels(users.selectorOf(term))
			for _, at := range labels {
				t.unlistUsers(shortHashOf(at.Key, at.Value), gone)
			}
		}
	}

	t.shrink()
	t.known.DeleteFunc(gone)
	t.unused, t.bulk, t.cached = 0, 0, effectCache{}
}

// unlistUsers removes dropped users from the entries of a label.
func (t *terms) unlistUsers(hash uint32, gone func(*termUsers) bool) {
	also, several := t.alsoByLabel[hash]
	if several {
		if also = slices.DeleteFunc(also, gone); len(also) > 0 {
			t.alsoByLabel[hash] = also
		} else {
			delete(t.alsoByLabel, hash)
		}
	}
	t.byLabel.Remove(hash, gone)
}

// versionFor returns a version that changes whenever a term is added that may match pods with these
// labels. Dropping a term may leave the version unchanged: no pod has the term any longer, so plans
// that still include it are correct.
func (t *terms) versionFor(own *rules.Labels) int {
	version := t.changed
	for _, label := range own.List() {
		for users := range t.listed(label.Key, label.Value) {
			version = max(version, users.version)
		}
	}
	return version
}

// listed yields the users of terms listed under a label.
func (t *terms) listed(key, value string) iter.Seq[*termUsers] {
	return func(yield func(*termUsers) bool) {
		hash := shortHashOf(key, value)
		if first := t.byLabel.First(hash); first != nil && !yield(first) {
			return
		}
		for _, users := range t.alsoByLabel[hash] {
			if !yield(users) {
				return
			}
		}
	}
}

// usersFor lists the users of the terms that may match pods with these labels, without duplicates.
func (t *terms) usersFor(own *rules.Labels) []*termUsers {
	found := slices.Clone(t.others)
	t.round++
	for _, users := range found {
		users.found = t.round
	}
	for _, label := range own.List() {
		for users := range t.listed(label.Key, label.Value) {
			if users.found != t.round {
				users.found = t.round
				found = append(found, users)
			}
		}
	}
	return found
}

// termEffects is the effect of other pods' terms on a pending pod.
type termEffects struct {
	byAffinity []affinityEffects // sorted by affinities
}

// affinityEffects is the effect of the terms of pods with the same affinity.
type affinityEffects struct {
	affinities [2]uint64
	repelled   []string       // topology keys, without duplicates
	votes      []plugins.Vote // at most one per key
}

// effectsOf returns the effect of the terms of pods with the given affinities.
func (s *termEffects) effectsOf(affinities [2]uint64) (effects affinityEffects) {
	i, says := slices.BinarySearchFunc(s.byAffinity, affinities,
		func(effects affinityEffects, at [2]uint64) int { return slices.Compare(effects.affinities[:], at[:]) })
	if says {
		effects = s.byAffinity[i]
	}
	return effects
}

// byKey adds up the votes for each key.
func byKey(votes []plugins.Vote) []plugins.Vote {
	sums := votes[:0]
	for _, v := range votes {
		if i := slices.IndexFunc(sums, func(o plugins.Vote) bool { return o.Key == v.Key }); i >= 0 {
			sums[i].Weight += v.Weight
		} else {
			sums = append(sums, v)
		}
	}
	return sums
}

// describeTerms encodes the effects, except for the effects of pods with the given affinities. The
// encoding is the same after terms are removed and added again.
func (s *termEffects) describeTerms(but [2]uint64) []byte {
	const usual = 256 // bytes per entry
	to := make([]byte, 0, usual*len(s.byAffinity))
	number := func(n int) { to = binary.NativeEndian.AppendUint64(to, uint64(n)) }
	text := func(s string) { number(len(s)); to = append(to, s...) }
	for i := range s.byAffinity {
		effects := &s.byAffinity[i]
		if effects.affinities == but {
			continue
		}

		to = binary.NativeEndian.AppendUint64(binary.NativeEndian.AppendUint64(to, effects.affinities[0]), effects.affinities[1])
		number(len(effects.repelled))
		for _, key := range effects.repelled {
			text(key)
		}
		number(len(effects.votes))
		for _, v := range effects.votes {
			text(v.Key)
			number(int(v.Weight))
		}
	}
	return to
}

func asBit(set bool) uint32 {
	if set {
		return 1
	}
	return 0
}
