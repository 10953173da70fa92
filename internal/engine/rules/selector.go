// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"cmp"
	"hash/maphash"
	"iter"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// Selector is a parsed label selector. It is equivalent to a labels.Selector, but the cost of
// matching is proportional to the number of labels or of requirements, whichever is smaller, and
// independent of the number of listed values. An API object has room for 150,000 values, and the
// deciding goroutine matches the selectors of every tenant. A Selector is immutable, and safe for
// concurrent use.
type Selector struct {
	// requirements, if many, are sorted by key, with at most one per key and operator.
	requirements []Requirement
	needed       int32 // number of keys that labels must have, for many requirements; else -1
	nothing      bool  // whether the selector matches nothing
}

// oneLabel holds a selector of one label in one allocation, because a cluster has as many such
// selectors as workloads.
type oneLabel struct {
	Selector
	requirement [1]Requirement
	value       [1]string
}

// Up to fewRequirements requirements are checked one by one.
const fewRequirements = 8

// Everything returns the selector without requirements, which matches all labels.
func Everything() *Selector { return newSelector(nil) }

// Nothing returns the selector that matches no labels. This is the meaning of a missing selector;
// an empty selector matches everything.
func Nothing() *Selector { return nothing }

var nothing = &Selector{nothing: true} // shared, since selectors are immutable

// ReadSelector reads a selector like metav1.LabelSelectorAsSelector, with its errors. nil selects
// nothing, and an empty selector selects everything. Lists of values are not copied, and must not
// change.
func ReadSelector(s *metav1.LabelSelector) (*Selector, error) {
	if s == nil {
		return Nothing(), nil
	}
	if len(s.MatchLabels) == 1 && len(s.MatchExpressions) == 0 {
		return readLabel(s.MatchLabels)
	}
	requirements := make([]Requirement, 0, len(s.MatchLabels)+len(s.MatchExpressions))
	for key, value := range s.MatchLabels {
		if err := CheckRequirement(key, selection.Equals, []string{value}); err != nil {
			return nil, err
		}
		requirements = append(requirements, NewRequirement(key, selection.In, []string{value}))
	}

	for i := range s.MatchExpressions {
		e := &s.MatchExpressions[i]
		// Get the error from the library, which reports the same error for this expression as for
		// the whole selector.
		operator, known := operators[e.Operator]
		if !known {
			_, err := metav1.LabelSelectorAsSelector(&metav1.LabelSelector{MatchExpressions: s.MatchExpressions[i : i+1]})
			return nil, err
		}
		if err := CheckRequirement(e.Key, operator, e.Values); err != nil {
			return nil, err
		}
		requirements = append(requirements, NewRequirement(e.Key, operator, e.Values))
	}

	return newSelector(requirements), nil
}

// readLabel reads a selector of one label.
func readLabel(set map[string]string) (*Selector, error) {
	s := &oneLabel{}
	for key, value := range set {
		s.value[0] = value
		if err := CheckRequirement(key, selection.Equals, s.value[:]); err != nil {
			return nil, err
		}
		s.requirement[0] = NewRequirement(key, selection.In, s.value[:])
	}
	s.requirements, s.needed = s.requirement[:], -1
	return &s.Selector, nil
}

// operators maps the API's operators to the library's.
var operators = map[metav1.LabelSelectorOperator]selection.Operator{
	metav1.LabelSelectorOpIn:           selection.In,
	metav1.LabelSelectorOpNotIn:        selection.NotIn,
	metav1.LabelSelectorOpExists:       selection.Exists,
	metav1.LabelSelectorOpDoesNotExist: selection.DoesNotExist,
}

// SelectorOf returns the selector of all objects with these labels; without labels it matches
// everything. The API server has validated the labels.
func SelectorOf(set labels.Set) *Selector {
	requirements := make([]Requirement, 0, len(set))
	for key, value := range set {
		requirements = append(requirements, NewRequirement(key, selection.In, []string{value}))
	}
	return newSelector(requirements)
}

// newSelector makes a selector that matches if all requirements are met. It may sort and overwrite
// the slice. It sorts many requirements, and merges requirements with the same key and operator, so
// that matchesFew can find them by key.
func newSelector(requirements []Requirement) *Selector {
	s := &Selector{requirements: requirements, needed: -1}
	if len(requirements) <= fewRequirements {
		return s
	}

	s.requirements, s.needed = MergeRequirements(requirements), 0
	for i := range s.requirements {
		// A key counts once in needed, even if several of its requirements need a label.
		if r := &s.requirements[i]; r.needsLabel() &&
			!(i > 0 && s.requirements[i-1].Key == r.Key && s.requirements[i-1].needsLabel()) {
			s.needed++
		}
	}
	return s
}

// With returns the selector narrowed by the requirements of other. It modifies neither selector.
func (s *Selector) With(other *Selector) *Selector {
	if s.nothing || other.nothing {
		return Nothing()
	}
	return newSelector(slices.Concat(s.requirements, other.requirements))
}

// Requirements returns the requirements on labels. selects is false for a selector that matches
// nothing. The list belongs to the selector.
func (s *Selector) Requirements() (list []Requirement, selects bool) {
	return s.requirements, !s.nothing
}

