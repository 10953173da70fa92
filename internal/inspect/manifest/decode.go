// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// decoder turns a tree into an API object by the json tags of its type. It is as strict as the API
// server with fieldValidation=Strict, and rejects unknown and duplicate fields and values of the
// wrong type. It continues after a fault, so that one run reports all faults.
//
// The result equals converting YAML to JSON and unmarshalling the JSON. Skipping the JSON saves
// most of the time and memory for a file with a whole cluster. A decoder is not safe for concurrent
// use.
type decoder struct {
	// t is the document of the current object. path is the path of the field being read, and faults
	// holds the problems found so far.
	t      *tree
	path   []step
	faults []problem
	// unknown holds unknown fields separately, because in an object stored by an API server they
	// are newer than Berth, not wrong.
	unknown []problem
	// words interns short texts, because the thousands of pods of a workload share their labels,
	// images and volume names.
	words map[string]string
}

// step is one element of a field path: a name, or an index if the name is "".
type step struct {
	name  string
	index int
	isKey bool // key of a map, written in brackets
}

// problem is a fault of a field.
type problem struct {
	line       int32
	path, text string
}

// maxWords bounds the table of interned texts: label values, images, names. A larger table is
// cleared between two objects.
const maxWords = 1 << 16

// newDecoder returns a decoder without any words.
func newDecoder() *decoder { return &decoder{words: map[string]string{}} }

// resetFor prepares for a new object. It does not reuse the faults of the previous object, which
// belong to the caller.
func (d *decoder) resetFor(t *tree) {
	d.t, d.path, d.faults, d.unknown = t, d.path[:0], nil, nil
	if len(d.words) > maxWords {
		clear(d.words)
	}
}

// addFault adds a fault of the value n in the current field.
func (d *decoder) addFault(n int32, format string, args ...any) {
	d.faults = append(d.faults, problem{d.t.nodes[n].line, d.fieldPath(), fmt.Sprintf(format, args...)})
}

// fieldPath returns the path in the format of upstream's validation:
// spec.containers[0].resources.limits[cpu].
func (d *decoder) fieldPath() string {
	var out strings.Builder
	for _, s := range d.path {
		switch {
		case s.name == "" && !s.isKey:
			fmt.Fprintf(&out, "[%d]", s.index)
		case s.isKey:
			fmt.Fprintf(&out, "[%s]", s.name)
		default:
			if out.Len() > 0 {
				out.WriteByte('.')
			}
			out.WriteString(s.name)
		}
	}
	return out.String()
}

// internText copies a text, so that it does not keep its document in memory. Long texts, such as
// scripts and annotations, are rarely shared and are not interned.
func (d *decoder) internText(text string) string {
	if len(text) > 64 {
		return strings.Clone(text)
	}
	if word, known := d.words[text]; known {
		return word
	}
	word := strings.Clone(text)
	d.words[word] = word
	return word
}

// decodeFunc decodes node n into v, which is settable. A faulty scalar leaves v unchanged.
type decodeFunc func(d *decoder, n int32, v reflect.Value)

// plans caches the decode function of each type. All decoders share it, so types are inspected once
// per process instead of once per object.
var plans sync.Map // keyed by reflect.Type, holds decodeFuncs

// planOf returns the decode function of a type. It is safe for concurrent use.
func planOf(typ reflect.Type) decodeFunc {
	if plan, found := plans.Load(typ); found {
		return plan.(decodeFunc)
	}
	// Types may be recursive, so a lazy function is stored before the plan is complete.
	// CompositePodGroupTemplate, for example, contains a list of itself.
	var once sync.Once
	var plan decodeFunc
	lazy := decodeFunc(func(d *decoder, n int32, v reflect.Value) {
		once.Do(func() { plan = newPlan(typ) })
		plan(d, n, v)
	})
	stored, _ := plans.LoadOrStore(typ, lazy)
	return stored.(decodeFunc)
}

var (
	quantityType    = reflect.TypeFor[resource.Quantity]()
	timeType        = reflect.TypeFor[metav1.Time]()
	microTimeType   = reflect.TypeFor[metav1.MicroTime]()
	durationType    = reflect.TypeFor[metav1.Duration]()
	intOrStringType = reflect.TypeFor[intstr.IntOrString]()
	unmarshalerType = reflect.TypeFor[json.Unmarshaler]()
)

