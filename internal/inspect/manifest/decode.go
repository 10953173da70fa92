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

// decoder turns a tree into an API object by the json tags of its type. It is as strict as
// the API server with fieldValidation=Strict: no unknown field, no duplicate one, no value of
// another type. It continues after a fault, so that one run reports them all.
//
// It does what converting YAML to JSON and unmarshalling that would do, without the JSON
// between: of a file with a whole cluster, that is most of the time and memory. A decoder is
// used by one goroutine.
type decoder struct {
	// t is the object's document, path is the field that is being read, and faults are what
	// was found wrong so far. All are of the current object.
	t      *tree
	path   []step
	faults []problem
	// unknown fields are kept apart: in an object printed by an API server they are newer than
	// Berth, not wrong.
	unknown []problem
	// words has each short text that was decoded, once: the thousands of pods of a workload
	// share their labels, images and names of volumes.
	words map[string]string
}

// step is one element of a field path: a name, or an index if the name is "".
type step struct {
	name  string
	index int
	isKey bool // a key of a map, written in brackets
}

// problem is one thing wrong with a field.
type problem struct {
	line int32
	path string
	text string
}

// maxWords bounds the table of interned texts: label values, images, names. Beyond it the
// table is emptied between two objects.
const maxWords = 1 << 16

// newDecoder returns a decoder without any words.
func newDecoder() *decoder { return &decoder{words: map[string]string{}} }

// resetFor prepares for a new object. The faults of the one before are the caller's by then.
func (d *decoder) resetFor(t *tree) {
	d.t, d.path, d.faults, d.unknown = t, d.path[:0], nil, nil
	if len(d.words) > maxWords {
		clear(d.words)
	}
}

// addFault adds a fault of the value n, at the field that is being read.
func (d *decoder) addFault(n int32, format string, args ...any) {
	d.faults = append(d.faults, problem{d.t.nodes[n].line, d.fieldPath(), fmt.Sprintf(format, args...)})
}

// fieldPath writes the path as upstream's validation does:
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

// internText copies a text, so that it does not keep its document in memory. Long texts, such
// as scripts and annotations, are seldom the same, and are not kept.
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

// decodeFunc writes node n into v, which is settable. A scalar that is at fault leaves v as
// it is.
type decodeFunc func(d *decoder, n int32, v reflect.Value)

// plans has how each type is decoded. Types are looked at by reflection once per process, not
// once per object; all decoders share the result.
var plans sync.Map // reflect.Type to decodeFunc

// planOf returns how values of a type are decoded. It is safe for concurrent use.
func planOf(typ reflect.Type) decodeFunc {
	if plan, found := plans.Load(typ); found {
		return plan.(decodeFunc)
	}
	// Types are recursive, so the plan is stored before it is complete.
	var once sync.Once
	var plan decodeFunc
	// CompositePodGroupTemplate has a list of its own type, for one.
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

// newPlan looks at a type and returns how its values are decoded. What has a JSON format of
// its own, apart from the common types here, goes by way of JSON.
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

	// Types with a format of their own, apart from those above, are few and small.
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

// isNull reports whether a value is null or missing: both leave a field as it is, as in JSON.
func (d *decoder) isNull(n int32) bool {
	node := &d.t.nodes[n]
	return node.kind == scalarNode && !node.quoted && resolveType(node.text) == nullScalar
}

// pointerPlan decodes into a new value, unless it is null.
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

// fieldPlan is how to reach a field, through inlined structs such as ObjectMeta, and how to
// read it.
type fieldPlan struct {
	index  []int
	number int // among the fields of the struct, to find duplicates
	decode decodeFunc
}

// structPlan decodes a mapping into a struct. Unknown fields are collected apart from other
// faults, and parser.unknownFields decides what they are.
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

		// A bit for each field, instead of a map for each object. No type of the API has 256
		// fields.
		var seen [4]uint64
		for c := d.t.nodes[n].first; c != 0; c = d.t.nodes[c].next {
			key := d.t.nodes[c].key
			d.path = append(d.path, step{name: key})
			// Names are compared exactly; encoding/json would ignore the case.
			field := fields[key]
			switch {
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

// collectFields adds the fields of a struct by their JSON names, those of inlined structs
// included. index leads to the struct from the outermost one.
func collectFields(typ reflect.Type, index []int, fields map[string]*fieldPlan) {
	for i := range typ.NumField() {
		field := typ.Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		at := append(slices.Clone(index), i)
		switch {
		// As encoding/json does.
		case !field.IsExported() || name == "-":
		case name == "" && (field.Anonymous || strings.Contains(options, "inline")):
			collectFields(field.Type, at, fields)
		case name != "":
			fields[name] = &fieldPlan{index: at, number: len(fields), decode: fieldDecoder(field)}
		}
	}
}

// fieldDecoder skips managed fields, which are large and irrelevant to a scheduler.
func fieldDecoder(field reflect.StructField) decodeFunc {
	if field.Name == "ManagedFields" {
		return func(*decoder, int32, reflect.Value) {}
	}
	return planOf(field.Type)
}

// suggestField returns the field that was probably meant: one that differs only in case, or
// by one typing error. It is empty if there is none. Among several, the alphabetical order
// decides.
func suggestField(key string, fields map[string]*fieldPlan) string {
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if strings.EqualFold(name, key) || len(key) > 2 && oneSlip(strings.ToLower(name), strings.ToLower(key)) {
			return "; did you mean " + name + "?"
		}
	}
	return ""
}

// oneSlip reports whether two words differ by one letter missing, added or wrong, or by two
// letters swapped: replica and replicas, nodeNmae and nodeName.
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

// countChildren counts the parts of a mapping or a sequence: they are linked, and counting is
// cheaper than a map or a slice that grows. ok is false for null, and for what must be of another
// kind.
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

// mapPlan decodes a mapping into a map. A key that is given twice is a fault: JSON would take
// the last one.
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
			// The map did not grow, so the key was there.
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

// describeValue returns a value as messages show it: a string in quotes, so that "8080" and
// 8080 differ.
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
