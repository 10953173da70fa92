// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// RoomOfObject is the maximum total length of the fields of an object, in bytes. It is below the
// limits of the API server and etcd (1.5 MiB).
const RoomOfObject = 1_300_000

// Generator makes objects of one tenant. All fields except Rand are optional. The same Rand gives
// the same objects. It is not safe for concurrent use.
type Generator struct {
	*rand.Rand
	// Known is the percentage of words that other tenants also use. All other words are unique, and
	// each adds an entry to an index.
	Known int
	// Prefix begins the unique words.
	Prefix string

	// made counts objects and unique words. If full is set, an object's other fields are filled as
	// well.
	made int
	full bool
}

// Object returns an object of a kind. The field at the path is filled up to room bytes, and other
// fields are short. If full is set, fields outside the path are filled as well. path must be one of
// Paths(kind).
func (g *Generator) Object(kind Kind, path Path, room int, full bool) Object {
	object := kind.New()
	v := reflect.ValueOf(object).Elem()
	if g.full = full; full {
		g.fill(v, "", 0)
	}
	// Grow the field last: fill would overwrite it.
	g.grow(v, path, room)

	g.made++
	object.SetName(fmt.Sprint("o-", g.made%objects))
	object.SetNamespace(Namespace)
	object.SetUID(types.UID(fmt.Sprint("o-", kind.Name, g.made)))
	return object
}

// Namespace is the tenant's namespace, which contains all objects.
const Namespace = "tenant"

// objects is the number of object names. Referring fields use one of these names, so that many
// references resolve.
const objects = 300

// grow makes the field at the path as long as room allows, and returns the room used. If the path
// leads through a list or a map, its items share the room.
func (g *Generator) grow(v reflect.Value, path Path, room int) (used int) {
	if len(path) == 0 {
		return g.growLast(v, room)
	}

	next, rest := path[0], path[1:]
	switch next.held {
	case aField:
		if v.Kind() == reflect.Struct {
			g.fillFields(v, mostDepth-2, g.full)
		}
		field := v.Field(next.field)
		used = g.grow(field, rest, room)
		// An object with a longer list would be invalid, so nothing would be tested.
		if most := mostNames[v.Type()]; most > 0 && field.Type() == namesType && field.Len() > most {
			field.SetLen(most)
		}
		return used
	// Create a new value, since fill may have set the pointer.
	case aPointer:
		one := reflect.New(v.Type().Elem())
		v.Set(one)
		return g.grow(one.Elem(), rest, room)
	}

	many := g.many(v.Type(), room)
	if next.held == anItem {
		return appendItems(v, many, room, func(one reflect.Value) int { return g.grow(one, rest, room/many) })
	}
	if v.IsNil() {
		v.Set(reflect.MakeMap(v.Type()))
	}
	for i := 0; i < many && used < room; i++ {
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		if next.held == aKey {
			used += g.grow(key, rest, room/many) + g.fill(value, "", mostDepth-1)
		} else {
			used += g.fill(key, "", mostDepth-1) + g.grow(value, rest, room/many)
		}
		v.SetMapIndex(key, value)
	}
	return used
}

// appendItems appends up to most items to a list, as far as room allows, and returns the room used.
// Items are created in place, since a list may have a hundred thousand. Each item counts eight
// additional bytes, for its brackets and commas.
func appendItems(v reflect.Value, most, room int, fill func(reflect.Value) int) (used int) {
	for i := 0; i < most && used < room; i++ {
		// Doubling keeps the number of copies small.
		if v.Len() == v.Cap() {
			v.Grow(v.Len() + 1)
		}
		v.SetLen(v.Len() + 1)
		used += 8 + fill(v.Index(v.Len()-1))
	}
	return used
}

// growLast makes a list, a map or a string as long as room or its validation allows.
func (g *Generator) growLast(v reflect.Value, room int) (used int) {
	most := room
	if n := mostItems[v.Type()]; n > 0 {
		most = n
	}

	switch v.Kind() {
	case reflect.Struct:
		raw := fmt.Sprintf(`{"a":%q}`, strings.Repeat("x", min(room, mostText)))
		v.Set(reflect.ValueOf(runtime.RawExtension{Raw: []byte(raw)}))
		used = len(raw)
	case reflect.Slice:
		v.SetZero()
		used = appendItems(v, most, room, func(one reflect.Value) int { return g.fill(one, "", mostDepth-2) })
	case reflect.Map:
		all := reflect.MakeMap(v.Type())
		for i := 0; i < most && used < room; i++ {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			used += 8 + g.fill(key, "", mostDepth-1) + g.fill(value, "", mostDepth-1)
			all.SetMapIndex(key, value)
		}
		v.Set(all)
	case reflect.String:
		text := longText(g.word(v.Type(), ""), room)
		v.SetString(text)
		used = len(text)
	}

	return used
}

// longText returns a long text that compiles as an expression for devices. Its beginning is unique.
func longText(begin string, room int) string {
	const on = ` && device.driver != "x"`
	begin = `device.driver != "` + begin + `"`
	return begin + strings.Repeat(on, max(0, min(room, mostText)-len(begin))/len(on))
}

// mostText is the maximum length of a single string, because the validation limits the length of
// expressions for devices.
const mostText = 10 << 10

// many returns a random number of items for a list or map on the path: from one item with all of
// the room to thousands of short ones. Tests generate enough objects to find the most expensive
// number.
func (g *Generator) many(t reflect.Type, room int) int {
	n := []int{1, 1, 3, 30, 1000, room/50 + 1}[g.IntN(6)]
	if most := mostItems[t]; most > 0 {
		n = min(n, most)
	}
	return n
}

