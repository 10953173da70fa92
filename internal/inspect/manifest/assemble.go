// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Assemble makes a set from objects of an API server. It neither checks objects nor sets defaults,
// because the server has done both. It counts objects of kinds unused by Berth. from names the
// source in messages. The set takes ownership of the objects, and keeps the input's order.
func Assemble(from string, objects []metav1.Object) *Set {
	s := &Set{Ignored: map[string]int{}, places: map[string][]place{}, files: []string{from}}
	for i, object := range objects {
		// Objects decoded by client-go often lack their kind, so use their Go type.
		t := reflect.TypeOf(object).Elem()
		k := byType[t]
		if k == nil {
			s.Ignored[t.Name()]++
			continue
		}
		k.add(s, object)
		s.places[k.name] = append(s.places[k.name], place{order: int32(i)})
	}
	return s
}
