// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"cmp"
	"iter"
	"slices"
)

// SetDefault sets an optional field that is nil. A pointer to a zero value counts as set.
func SetDefault[T any](field **T, value T) { *field = cmp.Or(*field, &value) }

// Mapped returns the results of a function for the elements of a list, in order; nil for an empty
// list.
func Mapped[T, U any](list []T, of func(T) U) []U {
	results := slices.Grow([]U(nil), len(list))
	for _, element := range list {
		results = append(results, of(element))
	}
	return results
}

// Any reports whether any value of a sequence meets a condition.
func Any[T any](values iter.Seq[T], is func(T) bool) bool {
	for value := range values {
		if is(value) {
			return true
		}
	}
	return false
}

// Count returns the number of values of a sequence that meet a condition.
func Count[T any](values iter.Seq[T], is func(T) bool) (count int) {
	for value := range values {
		if is(value) {
			count++
		}
	}
	return count
}

// Find returns a pointer to the first element of a list that meets a condition, or nil.
func Find[T any](list []T, is func(*T) bool) *T {
	for i := range list {
		if is(&list[i]) {
			return &list[i]
		}
	}
	return nil
}

// Pointers returns pointers to the elements of a list, in order; nil for an empty list.
func Pointers[T any](list []T) (pointers []*T) {
	for i := range list {
		pointers = append(pointers, &list[i])
	}
	return pointers
}

// Inner returns the inner map of a key. It creates the map if the key is new.
func Inner[K, L comparable, V any](of map[K]map[L]V, key K) map[L]V {
	if of[key] == nil {
		of[key] = map[L]V{}
	}
	return of[key]
}

// FalseFirst orders false before true, like cmp.Compare.
func FalseFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// Kubernetes is the version that defines these rules, and the version of the API server and
// controllers run by berth-controlplane. It must equal the version of the libraries in go.mod, from
// which the Makefile takes the version. A test verifies this.
const Kubernetes = "v1.37.2"