// newPlan builds the decode function of a type. Types with a custom JSON format, other than the
// common ones handled here, are decoded via JSON.
func newPlan(typ reflect.Type) decodeFunc {
	switch typ {
	case quantityType:
		return decodeQuantity
	case timeType:
		return decodeTime
	case microTimeType:
		return decodeMicroTime
	case durationType:
		return decodeDuration
	case intOrStringType:
		return decodeIntOrString
	}

	// Other types with a custom format are few and small.
	if reflect.PointerTo(typ).Implements(unmarshalerType) {
		return decodeJSON
	}
	switch typ.Kind() {
	case reflect.Pointer:
		return pointerPlan(typ)
	case reflect.Struct:
		return structPlan(typ)
	case reflect.Map:
		return mapPlan(typ)
	case reflect.Slice:
		// Bytes are a list in Go and a string in JSON.
		if typ.Elem().Kind() == reflect.Uint8 {
			return decodeBytes
		}
		return slicePlan(typ)
	case reflect.String:
		return decodeString
	case reflect.Bool:
		return decodeBool
	case reflect.Int, reflect.Int32, reflect.Int64:
		return decodeInt
	case reflect.Float64:
		return decodeFloat
	}

	return decodeJSON
}

// isNull reports whether a value is null or missing: as in JSON, both leave a field unchanged.
func (d *decoder) isNull(n int32) bool {
	node := &d.t.nodes[n]
	return node.kind == scalarNode && !node.quoted && resolveType(node.text) == nullScalar
}

// pointerPlan decodes into a new value, and leaves the pointer nil for null.
func pointerPlan(typ reflect.Type) decodeFunc {
	elem := planOf(typ.Elem())
	return func(d *decoder, n int32, v reflect.Value) {
		if d.isNull(n) {
			return
		}
		v.Set(reflect.New(typ.Elem()))
		elem(d, n, v.Elem())
	}
}

// fieldPlan describes the path to a field, through inlined structs such as ObjectMeta, and its
// decode function.
type fieldPlan struct {
	index  []int
	number int // index among the struct's fields, to find duplicates
	decode decodeFunc
}

// structPlan decodes a mapping into a struct. It collects unknown fields separately from other
// faults; parser.unknownFields classifies them.
func structPlan(typ reflect.Type) decodeFunc {
	fields := map[string]*fieldPlan{}
	collectFields(typ, nil, fields)
	return func(d *decoder, n int32, v reflect.Value) {
		if d.isNull(n) {
			return
		}
		if d.t.nodes[n].kind != mappingNode {
			d.addFault(n, "%s: must be an object", d.describeValue(n))
			return
		}

		// Use a bit per field instead of a map per object. API types have fewer than 256 fields.
		var seen [4]uint64
		for c := d.t.nodes[n].first; c != 0; c = d.t.nodes[c].next {
			key := d.t.nodes[c].key
			d.path = append(d.path, step{name: key})
			// Compare names exactly; encoding/json would ignore the case.
			switch field := fields[key]; {
			case field == nil:
				d.unknown = append(d.unknown, problem{d.t.nodes[c].line, d.fieldPath(), "unknown field" + suggestField(key, fields)})
			case seen[field.number/64]&(1<<(field.number%64)) != 0:
				d.addFault(c, "given twice")
			default:
				seen[field.number/64] |= 1 << (field.number % 64)
				target := v
				for _, i := range field.index {
					target = target.Field(i)
				}
				field.decode(d, c, target)
			}
			d.path = d.path[:len(d.path)-1]
		}
	}
}

// collectFields adds the fields of a struct by their JSON names, including inlined structs' fields.
// index is the path to the struct from the outermost one.
func collectFields(typ reflect.Type, index []int, fields map[string]*fieldPlan) {
	for i := range typ.NumField() {
		field := typ.Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch at := append(slices.Clone(index), i); {
		// Skip these fields, as in encoding/json.
		case !field.IsExported() || name == "-":
		case name == "" && (field.Anonymous || strings.Contains(options, "inline")):
			collectFields(field.Type, at, fields)
		case field.Name == "ManagedFields": // large, and irrelevant to a scheduler
			fields[name] = &fieldPlan{index: at, number: len(fields), decode: func(*decoder, int32, reflect.Value) {}}
		case name != "":
			fields[name] = &fieldPlan{index: at, number: len(fields), decode: planOf(field.Type)}
		}
	}
}

