// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"cmp"
	"hash/maphash"
	"iter"
	"slices"
	"strconv"
	"strings"

	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Requirement is a selector's requirement on one label: In, NotIn, Exists, DoesNotExist or, in a
// node selector, Gt or Lt. It is immutable.
type Requirement struct {
	Key      string
	Operator selection.Operator
	Values   []string // as listed, possibly with duplicates
	table    *valueTable
}

// valueTable is a hash table of the indices in Values, counted from 1. It exists only for many
// values.
type valueTable struct{ places []int32 }

// Up to fewValues values are compared one by one, which costs less than hashing.
const fewValues = 8

var valueSeed = maphash.MakeSeed() // random, to prevent prepared collisions

// NewRequirement takes arguments accepted by [CheckRequirement]; the slice must not change. The
// hash table for many values is at most two thirds full.
func NewRequirement(key string, operator selection.Operator, values []string) Requirement {
	r := Requirement{Key: key, Operator: operator, Values: values}
	if len(values) <= fewValues {
		return r
	}
	// The length is a power of two, so that a mask maps a hash to an index.
	size := 2
	for size < len(values)*3/2 {
		size *= 2
	}
	r.table = &valueTable{make([]int32, size)}
	for i, value := range values {
		// A value listed twice has one entry, for its first index.
		if at, known := r.findValue(value); !known {
			r.table.places[at] = int32(i) + 1
		}
	}
	return r
}

// Bound returns the bound of Gt or Lt.
func (r *Requirement) Bound() int64 {
	bound, _ := strconv.ParseInt(r.Values[0], 10, 64)
	return bound
}

// findValue returns the index of the value's slot in places. For an unknown value, it returns the
// index of the slot to use: the first free slot at or after its hash. It requires a table.
func (r *Requirement) findValue(value string) (at uint64, known bool) {
	places := r.table.places
	last := uint64(len(places) - 1)
	for at = maphash.String(valueSeed, value) & last; places[at] > 0; at = (at + 1) & last {
		if r.Values[places[at]-1] == value {
			return at, true
		}
	}
	return at, false
}

// DistinctValues yields each listed value once.
func (r *Requirement) DistinctValues() iter.Seq[string] {
	return func(yield func(string) bool) {
		for i, value := range r.Values {
			// For a repeated value, the table has only the first index.
			again := r.table == nil && slices.Contains(r.Values[:i], value)
			if r.table != nil {
				at, _ := r.findValue(value)
				again = int(r.table.places[at]) != i+1
			}
			if !again && !yield(value) {
				return
			}
		}
	}
}

// MergeRequirements sorts the requirements, and merges those with the same key and operator. It
// overwrites the list, and returns a part of it. For example:
//
//	In a,b   and  In b,c   ->  In b
//	NotIn a  and  NotIn b  ->  NotIn a,b
//	Gt 3     and  Gt 5     ->  Gt 5
func MergeRequirements(list []Requirement) []Requirement {
	if len(list) < 2 {
		return list
	}
	slices.SortFunc(list, func(a, b Requirement) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Operator, b.Operator))
	})
	merged := list[:0] // writing never overtakes reading
	for i := 0; i < len(list); {
		end := i + 1
		for end < len(list) && list[end].Key == list[i].Key && list[end].Operator == list[i].Operator {
			end++
		}
		merged = append(merged, mergeSameKind(list[i:end]))
		i = end
	}
	return merged
}

// mergeSameKind merges requirements with the same key and operator. For In, the result lists the
// values common to all requirements; for NotIn, it lists the values of any requirement.
func mergeSameKind(list []Requirement) Requirement {
	first := &list[0]
	if len(list) == 1 {
		return *first
	}

	byBound := func(a, b Requirement) int { return cmp.Compare(a.Bound(), b.Bound()) }
	var values []string
	switch first.Operator {
	case selection.GreaterThan:
		return slices.MaxFunc(list, byBound)
	case selection.LessThan:
		return slices.MinFunc(list, byBound)
	// The result has the values of the first list that are in all other lists.
	case selection.In:
		for _, value := range first.Values {
			if !slices.ContainsFunc(list[1:], func(r Requirement) bool { return !r.listsValue(value) }) {
				values = append(values, value)
			}
		}
	case selection.NotIn:
		for i := range list {
			values = append(values, list[i].Values...)
		}
	}

	return NewRequirement(first.Key, first.Operator, values)
}

// String formats the requirement like kubectl.
func (r *Requirement) String() string {
	switch r.Operator {
	case selection.Exists:
		return r.Key
	case selection.DoesNotExist:
		return "!" + r.Key
	}
	if r.Operator == selection.In && len(r.Values) == 1 {
		return r.Key + "=" + r.Values[0]
	}
	values, more := firstOf(slices.Sorted(slices.Values(r.Values)), fewValues)
	return r.Key + " " + string(r.Operator) + " (" + strings.Join(append(values, more...), ",") + ")"
}

