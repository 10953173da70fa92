// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/selection"
)

// labelRequirement is a [labels.Requirement] that looks up the node's label once. Requirements with
// the same key and operator are merged; see narrowBy and addValues.
type labelRequirement struct {
	key      string
	operator selection.Operator
	list     []string        // the values of In and NotIn, possibly with duplicates
	values   map[string]bool // instead of list, for many values
	bound    int64           // the bound of Gt and Lt
}

// eachValue calls f once with every listed value.
func (r *labelRequirement) eachValue(f func(value string)) {
	for i, value := range r.list {
		if !slices.Contains(r.list[:i], value) {
			f(value)
		}
	}
	for value := range r.values {
		f(value)
	}
}

// addValues adds the values of another requirement. The addition weakens an In requirement, because
// either list suffices, and strengthens a NotIn requirement.
func (r *labelRequirement) addValues(other *labelRequirement) {
	r.makeSet()
	other.eachValue(func(value string) { r.values[value] = true })
}

// makeSet copies the values into a map owned by the requirement. Before the copy, list belongs to
// the spec and must not be modified.
func (r *labelRequirement) makeSet() {
	if r.values != nil {
		return
	}
	r.values = make(map[string]bool, len(r.list))
	for _, value := range r.list {
		r.values[value] = true
	}
	r.list = nil
}

// narrowBy restricts the requirement to nodes that also meet the other one. Both have the same key
// and operator.
//
//	In a,b      and  In b,c      ->  In b
//	NotIn a     and  NotIn b     ->  NotIn a,b
//	Gt 3        and  Gt 5        ->  Gt 5
func (r *labelRequirement) narrowBy(other *labelRequirement) {
	switch r.operator {
	case selection.In:
		both := map[string]bool{}
		other.eachValue(func(value string) {
			if r.listsValue(value) {
				both[value] = true
			}
		})
		r.list, r.values = nil, both
	case selection.NotIn:
		r.addValues(other)
	case selection.GreaterThan:
		r.bound = max(r.bound, other.bound)
	case selection.LessThan:
		r.bound = min(r.bound, other.bound)
	}
}

// newLabelRequirement takes arguments accepted by [labels.NewRequirement], so a bound is a valid
// number. It does not copy values.
func newLabelRequirement(key string, operator selection.Operator, values []string) labelRequirement {
	// Up to this length a linear search is cheaper than a map.
	const few = 4
	r := labelRequirement{key: key, operator: operator}
	switch {
	case operator == selection.GreaterThan || operator == selection.LessThan:
		r.bound, _ = strconv.ParseInt(values[0], 10, 64)
	default:
		if r.list = values; len(values) > few {
			r.makeSet()
		}
	}
	return r
}

// meetsValue reports whether a label with this value, if present on a node, meets the requirement.
func (r *labelRequirement) meetsValue(value string, has bool) bool {
	switch r.operator {
	case selection.In:
		return has && r.listsValue(value)
	case selection.NotIn:
		return !has || !r.listsValue(value)
	case selection.Exists:
		return has
	case selection.DoesNotExist:
		return !has
	}
	number, err := strconv.ParseInt(value, 10, 64) // Gt and Lt exclude the bound itself
	return has && err == nil && number != r.bound && (number > r.bound) == (r.operator == selection.GreaterThan)
}

// listsValue reports whether In or NotIn lists the value, in either representation.
func (r *labelRequirement) listsValue(value string) bool {
	return r.values[value] || slices.Contains(r.list, value)
}
