// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"cmp"
	"iter"
	"slices"
)

// Label is one label.
type Label struct{ Key, Value string }

// Labels are the labels of an object. They take a fraction of the memory of a map, which has room
// for eight entries even if it holds only one. nil is empty. Labels are immutable and implement
// labels.Labels.
type Labels struct {
	list []Label // sorted by key, without duplicates
}

// NewLabels returns the labels of a map. text, if not nil, interns strings.
func NewLabels(set map[string]string, text func(string) string) *Labels {
	if len(set) == 0 {
		return nil
	}
	l := &Labels{make([]Label, 0, len(set))}
	for key, value := range set {
		if text != nil {
			key = text(key)
		}
		l.list = append(l.list, Label{key, value})
	}
	slices.SortFunc(l.list, func(a, b Label) int { return cmp.Compare(a.Key, b.Key) })
	return l
}

// List returns the labels sorted by key. The caller must not modify the list.
func (l *Labels) List() []Label {
	if l == nil {
		return nil
	}
	return l.list
}

// All yields the labels sorted by key.
func (l *Labels) All() iter.Seq2[string, string] {
	return func(yield func(key, value string) bool) {
		for _, label := range l.List() {
			if !yield(label.Key, label.Value) {
				return
			}
		}
	}
}

// Len returns the number of labels.
func (l *Labels) Len() int { return len(l.List()) }

// Lookup returns the value of a label, and whether it exists.
func (l *Labels) Lookup(key string) (value string, has bool) {
	if l == nil {
		return "", false
	}
	if len(l.list) > fewRequirements {
		at, has := slices.BinarySearchFunc(l.list, key, func(l Label, key string) int { return cmp.Compare(l.Key, key) })
		if !has {
			return "", false
		}
		return l.list[at].Value, true
	}
	for i := range l.list {
		if l.list[i].Key == key {
			return l.list[i].Value, true
		}
	}
	return "", false
}

// Get returns the value of a label, or "".
func (l *Labels) Get(key string) string { value, _ := l.Lookup(key); return value }

// Has reports whether the label exists.
func (l *Labels) Has(key string) bool { _, has := l.Lookup(key); return has }

// Equal reports whether l and o contain the same labels.
func (l *Labels) Equal(o *Labels) bool { return l == o || slices.Equal(l.List(), o.List()) }

// Map returns the labels in the API's form; nil if empty.
func (l *Labels) Map() map[string]string {
	if l.Len() == 0 {
		return nil
	}
	set := make(map[string]string, len(l.list))
	for _, label := range l.list {
		set[label.Key] = label.Value
	}
	return set
}
