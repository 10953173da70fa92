// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"reflect"
	"slices"
	"testing"
)

// TestPartsStandInOrder verifies that each part of the core refers only to common and to parts
// before it in Core, never to later parts or to the core itself. The end of a placement is reported
// through an interface.
func TestPartsStandInOrder(t *testing.T) {
	core := reflect.TypeFor[Core]()
	before := []reflect.Type{reflect.TypeFor[*common]()}
	for i := range core.NumField() {
		part := core.Field(i).Type
		if part.Kind() != reflect.Pointer || part == before[0] {
			continue
		}
		for known := range partsIn(part.Elem()) {
			if !slices.Contains(before, known) {
				t.Errorf("%v knows %v, which does not come before it in Core", part, known)
			}
		}
		before = append(before, part)
	}
	if len(before) < 12 {
		t.Errorf("only %d parts were looked at", len(before))
	}
	if ends := reflect.TypeFor[placementListener](); !before[len(before)-2].Implements(ends) {
		t.Errorf("%v does not take what placements come to", before[len(before)-2])
	}
	// Types instantiated per pod refer to no part: parts act on them.
	for _, typ := range []reflect.Type{reflect.TypeFor[placement](), reflect.TypeFor[servedProfile](), reflect.TypeFor[removal](), reflect.TypeFor[objectWait]()} {
		for known := range partsIn(typ) {
			t.Errorf("%v knows %v", typ, known)
		}
	}
}

// partsIn yields the types of the parts to which a struct points.
func partsIn(typ reflect.Type) func(yield func(reflect.Type) bool) {
	parts := map[reflect.Type]bool{reflect.TypeFor[*Core](): true}
	for i := range reflect.TypeFor[Core]().NumField() {
		if field := reflect.TypeFor[Core]().Field(i).Type; field.Kind() == reflect.Pointer {
			parts[field] = true
		}
	}
	return func(yield func(reflect.Type) bool) {
		for i := range typ.NumField() {
			if field := typ.Field(i).Type; parts[field] && !yield(field) {
				return
			}
		}
	}
}