// ShareTexts interns the strings of a new selector without expressions. It replaces keys by the
// results of text, and values by the equal values of the given labels.
func (s *Selector) ShareTexts(own *Labels, text func(string) string) {
	for i := range s.requirements {
		r := &s.requirements[i]
		r.Key = text(r.Key)
		if value, has := own.Lookup(r.Key); has && len(r.Values) == 1 && r.Values[0] == value {
			r.Values[0] = value
		}
	}
}

// OfLabels returns the API's form of a selector without expressions; nil if the selector matches
// nothing.
func (s *Selector) OfLabels() *metav1.LabelSelector {
	if s.nothing {
		return nil
	}
	selector := &metav1.LabelSelector{}
	if len(s.requirements) > 0 {
		selector.MatchLabels = make(map[string]string, len(s.requirements))
	}
	for i := range s.requirements {
		selector.MatchLabels[s.requirements[i].Key] = s.requirements[i].Values[0]
	}
	return selector
}

// Empty reports whether the selector matches everything.
func (s *Selector) Empty() bool { return !s.nothing && len(s.requirements) == 0 }

// Matches reports whether the labels meet all requirements. Only for *Labels and labels.Set, the
// cost is also bounded by the number of labels. Other types, such as nodes, need not be converted
// to a set.
func (s *Selector) Matches(l labels.Labels) bool {
	if s.nothing {
		return false
	}
	// Only these two types can be iterated. With more labels than requirements, the loop below is
	// shorter.
	if s.needed >= 0 {
		switch set := l.(type) {
		case *Labels:
			if set.Len() < len(s.requirements) {
				return s.matchesFew(set.Len(), set.All())
			}
		case labels.Set:
			if len(set) < len(s.requirements) {
				return s.matchesFew(len(set), maps.All(set))
			}
		}
	}
	for i := range s.requirements {
		if r := &s.requirements[i]; !r.MeetsValue(l.Lookup(r.Key)) {
			return false
		}
	}
	return true
}

// Looks returns the approximate number of requirements or labels visited by Matches, which may be
// thousands.
func (s *Selector) Looks(set *Labels) int { return 1 + min(len(s.requirements), set.Len()) }

// matchesFew iterates over the labels rather than the requirements. The labels must meet all
// requirements on their own keys; a requirement on any other key is met unless it needs a label. So
// the number of needed keys among the labels must equal needed.
func (s *Selector) matchesFew(count int, all iter.Seq2[string, string]) bool {
	if count < int(s.needed) {
		return false
	}
	found := int32(0)
	for key, value := range all {
		of := s.requirementsOn(key)
		if slices.ContainsFunc(of, func(r Requirement) bool { return !r.MeetsValue(value, true) }) {
			return false
		}
		if slices.ContainsFunc(of, func(r Requirement) bool { return r.needsLabel() }) {
			found++
		}
	}
	return found == s.needed
}

// requirementsOn returns the requirements on a label. The requirements must be sorted, that is,
// needed must not be -1.
func (s *Selector) requirementsOn(key string) []Requirement {
	from, _ := slices.BinarySearchFunc(s.requirements, key, func(r Requirement, key string) int { return cmp.Compare(r.Key, key) })
	to := from
	for to < len(s.requirements) && s.requirements[to].Key == key {
		to++
	}
	return s.requirements[from:to]
}

// Digest identifies the requirements of the selector within this process, regardless of repetitions
// and order. It is far shorter than a string of all values.
func (s *Selector) Digest() (d [2]uint64) {
	if s.nothing {
		return [2]uint64{1, 1}
	}
	for i := range s.requirements {
		r := &s.requirements[i]
		for seed := range d {
			values := uint64(0)
			for value := range r.DistinctValues() {
				// A sum is independent of the order, since the order of values and requirements has
				// no meaning. DistinctValues yields repeated values only once.
				values += maphash.String(digestSeeds[seed], value)
			}
			d[seed] += maphash.Comparable(digestSeeds[seed], requirementDigest{r.Key, r.Operator, values})
		}
	}
	return d
}

// Two random seeds prevent tenants from crafting selectors with equal digests.
var digestSeeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

// requirementDigest is the hashed form of a requirement.
type requirementDigest struct {
	key      string
	operator selection.Operator
	values   uint64 // the sum of the hashes of the distinct values, independent of order
}

// String formats the selector like kubectl, limited to the first few of many requirements and
// values, for messages. It cannot be parsed back.
func (s *Selector) String() string {
	switch {
	case s.nothing:
		return "<none>"
	case s.Empty():
		return "<all>"
	}
	sorted := slices.SortedFunc(slices.Values(s.requirements), func(a, b Requirement) int { return cmp.Compare(a.Key, b.Key) })
	texts, more := firstOf(sorted, fewRequirements)
	list := Mapped(texts, func(r Requirement) string { return r.String() })
	return strings.Join(append(list, more...), ",")
}

// SameSelector reports whether two selectors have the same form. Equivalent selectors may differ in
// form.
func SameSelector(a, b *metav1.LabelSelector) bool {
	if a == nil || b == nil {
		return a == b
	}
	return maps.Equal(a.MatchLabels, b.MatchLabels) && slices.EqualFunc(a.MatchExpressions, b.MatchExpressions,
		func(a, b metav1.LabelSelectorRequirement) bool {
			return a.Key == b.Key && a.Operator == b.Operator && slices.Equal(a.Values, b.Values)
		})
}
