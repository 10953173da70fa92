package manifest

import (
	"encoding/base64"
	"encoding/json"
	"reflect"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-k8s/berth/internal/quantity"
)

// How scalars become fields. A plain scalar has the type that YAML 1.1 gives it
// (resolveType), a quoted one is a string, and a field accepts what JSON with that type would
// let it accept. Messages say what to write instead.

// decodeScalar returns the text and type of a scalar. A mapping or sequence is a fault, and
// null is none: ok is false for both, and the field stays as it is. wanted is for the
// message.
func (d *decoder) decodeScalar(n int32, wanted string) (text string, typ scalarType, ok bool) {
	node := &d.t.nodes[n]
	if node.kind != scalarNode {
		d.addFault(n, "%s: must be %s", d.describeValue(n), wanted)
		return "", 0, false
	}
	// Quotes make it a string, whatever it looks like.
	if node.quoted {
		return node.text, stringScalar, true
	}
	typ = resolveType(node.text)
	return node.text, typ, typ != nullScalar
}

// decodeString refuses numbers and booleans: version: 1.10 would otherwise become 1.1, and
// country: no false.
func decodeString(d *decoder, n int32, v reflect.Value) {
	text, typ, ok := d.decodeScalar(n, "a string")
	if !ok {
		return
	}
	// The API server refuses a number here, too, with a message that does not mention
	// quotes.
	if typ != stringScalar {
		d.addFault(n, "%s: %s, must be a string: put it in quotes", text, typ)
		return
	}
	v.SetString(d.internText(text))
}

// decodeBool accepts all words that YAML 1.1 takes for booleans, as kubectl does.
func decodeBool(d *decoder, n int32, v reflect.Value) {
	text, typ, ok := d.decodeScalar(n, "true or false")
	if !ok {
		return
	}
	if typ != boolScalar {
		d.addFault(n, "%s: must be true or false", d.describeValue(n))
		return
	}
	v.SetBool(parseBool(text))
}

// decodeInt decodes whole numbers of any width, and refuses those that do not fit in it.
func decodeInt(d *decoder, n int32, v reflect.Value) {
	text, typ, ok := d.decodeScalar(n, "a whole number")
	if !ok {
		return
	}
	if typ == floatScalar {
		typ, text = intScalar, formatNumber(text) // 1e3 and 2.0 are whole
	}
	// A number beyond 64 bits is no whole number that any field could hold.
	value, isInt := int64(0), false
	if typ == intScalar {
		value, isInt = parseInt(text)
	}
	if !isInt {
		d.addFault(n, "%s: must be a whole number", d.describeValue(n))
		return
	}
	// The message names the range, which is that of the field's type.
	if v.OverflowInt(value) {
		most := int64(1)<<(v.Type().Bits()-1) - 1
		d.addFault(n, "%s: must be from %d to %d", text, -most-1, most)
		return
	}
	v.SetInt(value)
}

// decodeFloat decodes any number.
func decodeFloat(d *decoder, n int32, v reflect.Value) {
	text, typ, ok := d.decodeScalar(n, "a number")
	if !ok {
		return
	}
	// Infinities are numbers to YAML and not to JSON.
	value, err := strconv.ParseFloat(formatNumber(text), 64)
	if err != nil || typ != intScalar && typ != floatScalar {
		d.addFault(n, "%s: must be a number", d.describeValue(n))
		return
	}
	v.SetFloat(value)
}

// decodeBytes decodes base64, as JSON has bytes.
func decodeBytes(d *decoder, n int32, v reflect.Value) {
	text, _, ok := d.decodeScalar(n, "base64")
	if !ok {
		return
	}
	value, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		d.addFault(n, "%s: must be base64", d.describeValue(n))
		return
	}
	v.SetBytes(value)
}

// decodeQuantity decodes a quantity, which may be written as a number or as a string.
func decodeQuantity(d *decoder, n int32, v reflect.Value) {
	text, typ, ok := d.decodeScalar(n, "a quantity")
	if !ok {
		return
	}
	// As kubectl sends it: 1_000 becomes 1000, and 1e3 becomes 1000.
	if typ == intScalar || typ == floatScalar {
		text = formatNumber(text)
	}
	value, err := quantity.Parse(text)
	if err != nil || typ == boolScalar {
		d.addFault(n, "%s: must be a quantity, as 100m, 2 or 1.5Gi", d.describeValue(n))
		return
	}
	*v.Addr().Interface().(*resource.Quantity) = value
}

// decodeTime decodes times of seconds.
func decodeTime(d *decoder, n int32, v reflect.Value) {
	if value, ok := d.decodeTime(n, time.RFC3339); ok {
		v.Addr().Interface().(*metav1.Time).Time = value
	}
}

// decodeMicroTime decodes times of microseconds, as Leases have them.
func decodeMicroTime(d *decoder, n int32, v reflect.Value) {
	if value, ok := d.decodeTime(n, metav1.RFC3339Micro); ok {
		v.Addr().Interface().(*metav1.MicroTime).Time = value
	}
}

// decodeDuration decodes durations as Go writes them. A number without a unit is refused, 0
// included.
func decodeDuration(d *decoder, n int32, v reflect.Value) {
	text, typ, ok := d.decodeScalar(n, "a duration")
	if !ok {
		return
	}
	value, err := time.ParseDuration(text)
	// A plain number is no duration: its unit is missing.
	if err != nil || typ != stringScalar {
		d.addFault(n, "%s: must be a duration, as 30s, 5m or 1h30m", d.describeValue(n))
		return
	}
	v.Addr().Interface().(*metav1.Duration).Duration = value
}

// decodeTime returns a time in the local zone, as unmarshalling JSON does.
func (d *decoder) decodeTime(n int32, layout string) (time.Time, bool) {
	text, typ, ok := d.decodeScalar(n, "a time")
	if !ok {
		return time.Time{}, false
	}
	value, err := time.Parse(layout, text)
	// A plain date is a string to resolveType, so it comes here as one.
	if err != nil || typ != stringScalar {
		d.addFault(n, "%s: must be a time, as %s", d.describeValue(n), layout)
		return time.Time{}, false
	}
	return value.Local(), true
}

// decodeIntOrString decodes a port or a percentage: a quoted number is a string.
func decodeIntOrString(d *decoder, n int32, v reflect.Value) {
	text, typ, ok := d.decodeScalar(n, "a number or a string")
	if !ok {
		return
	}

	target := v.Addr().Interface().(*intstr.IntOrString)
	switch typ {
	// A percentage, a name of a port, or a number in quotes.
	case stringScalar:
		*target = intstr.FromString(d.internText(text))
	case intScalar:
		// IntOrString has 32 bits.
		if value, ok := parseInt(text); ok && value == int64(int32(value)) {
			*target = intstr.FromInt32(int32(value))
			return
		}
		fallthrough
	default:
		d.addFault(n, "%s: must be a whole number or a string", text)
	}
}

// decodeJSON is for the few types that can only be read from JSON, because they have an
// UnmarshalJSON of their own. Their faults have no line within the value.
func decodeJSON(d *decoder, n int32, v reflect.Value) {
	if d.isNull(n) {
		return
	}
	// The value is written as JSON for the type's own UnmarshalJSON.
	if err := json.Unmarshal(d.t.appendJSON(nil, n), v.Addr().Interface()); err != nil {
		d.addFault(n, "%s: %v", d.describeValue(n), err)
	}
}
