// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"cmp"
	"encoding/binary"
	"maps"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// The effects of a termUsers with Limits.ManyTerms terms or more are cached. If its terms list more
// than valuesOfTerm values on average, they are evaluated each time, since indexing the values
// would take longer. mostEffects bounds the entries of each map of the cache, and effectsSize
// bounds the bytes of the whole cache, because the labels of a class are limited only by the size
// of an API object.
const valuesOfTerm, mostEffects, effectsSize = 4, 1 << 12, 8 << 20

// effectCache caches the effects of users' terms on classes. The cache is valid while its versions
// are unchanged and no users have been dropped.
//
// An entry only applies to classes that the terms cannot distinguish: describeClass writes
// everything about a class that is visible to the selectors of the terms.
type effectCache struct {
	// known holds the effects on classes, by the properties visible to the terms. usual holds the
	// effects on classes with label values that no term lists. For any other class, only the terms
	// that list one of its values can have a different effect.
	known map[effectKey]affinityEffects
	usual map[effectKey]*termSum
	size  int // total size in bytes

	namespaces uint64
	keys       int
}

// effectKey identifies classes by their properties visible to the users' terms; see
// termLabels.describeClass.
type effectKey struct {
	users      *termUsers
	properties string
}

// termSum adds up the effects of terms.
type termSum struct {
	repelled map[string]int   // number of terms by topology key
	votes    map[string]int64 // sum of weights by topology key
}

// sizeOfEntry estimates the bytes of a cache entry without its key, and sizeOfTopologyKey estimates
// the bytes of each topology key in the entry.
const sizeOfEntry, sizeOfTopologyKey = 256, 64

// termLabels indexes the labels named by the selectors of terms. Pod selectors only check whether a
// label is present and whether its value is in a list.
type termLabels struct {
	keys  []string
	byKey map[string]int // index in keys
	// numbers assigns a number, starting at 1, to each value listed by a requirement; it is indexed
	// by the position of the label key in keys. Values listed by the same requirements share a
	// number. lists holds the terms that list these values, by number.
	numbers []map[string]int32
	lists   [][]int32
}

// noValue is not a valid label value, so no selector lists it.
const noValue = "\x00"

// termEffects returns the effects of the users' terms on a class with affinities a. It omits
// topology keys that no node has. The result is shared: do not modify it.
func (ix *index) termEffects(users *termUsers, own *cluster.PodClass, a *plugins.Affinities) affinityEffects {
	if int(users.size) < ix.limits.ManyTerms || users.values > valuesOfTerm*users.size {
		return ix.askTerms(users, a)
	}
	s := &ix.terms.cached
	if s.known == nil || s.namespaces != ix.c.Namespaces.Version || s.keys != ix.keys.version {
		*s = effectCache{known: map[effectKey]affinityEffects{}, usual: map[effectKey]*termSum{}, namespaces: ix.c.Namespaces.Version, keys: ix.keys.version}
	}

	if users.labels == nil {
		users.labels = readTermLabels(users)
	}
	ix.scratch = users.labels.describeClass(ix.scratch[:0], own, true)
	effects, known := s.known[effectKey{users, string(ix.scratch)}]
	if known {
		return effects
	}

	about := string(ix.scratch)
	effects = ix.askUnusual(users, own, a)
	s.makeRoom(len(s.known), len(about)+sizeOfTopologyKey*(len(effects.repelled)+len(effects.votes)))
	s.known[effectKey{users, about}] = effects
	return effects
}

// makeRoom clears the cache if it has no room for another entry of the given size; have is the
// current number of entries in the map of the new entry.
func (s *effectCache) makeRoom(have, size int) {
	size += sizeOfEntry
	if s.size += size; have >= mostEffects || s.size > effectsSize {
		s.known, s.usual, s.size = map[effectKey]affinityEffects{}, map[effectKey]*termSum{}, size
	}
}

// askUnusual returns the effects on a class: the effects on a usual class with the same label keys,
// corrected for the terms that list values of the class.
func (ix *index) askUnusual(users *termUsers, own *cluster.PodClass, a *plugins.Affinities) affinityEffects {
	s := &ix.terms.cached
	ix.scratch = users.labels.describeClass(ix.scratch[:0], own, false)
	usual, known := s.usual[effectKey{users, string(ix.scratch)}]
	if !known {
		usual = ix.askUsual(users, own)
		s.makeRoom(len(s.usual), len(ix.scratch)+sizeOfTopologyKey*(len(usual.repelled)+len(usual.votes)))
		s.usual[effectKey{users, string(ix.scratch)}] = usual
	}

	mine := termSum{repelled: maps.Clone(usual.repelled), votes: maps.Clone(usual.votes)}
	if listing := users.labels.listingTerms(own); len(listing) > 0 {
		like := ix.unlistedLike(users, own)
		for _, term := range listing {
			ix.addTerm(&mine, users, int(term), like, -1)
			ix.addTerm(&mine, users, int(term), a, 1)
		}
	}

	return mine.effectsOf(users)
}