// suggestField returns a hint with the field probably meant: a name that differs only in case, or
// by one typing error. Of several such names, it suggests the alphabetically first; without any, it
// returns "".
func suggestField(key string, fields map[string]*fieldPlan) string {
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if strings.EqualFold(name, key) || len(key) > 2 && oneSlip(strings.ToLower(name), strings.ToLower(key)) {
			return "; did you mean " + name + "?"
		}
	}
	return ""
}

// oneSlip reports whether two words differ by one letter missing, added or wrong, or by two letters
// swapped: replica and replicas, nodeNmae and nodeName.
func oneSlip(a, b string) bool {
	if len(a) < len(b) {
		a, b = b, a
	}
	if len(a)-len(b) > 1 {
		return false
	}
	i := 0
	for i < len(b) && a[i] == b[i] {
		i++
	}
	if len(a) > len(b) {
		return a[i+1:] == b[i:]
	}
	return i == len(a) || a[i+1:] == b[i+1:] ||
		i+1 < len(a) && a[i] == b[i+1] && a[i+1] == b[i] && a[i+2:] == b[i+2:]
}

// countChildren counts the children of a mapping or a sequence. Counting them first is cheaper than
// growing a map or a slice. ok is false for null and for a node of another kind.
func (d *decoder) countChildren(n int32, kind nodeKind, must string) (size int, ok bool) {
	if d.isNull(n) {
		return 0, false
	}
	if d.t.nodes[n].kind != kind {
		d.addFault(n, "%s: must be %s", d.describeValue(n), must)
		return 0, false
	}
	for c := d.t.nodes[n].first; c != 0; c = d.t.nodes[c].next {
		size++
	}
	return size, true
}

// mapPlan decodes a mapping into a map. A duplicate key is a fault: JSON would take the last value.
func mapPlan(typ reflect.Type) decodeFunc {
	elem := planOf(typ.Elem())
	return func(d *decoder, n int32, v reflect.Value) {
		size, ok := d.countChildren(n, mappingNode, "an object")
		if !ok {
			return
		}

		v.Set(reflect.MakeMapWithSize(typ, size))
		value := reflect.New(typ.Elem()).Elem()
		for c := d.t.nodes[n].first; c != 0; c = d.t.nodes[c].next {
			key := reflect.ValueOf(d.internText(d.t.nodes[c].key)).Convert(typ.Key())
			d.path = append(d.path, step{name: d.t.nodes[c].key, isKey: true})
			value.SetZero()
			elem(d, c, value)
			before := v.Len()
			// The map did not grow, so the key was a duplicate.
			if v.SetMapIndex(key, value); v.Len() == before {
				d.addFault(c, "given twice")
			}
			d.path = d.path[:len(d.path)-1]
		}
	}
}

// slicePlan decodes a sequence into a slice of exactly its length.
func slicePlan(typ reflect.Type) decodeFunc {
	elem := planOf(typ.Elem())
	return func(d *decoder, n int32, v reflect.Value) {
		size, ok := d.countChildren(n, sequenceNode, "a list")
		if !ok {
			return
		}

		v.Set(reflect.MakeSlice(typ, size, size))
		i := 0
		for c := d.t.nodes[n].first; c != 0; c = d.t.nodes[c].next {
			d.path = append(d.path, step{index: i})
			elem(d, c, v.Index(i))
			d.path = d.path[:len(d.path)-1]
			i++
		}
	}
}

// describeValue formats a value for messages: a string in quotes, so that "8080" and 8080 differ.
func (d *decoder) describeValue(n int32) string {
	switch node := &d.t.nodes[n]; node.kind {
	case mappingNode:
		return "an object"
	case sequenceNode:
		return "a list"
	default:
		if node.quoted || resolveType(node.text) == stringScalar {
			return strconv.Quote(node.text)
		}
		return node.text
	}
}
