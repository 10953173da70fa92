// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

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

// Conversion of scalars to fields. A plain scalar has its YAML 1.1 type (resolveType), a quoted one
// is a string, and a field accepts the same types as in JSON. Messages suggest the correct form.

// decodeScalar returns the text and type of a scalar. ok is false for a mapping or sequence, which
// is a fault, and for null; the field then stays unchanged. wanted describes the expected value in
// the fault.
func (d *decoder) decodeScalar(n int32, wanted string) (text string, typ scalarType, ok bool) {
	node := &d.t.nodes[n]
	if node.kind != scalarNode {
		d.addFault(n, "%s: must be %s", d.describeValue(n), wanted)
		return "", 0, false
	}
	// A quoted scalar is always a string.
	if node.quoted {
		return node.text, stringScalar, true
	}
	typ = resolveType(node.text)
	return node.text, typ, typ != nullScalar
}

// decodeString rejects numbers and booleans. Otherwise version: 1.10 would become 1.1, and country:
// no would become false.
func decodeString(d *decoder, n int32, v reflect.Value) {
	text, typ, ok := d.decodeScalar(n, "a string")
	if !ok {
		return
	}
	// The API server also rejects a number here, but its message does not mention quotes.
	if typ != stringScalar {
		d.addFault(n, "%s: %s, must be a string: put it in quotes", text, typ)
		return
	}
	v.SetString(d.internText(text))
}

// decodeBool accepts all of YAML 1.1's boolean words, like kubectl.
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

// decodeInt decodes integers of any width, and rejects values outside the field's range.
func decodeInt(d *decoder, n int32, v reflect.Value) {
	text, typ, ok := d.decodeScalar(n, "a whole number")
	if !ok {
		return
	}
	if typ == floatScalar {
		typ, text = intScalar, formatNumber(text) // 1e3 and 2.0 are integers
	}
	// A number beyond 64 bits does not fit in any field.
	value, isInt := int64(0), false
	if typ == intScalar {
		value, isInt = parseInt(text)
	}
	if !isInt {
		d.addFault(n, "%s: must be a whole number", d.describeValue(n))
		return
	}
	// The message includes the range of the field's type.
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
	// Infinities are numbers in YAML but not in JSON.
	value, err := strconv.ParseFloat(formatNumber(text), 64)
	if err != nil || typ != intScalar && typ != floatScalar {
		d.addFault(n, "%s: must be a number", d.describeValue(n))
		return
	}
	v.SetFloat(value)
}

// decodeBytes decodes base64, JSON's representation of bytes.
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

// decodeQuantity decodes a quantity, written as a number or as a string.
func decodeQuantity(d *decoder, n int32, v reflect.Value) {
	text, typ, ok := d.decodeScalar(n, "a quantity")
	if !ok {
		return
	}
	// Use the number sent by kubectl: 1_000 becomes 1000, and 1e3 becomes 1000.
	if typ == intScalar || typ == floatScalar {
		text = formatNumber(text)
	}
	value, err := quantity.Parse(text)
	if err != nil || typ == boolScalar {
		d.addFault(n, "%s: must be a quantity, such as 100m, 2 or 1.5Gi", d.describeValue(n))
		return
	}
	*v.Addr().Interface().(*resource.Quantity) = value
}

// decodeTime decodes times with seconds.
func decodeTime(d *decoder, n int32, v reflect.Value) {
	if value, ok := d.decodeTime(n, time.RFC3339); ok {
		v.Addr().Interface().(*metav1.Time).Time = value
	}
}

// decodeMicroTime decodes times with microseconds, as in Leases.
func decodeMicroTime(d *decoder, n int32, v reflect.Value) {
	if value, ok := d.decodeTime(n, metav1.RFC3339Micro); ok {
		v.Addr().Interface().(*metav1.MicroTime).Time = value
	}
}

// decodeDuration decodes durations in Go's format. A number without a unit is rejected, including
// 0.
func decodeDuration(d *decoder, n int32, v reflect.Value) {
	text, typ, ok := d.decodeScalar(n, "a duration")
	if !ok {
		return
	}
	value, err := time.ParseDuration(text)
	// A plain number lacks the unit.
	if err != nil || typ != stringScalar {
		d.addFault(n, "%s: must be a duration, such as 30s, 5m or 1h30m", d.describeValue(n))
		return
	}
	v.Addr().Interface().(*metav1.Duration).Duration = value
}

// decodeTime returns a time in the local zone, like unmarshalling JSON.
func (d *decoder) decodeTime(n int32, layout string) (time.Time, bool) {
	text, typ, ok := d.decodeScalar(n, "a time")
	if !ok {
		return time.Time{}, false
	}
	value, err := time.Parse(layout, text)
	// resolveType classifies a plain date as a string.
	if err != nil || typ != stringScalar {
		d.addFault(n, "%s: must be a time, such as %s", d.describeValue(n), layout)
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

	switch target := v.Addr().Interface().(*intstr.IntOrString); typ {
	// This is a percentage, the name of a port, or a number in quotes.
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

// decodeJSON decodes the few types readable only from JSON because of a custom UnmarshalJSON. Their
// faults have the line of the whole value.
func decodeJSON(d *decoder, n int32, v reflect.Value) {
	if d.isNull(n) {
		return
	}
	// Convert the value to JSON for the type's UnmarshalJSON.
	if err := json.Unmarshal(d.t.appendJSON(nil, n), v.Addr().Interface()); err != nil {
		d.addFault(n, "%s: %v", d.describeValue(n), err)
	}
}