// askTerms matches a class against each of the users' terms.
func (ix *index) askTerms(users *termUsers, a *plugins.Affinities) affinityEffects {
	repelled := slices.DeleteFunc(a.RepelledBy(users.class), func(key string) bool { return !ix.keys.hasKey(key) })
	slices.Sort(repelled)
	votes := byKey(slices.DeleteFunc(a.VotesOf(users.class, ix.hardWeight), func(v plugins.Vote) bool { return !ix.keys.hasKey(v.Key) }))
	votes = slices.DeleteFunc(votes, func(v plugins.Vote) bool { return v.Weight == 0 })
	slices.SortFunc(votes, func(a, b plugins.Vote) int { return cmp.Compare(a.Key, b.Key) })
	// Thousands of terms may share a few keys. The results are cached, so clone them to their
	// actual size.
	return affinityEffects{users.class.Affinities, slices.Clone(slices.Compact(repelled)), slices.Clone(votes)}
}

// askUsual adds up the effects of the users' terms on a class that has the same label keys as the
// given class, but only values that no term lists.
func (ix *index) askUsual(users *termUsers, own *cluster.PodClass) *termSum {
	sum, like := &termSum{repelled: map[string]int{}, votes: map[string]int64{}}, ix.unlistedLike(users, own)
	for term := range users.countTerms() {
		ix.addTerm(sum, users, term, like, 1)
	}
	return sum
}

// unlistedLike returns the affinities of a class with the label keys of the given class that are
// named by the terms, and with values that no term lists.
func (ix *index) unlistedLike(users *termUsers, own *cluster.PodClass) *plugins.Affinities {
	set := map[string]string{}
	for key := range own.Labels.All() {
		if _, named := users.labels.byKey[key]; named {
			set[key] = noValue
		}
	}
	return plugins.NewAffinities(ix.c, &cluster.PodClass{
		Namespace: own.Namespace, Labels: rules.NewLabels(set, nil),
		Terms: cluster.TermsOf(cluster.RequiredTerms{}, cluster.PreferredTerms{}),
	})
}

// addTerm adds the effect of one of the users' terms on the class with these affinities, multiplied
// by times.
func (ix *index) addTerm(s *termSum, users *termUsers, term int, a *plugins.Affinities, times int) {
	alone := users.classOfTerm(term)
	for _, key := range a.RepelledBy(&alone) {
		if ix.keys.hasKey(key) {
			s.repelled[key] += times
		}
	}
	for _, v := range a.VotesOf(&alone, ix.hardWeight) {
		if ix.keys.hasKey(v.Key) {
			s.votes[v.Key] += int64(times) * v.Weight
		}
	}
}

// effectsOf converts the sum to the result type of askTerms.
func (s *termSum) effectsOf(users *termUsers) affinityEffects {
	effects := affinityEffects{affinities: users.class.Affinities}
	for key, terms := range s.repelled {
		if terms > 0 {
			effects.repelled = append(effects.repelled, key)
		}
	}
	slices.Sort(effects.repelled)
	for key, weight := range s.votes {
		if weight != 0 {
			effects.votes = append(effects.votes, plugins.Vote{Key: key, Weight: weight})
		}
	}
	slices.SortFunc(effects.votes, func(a, b plugins.Vote) int { return cmp.Compare(a.Key, b.Key) })
	return effects
}

// countTerms counts the users' terms.
func (u *termUsers) countTerms() int {
	c := u.class
	return len(c.RequiredAffinity) + len(c.RequiredAntiAffinity) + len(c.PreferredAffinity) + len(c.PreferredAntiAffinity)
}

// classOfTerm returns a copy of the users' class that has only the term with the given number.
func (u *termUsers) classOfTerm(term int) cluster.PodClass {
	c := u.class
	var required cluster.RequiredTerms
	var preferred cluster.PreferredTerms
	oneOf(c.RequiredAffinity, &required.RequiredAffinity, &term)
	oneOf(c.RequiredAntiAffinity, &required.RequiredAntiAffinity, &term)
	oneOf(c.PreferredAffinity, &preferred.PreferredAffinity, &term)
	oneOf(c.PreferredAntiAffinity, &preferred.PreferredAntiAffinity, &term)
	return cluster.PodClass{Namespace: c.Namespace, Terms: cluster.TermsOf(required, preferred)}
}

