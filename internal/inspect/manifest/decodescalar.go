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
)

// decodeScalar returns the text and type of a scalar. Any other value is a fault.
func (d *decoder) decodeScalar(n int32, wanted string) (text string, typ scalarType, ok bool) {
	node := &d.t.nodes[n]
	if node.kind != scalarNode {
		d.addFault(n, "%s: must be %s", d.describeValue(n), wanted)
		return "", 0, false
	}
	if node.quoted {
		return node.text, stringScalar, true
	}
	typ = resolveType(node.text)
	return node.text, typ, typ != nullScalar
}

func decodeString(d *decoder, n int32, v reflect.Value) {
	text, typ, ok := d.decodeScalar(n, "a string")
	if !ok {
		return
	}
	if typ != stringScalar {
		d.addFault(n, "%s: %s, must be a string: put it in quotes", text, typ)
		return
	}
	v.SetString(d.internText(text))
}

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

func decodeInt(d *decoder, n int32, v reflect.Value) {
	text, typ, ok := d.decodeScalar(n, "a whole number")
	if !ok {
		return
	}
	if typ == floatScalar {
		typ, text = intScalar, formatNumber(text) // 1e3 and 2.0 are whole
	}
	value, isInt := int64(0), false
	if typ == intScalar {
		value, isInt = parseInt(text)
	}
	if !isInt {
		d.addFault(n, "%s: must be a whole number", d.describeValue(n))
		return
	}
	if v.OverflowInt(value) {
		most := int64(1)<<(v.Type().Bits()-1) - 1
		d.addFault(n, "%s: must be from %d to %d", text, -most-1, most)
		return
	}
	v.SetInt(value)
}

func decodeFloat(d *decoder, n int32, v reflect.Value) {
	text, typ, ok := d.decodeScalar(n, "a number")
	if !ok {
		return
	}
	value, err := strconv.ParseFloat(formatNumber(text), 64)
	if err != nil || typ != intScalar && typ != floatScalar {
		d.addFault(n, "%s: must be a number", d.describeValue(n))
		return
	}
	v.SetFloat(value)
}

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

func decodeQuantity(d *decoder, n int32, v reflect.Value) {
	text, typ, ok := d.decodeScalar(n, "a quantity")
	if !ok {
		return
	}
	if typ == intScalar || typ == floatScalar {
		text = formatNumber(text)
	}
	value, err := resource.ParseQuantity(text)
	if err != nil || typ == boolScalar {
		d.addFault(n, "%s: must be a quantity, as 100m, 2 or 1.5Gi", d.describeValue(n))
		return
	}
	*v.Addr().Interface().(*resource.Quantity) = value
}

func decodeTime(d *decoder, n int32, v reflect.Value) {
	if value, ok := d.decodeTime(n, time.RFC3339); ok {
		v.Addr().Interface().(*metav1.Time).Time = value
	}
}

func decodeMicroTime(d *decoder, n int32, v reflect.Value) {
	if value, ok := d.decodeTime(n, metav1.RFC3339Micro); ok {
		v.Addr().Interface().(*metav1.MicroTime).Time = value
	}
}

func decodeDuration(d *decoder, n int32, v reflect.Value) {
	text, typ, ok := d.decodeScalar(n, "a duration")
	if !ok {
		return
	}
	value, err := time.ParseDuration(text)
	if err != nil || typ != stringScalar {
		d.addFault(n, "%s: must be a duration, as 30s, 5m or 1h30m", d.describeValue(n))
		return
	}
	v.Addr().Interface().(*metav1.Duration).Duration = value
}

func (d *decoder) decodeTime(n int32, layout string) (time.Time, bool) {
	text, typ, ok := d.decodeScalar(n, "a time")
	if !ok {
		return time.Time{}, false
	}
	value, err := time.Parse(layout, text)
	if err != nil || typ != stringScalar {
		d.addFault(n, "%s: must be a time, as %s", d.describeValue(n), layout)
		return time.Time{}, false
	}
	return value.Local(), true
}

func decodeIntOrString(d *decoder, n int32, v reflect.Value) {
	text, typ, ok := d.decodeScalar(n, "a number or a string")
	if !ok {
		return
	}

	target := v.Addr().Interface().(*intstr.IntOrString)
	switch typ {
	case stringScalar:
		*target = intstr.FromString(d.internText(text))
	case intScalar:
		if value, ok := parseInt(text); ok && value == int64(int32(value)) {
			*target = intstr.FromInt32(int32(value))
			return
		}
		fallthrough
	default:
		d.addFault(n, "%s: must be a whole number or a string", text)
	}
}

// decodeJSON is for the few types that can only be read from JSON.
func decodeJSON(d *decoder, n int32, v reflect.Value) {
	if d.isNull(n) {
		return
	}
	if err := json.Unmarshal(d.t.appendJSON(nil, n), v.Addr().Interface()); err != nil {
		d.addFault(n, "%s: %v", d.describeValue(n), err)
	}
}