// mostDepth is the maximum depth of filled fields outside the path, because types of the API are
// recursive.
const mostDepth = 7

// fill gives a field short content: one or two items per list, and a value for about half of the
// pointers. It returns the approximate number of bytes.
func (g *Generator) fill(v reflect.Value, field string, depth int) (used int) {
	switch v.Kind() {
	case reflect.Pointer:
		if depth < mostDepth && g.IntN(2) == 0 {
			one := reflect.New(v.Type().Elem())
			used = g.fill(one.Elem(), field, depth+1)
			v.Set(one)
		}
	case reflect.Struct:
		if leaves[v.Type()] || v.Type() == rawExtension {
			return g.fillLeaf(v)
		}
		used = g.fillFields(v, depth, true)
	case reflect.Slice:
		used = appendItems(v, 1+g.IntN(2), mostText, func(one reflect.Value) int { return g.fill(one, field, depth+1) })
	case reflect.Map:
		all := reflect.MakeMap(v.Type())
		for range 1 + g.IntN(2) {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			used += 8 + g.fill(key, "", depth+1) + g.fill(value, field, depth+1)
			all.SetMapIndex(key, value)
		}
		v.Set(all)
	case reflect.String:
		text := g.word(v.Type(), field)
		v.SetString(text)
		used = len(text) + 2
	case reflect.Int32, reflect.Int64, reflect.Int:
		v.SetInt(1 + g.Int64N(100))
	case reflect.Bool:
		v.SetBool(g.IntN(4) == 0)
	}

	return used
}

// fillFields fills the scalar fields of a struct and, if deep is set, some of the other fields.
// Most structs are invalid without their scalars.
func (g *Generator) fillFields(v reflect.Value, depth int, deep bool) (used int) {
	for _, f := range fieldsOf(v.Type()) {
		if f.scalar {
			used += g.fill(v.Field(f.index), f.name, depth)
		} else if deep && depth < mostDepth && g.IntN(3) == 0 {
			used += g.fill(v.Field(f.index), f.name, depth+1)
		}
	}
	return used
}

// writable is a field of a struct that a tenant may write, by its index.
type writable struct {
	index  int
	name   string
	scalar bool
}

// fieldsKnown caches the fields by type, because reflection is expensive and objects have thousands
// of items.
var fieldsKnown sync.Map

// fieldsOf lists the fields of a struct that a tenant may write.
func fieldsOf(t reflect.Type) (all []writable) {
	if known, is := fieldsKnown.Load(t); is {
		return known.([]writable)
	}
	for i := range t.NumField() {
		if f := t.Field(i); f.IsExported() && !byTheServer(t, f.Name) {
			all = append(all, writable{i, f.Name, isScalar(f.Type)})
		}
	}
	fieldsKnown.Store(t, all)
	return all
}

// isScalar reports whether a type is a string, a number or a bool, or a pointer to such a type.
func isScalar(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer:
		return t.Elem().Kind() != reflect.Pointer && isScalar(t.Elem())
	case reflect.Struct, reflect.Slice, reflect.Map, reflect.Interface:
		return false
	}
	return true
}

// fillLeaf sets a value of a type that is not filled field by field.
func (g *Generator) fillLeaf(v reflect.Value) int {
	switch v.Interface().(type) {
	case resource.Quantity:
		quantity := *resource.NewMilliQuantity(g.Int64N(2000), resource.DecimalSI)
		if g.IntN(8) == 0 {
			quantity = hugeQuantities[g.IntN(len(hugeQuantities))]
		}
		v.Set(reflect.ValueOf(quantity))
	case runtime.RawExtension:
		v.Set(reflect.ValueOf(runtime.RawExtension{Raw: []byte(`{"a":"b"}`)}))
	case intstr.IntOrString:
		v.Set(reflect.ValueOf(intstr.FromInt32(1 + g.Int32N(100))))
	}
	return 4
}

// hugeQuantities are cheap to parse and to store, but would take seconds to compare.
var hugeQuantities = []resource.Quantity{resource.MustParse("1e60000000"), resource.MustParse("123456789e2147483640"), resource.MustParse("0e2000000000")}

// word returns a value for a field: a value from words for its type, a word in use by other
// tenants, or a unique word. field is "" if only the type counts.
func (g *Generator) word(t reflect.Type, field string) string {
	if t != plainText {
		// Use a value known to the API, since readers may ignore the rest of an object with an
		// unknown value.
		if of := words[t]; of != nil {
			return of[g.IntN(len(of))]
		}
	}
	if field != "" {
		if of := byField[field]; of != nil {
			return of[g.IntN(len(of))]
		}
		if referring[field] && g.IntN(4) > 0 {
			return "o-" + strconv.Itoa(g.IntN(objects))
		}
	}
	if g.IntN(100) < g.Known {
		return known[g.IntN(len(known))]
	}

	g.made++
	return g.Prefix + "-" + strconv.FormatInt(int64(g.made), 36)
}

// plainText is the type of texts without a special meaning.
var plainText = reflect.TypeFor[string]()

// known are words on nodes and pods of other tenants.
var known = []string{"app", "app-1", "app-2", "k0", "k1", "k19", "0", "1", v1.LabelHostname, v1.LabelTopologyZone,
	"z0", "gpu", Namespace, "metadata.name", "node-1"}