// oneOf copies the term with the given number if the list contains it. Otherwise it subtracts the
// length of the list from the number.
func oneOf[T any](list []T, to *[]T, term *int) {
	if *term >= 0 && *term < len(list) {
		*to = list[*term : *term+1]
	}
	*term -= len(list)
}

// selectorOf returns the selector of a term, by number.
func (u *termUsers) selectorOf(term int) *rules.Selector {
	alone := u.classOfTerm(term)
	for _, list := range [...][]cluster.Term{alone.RequiredAffinity, alone.RequiredAntiAffinity} {
		if len(list) > 0 {
			return list[0].Selector
		}
	}
	return append(alone.PreferredAffinity, alone.PreferredAntiAffinity...)[0].Selector
}

// sizeOf counts the terms of a class and the values listed by these terms.
func sizeOf(class *cluster.PodClass) (terms, values int32) {
	for _, selector := range termSelectors(class) {
		terms++
		requirements, _ := selector.Requirements()
		for i := range requirements {
			values += int32(len(requirements[i].Values))
		}
	}
	return terms, values
}

// readTermLabels reads the selectors of the users' terms.
func readTermLabels(users *termUsers) *termLabels {
	m := &termLabels{byKey: map[string]int{}}
	next := int32(1)
	for term := range users.countTerms() {
		requirements, _ := users.selectorOf(term).Requirements()
		for i := range requirements {
			next = m.numberValues(&requirements[i], next)
		}
	}
	m.lists = make([][]int32, next)
	for term := range users.countTerms() {
		requirements, _ := users.selectorOf(term).Requirements()
		for i := range requirements {
			m.listTerm(int32(term), &requirements[i])
		}
	}
	return m
}

// numberValues renumbers the values listed by a requirement, starting at next: values that shared a
// number still share one. It returns the next free number.
func (m *termLabels) numberValues(r *rules.Requirement, next int32) int32 {
	key := r.Key
	at, known := m.byKey[key]
	if !known {
		at = len(m.keys)
		m.byKey[key] = at
		m.keys, m.numbers = append(m.keys, key), append(m.numbers, nil)
	}

	values := r.Values
	if m.numbers[at] == nil && len(values) > 0 {
		m.numbers[at] = make(map[string]int32, len(values))
	}

	instead := map[int32]int32{}
	for _, value := range values {
		number, known := instead[m.numbers[at][value]]
		if !known {
			number = next
			next++
			instead[m.numbers[at][value]] = number
		}
		m.numbers[at][value] = number
	}

	return next
}

// listTerm records that a term lists the values of a requirement.
func (m *termLabels) listTerm(term int32, r *rules.Requirement) {
	numbers := m.numbers[m.byKey[r.Key]]
	for _, value := range r.Values {
		list := &m.lists[numbers[value]]
		if last := len(*list) - 1; last < 0 || (*list)[last] != term {
			*list = append(*list, term)
		}
	}
}

// describeClass writes the properties of a class visible to the terms: its namespace, the indices
// of its labels named by the terms, and, if values is set, the numbers of their values.
func (m *termLabels) describeClass(to []byte, own *cluster.PodClass, values bool) []byte {
	to = append(binary.AppendUvarint(to, uint64(len(own.Namespace))), own.Namespace...)
	add := func(i int, value string) {
		if to = binary.AppendUvarint(to, uint64(i)); values {
			to = binary.AppendUvarint(to, uint64(m.numbers[i][value]))
		}
	}

	if len(m.keys) <= own.Labels.Len() {
		for i, key := range m.keys {
			if value, has := own.Labels.Lookup(key); has {
				add(i, value)
			}
		}
		return to
	}

	var few [16]int
	named := few[:0]
	for key := range own.Labels.All() {
		if i, is := m.byKey[key]; is {
			named = append(named, i)
		}
	}

	slices.Sort(named)
	for _, i := range named {
		add(i, own.Labels.Get(m.keys[i]))
	}
	return to
}

// listingTerms returns the terms that list values of the class's labels, without duplicates.
func (m *termLabels) listingTerms(own *cluster.PodClass) (terms []int32) {
	for key, value := range own.Labels.All() {
		if i, is := m.byKey[key]; is {
			terms = append(terms, m.lists[m.numbers[i][value]]...)
		}
	}
	slices.Sort(terms)
	return slices.Compact(terms)
}
