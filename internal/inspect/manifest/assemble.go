package manifest

import (
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Assemble makes a set from objects of an API server, without checks or defaults: the server
// has done both. Objects of kinds that Berth does not use are counted. from is how messages
// refer to the source. The objects become the set's; their order is that of the input.
func Assemble(from string, objects []metav1.Object) *Set {
	s := &Set{Ignored: map[string]int{}, places: map[string][]place{}, files: []string{from}}
	// Objects that were decoded by client-go often lack their kind, so their Go type
	// tells it.
	byType := make(map[reflect.Type]*kind, len(kinds))
	for _, k := range kinds {
		byType[k.typ] = k
	}
	for i, object := range objects {
		t := reflect.TypeOf(object).Elem()
		k := byType[t]
		if k == nil {
			s.Ignored[t.Name()]++
			continue
		}
		// As they come: the server has validated them.
		k.add(s, object)
		s.places[k.name] = append(s.places[k.name], place{order: int32(i)})
	}
	return s
}