// firstOf returns the first few elements of a list, and a text with the number of remaining
// elements. Appending to the result does not modify the list.
func firstOf[T any](list []T, few int) (first []T, more []string) {
	if len(list) <= few {
		return list, nil
	}
	return list[:few:few], []string{strconv.Itoa(len(list)-few) + " more"}
}

// needsLabel reports whether only a label with the key can meet the requirement.
func (r *Requirement) needsLabel() bool {
	return r.Operator == selection.In || r.Operator == selection.Exists
}

// listsValue reports whether the value is listed.
func (r *Requirement) listsValue(value string) bool {
	if r.table == nil {
		return slices.Contains(r.Values, value)
	}
	_, known := r.findValue(value)
	return known
}

// MeetsValue reports whether a label with this value, if present, meets the requirement.
func (r *Requirement) MeetsValue(value string, has bool) bool {
	switch r.Operator {
	case selection.In:
		return has && r.listsValue(value)
	case selection.NotIn:
		return !has || !r.listsValue(value)
	case selection.Exists:
		return has
	case selection.DoesNotExist:
		return !has
	}
	bound := r.Bound() // excluded by Gt and Lt
	number, err := strconv.ParseInt(value, 10, 64)
	return has && err == nil && number != bound && (number > bound) == (r.Operator == selection.GreaterThan)
}

// CheckRequirement returns the error of [labels.NewRequirement] for these arguments. It calls the
// library, which uses regular expressions, only in unusual cases. For a long list it reports only
// the first invalid value.
func CheckRequirement(key string, operator selection.Operator, values []string) error {
	if wrong := slices.IndexFunc(values, func(v string) bool { return v != "" && !isPlain(v) }); wrong >= 0 {
		const many = 100
		if len(values) > many {
			// The library reports every invalid value, and a list may have 150,000 of them.
			values = values[wrong : wrong+1]
		}
	} else if isPlainKey(key) && takesValues(operator, values) {
		return nil
	} else if takesValues(operator, values) {
		operator, values = selection.Exists, nil // only the key remains to be checked
	}
	_, err := labels.NewRequirement(key, operator, append([]string(nil), values...))
	return err
}

// ValidRequirement reports whether [CheckRequirement] finds no error. Formatting an error takes far
// longer than checking the requirement.
func ValidRequirement(key string, operator selection.Operator, values []string) bool {
	if isNoKey(key) || slices.ContainsFunc(values, func(v string) bool { return v != "" && !isPlain(v) }) {
		return false
	}
	return CheckRequirement(key, operator, values) == nil
}

// isNoKey reports whether the text is certainly an invalid label key. If the result is false, the
// key may still be invalid.
func isNoKey(text string) bool {
	prefix, name, prefixed := strings.Cut(text, "/")
	if !prefixed {
		return !isPlain(text)
	}
	return !isPlain(name) || prefix == "" || strings.Trim(prefix, "abcdefghijklmnopqrstuvwxyz0123456789.-") != ""
}

// takesValues reports whether an operator certainly takes this number of values, which are already
// known to be valid label values. If the result is false, the library decides.
func takesValues(operator selection.Operator, values []string) bool {
	switch operator {
	case selection.In, selection.NotIn:
		return len(values) > 0
	case selection.Exists, selection.DoesNotExist:
		return len(values) == 0
	case selection.Equals:
		return len(values) == 1
	case selection.GreaterThan, selection.LessThan:
		if len(values) != 1 {
			return false
		}
		_, err := strconv.ParseInt(values[0], 10, 64)
		return err == nil
	}
	return false
}

// labelNameErrors returns the errors of [metavalidation.ValidateLabelName], which uses regular
// expressions. It calls ValidateLabelName only in unusual cases.
func labelNameErrors(key string, path *field.Path) field.ErrorList {
	if isPlainKey(key) {
		return nil
	}
	return metavalidation.ValidateLabelName(key, path)
}

// isPlainKey reports whether the text is certainly a label key. If the result is false, the text
// may still be a label key.
func isPlainKey(text string) bool {
	prefix, name, prefixed := strings.Cut(text, "/")
	if !prefixed {
		return isPlain(text)
	}
	const longest = 253
	if prefix == "" || len(prefix) > longest {
		return false
	}

	joins := true // dots and dashes must not be at an end, or adjacent
	for i := range len(prefix) {
		switch c := prefix[i]; {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
			joins = false
		case !joins && (c == '-' || c == '.'):
			joins = true
		default:
			return false
		}
	}
	return !joins && isPlain(name)
}

// isPlain reports whether the text is both a label key without a prefix and a label value. If the
// result is false, the text may still be a label value.
func isPlain(text string) bool {
	const longest = 63
	if text == "" || len(text) > longest {
		return false
	}
	for i := range len(text) {
		switch c := text[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case i > 0 && i < len(text)-1 && (c == '-' || c == '_' || c == '.'):
		default:
			return false
		}
	}
	return true
}
