// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"reflect"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Path leads from an object to one of its fields. The path of the object itself is empty.
type Path []step

// step is a field of a struct, or the content of a list, a map or a pointer.
type step struct {
	field int // index of a struct's field
	name  string
	held  held
}

// held is the kind of content that a step selects from a value.
type held int

const (
	aField held = iota
	anItem
	aKey
	aValue
	aPointer
)

// String returns the path as in "Spec.Containers[].Name", by the names of Go. Pointers are not
// shown.
func (p Path) String() string {
	var text strings.Builder
	for _, s := range p {
		switch s.held {
		case aField:
			text.WriteString("." + s.name)
		case anItem, aValue:
			text.WriteString("[]")
		case aKey:
			text.WriteString("[key]")
		}
	}
	return strings.TrimPrefix(text.String(), ".")
}

// leaves holds the types filled as a whole, without a part of unbounded length.
var leaves = map[reflect.Type]bool{
	reflect.TypeFor[resource.Quantity]():         true,
	reflect.TypeFor[intstr.IntOrString]():        true,
	reflect.TypeFor[metav1.Time]():               true,
	reflect.TypeFor[metav1.MicroTime]():          true,
	reflect.TypeFor[metav1.TypeMeta]():           true,
	reflect.TypeFor[metav1.ManagedFieldsEntry](): true,
}

// rawExtension is JSON of any length, such as the parameters of a device.
var rawExtension = reflect.TypeFor[runtime.RawExtension]()

// ofTheServer lists the fields of objects and their metadata that a tenant cannot write, because
// the API server sets them or they belong to a subresource inaccessible to the tenant. It also
// lists names, which are bounded.
var ofTheServer = []string{
	"Name", "GenerateName", "Status", "UID", "ResourceVersion", "ManagedFields", "SelfLink", "Generation",
	"CreationTimestamp", "DeletionTimestamp",
	"DeletionGracePeriodSeconds", "Namespace",
}

// byTheServer reports whether a tenant cannot write a field of a type. A field named Status belongs
// to the API server only at the top level of an object.
func byTheServer(t reflect.Type, field string) bool {
	_, top := t.FieldByName("ObjectMeta")
	return (top || t == reflect.TypeFor[metav1.ObjectMeta]()) && slices.Contains(ofTheServer, field)
}

// pathsKnown caches the paths by kind, since a pod has thousands.
var pathsKnown sync.Map

// Paths returns the paths to all fields of a kind with unbounded length: strings without a fixed
// set of values, lists and maps. A recursive type is followed once. The result is shared; it must
// not be changed.
func Paths(kind Kind) (all []Path) {
	if known, is := pathsKnown.Load(kind.Name); is {
		return known.([]Path)
	}
	var follow func(t reflect.Type, to Path, within []reflect.Type)
	follow = func(t reflect.Type, to Path, within []reflect.Type) {
		if t == rawExtension {
			all = append(all, to)
			return
		}
		if leaves[t] || slices.Contains(within, t) {
			return
		}
		// Clip the slice, because several paths continue from it.
		further := func(s step) Path { return append(slices.Clip(to), s) }
		switch t.Kind() {
		case reflect.Pointer:
			follow(t.Elem(), further(step{held: aPointer}), within)
		case reflect.Struct:
			within = append(slices.Clip(within), t)
			for i := range t.NumField() {
				if f := t.Field(i); f.IsExported() && !byTheServer(t, f.Name) {
					follow(f.Type, further(step{field: i, name: f.Name}), within)
				}
			}
		case reflect.Slice:
			all = append(all, to)
			follow(t.Elem(), further(step{held: anItem}), within)
		case reflect.Map:
			all = append(all, to)
			follow(t.Key(), further(step{held: aKey}), within)
			follow(t.Elem(), further(step{held: aValue}), within)
		case reflect.String:
			if words[t] == nil {
				all = append(all, to)
			}
		}
	}

	follow(reflect.TypeOf(kind.New()).Elem(), nil, nil)
	pathsKnown.Store(kind.Name, all)
	return all
}
