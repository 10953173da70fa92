// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"encoding/base64"
	"encoding/json"
	"math"
	"reflect"
	"regexp"
	"strconv"
	"strings"
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

// decodeAs decodes a scalar by parse, and reports a value for which parse returns false as a
// fault. examples follow the expected value in that fault.
func decodeAs[T any](d *decoder, n int32, wanted, examples string, parse func(text string, typ scalarType) (T, bool)) (value T, ok bool) {
	text, typ, ok := d.decodeScalar(n, wanted)
	if !ok {
		return value, false
	}
	if value, ok = parse(text, typ); !ok {
		d.addFault(n, "%s: must be %s%s", d.describeValue(n), wanted, examples)
	}
	return value, ok
}

// scalarPlan returns a function that decodes a scalar like decodeAs, and stores it by set.
func scalarPlan[T any](wanted, examples string, parse func(string, scalarType) (T, bool), set func(reflect.Value, T)) decodeFunc {
	return func(d *decoder, n int32, v reflect.Value) {
		if value, ok := decodeAs(d, n, wanted, examples, parse); ok {
			set(v, value)
		}
	}
}

// decodeBool accepts all of YAML 1.1's boolean words, like kubectl.
var decodeBool = scalarPlan("true or false", "", func(text string, typ scalarType) (value, ok bool) {
	ok = typ == boolScalar
	return ok && parseBool(text), ok
}, reflect.Value.SetBool)

// decodeInt decodes integers of any width, and rejects values outside the field's range.
func decodeInt(d *decoder, n int32, v reflect.Value) {
	value, ok := decodeAs(d, n, "a whole number", "", func(text string, typ scalarType) (int64, bool) {
		if typ == floatScalar {
			typ, text = intScalar, formatNumber(text) // 1e3 and 2.0 are integers
		}
		value, isInt := parseInt(text) // a number beyond 64 bits does not fit in any field
		return value, isInt && typ == intScalar
	})
	switch {
	case !ok:
	case v.OverflowInt(value): // the message includes the range of the field's type
		most := int64(1)<<(v.Type().Bits()-1) - 1
		d.addFault(n, "%s: must be from %d to %d", d.describeValue(n), -most-1, most)
	default:
		v.SetInt(value)
	}
}

// decodeFloat decodes any number.
var decodeFloat = scalarPlan("a number", "", func(text string, typ scalarType) (float64, bool) {
	// Infinities are numbers in YAML but not in JSON.
	value, err := strconv.ParseFloat(formatNumber(text), 64)
	return value, err == nil && (typ == intScalar || typ == floatScalar)
}, reflect.Value.SetFloat)

// decodeBytes decodes base64, JSON's representation of bytes.
var decodeBytes = scalarPlan("base64", "", func(text string, _ scalarType) ([]byte, bool) {
	value, err := base64.StdEncoding.DecodeString(text)
	return value, err == nil
}, reflect.Value.SetBytes)

// decodeQuantity decodes a quantity, written as a number or as a string.
var decodeQuantity = scalarPlan("a quantity", ", such as 100m, 2 or 1.5Gi", func(text string, typ scalarType) (resource.Quantity, bool) {
	// Use the number sent by kubectl: 1_000 becomes 1000, and 1e3 becomes 1000.
	if typ == intScalar || typ == floatScalar {
		text = formatNumber(text)
	}
	value, err := quantity.Parse(text)
	return value, err == nil && typ != boolScalar
}, func(v reflect.Value, value resource.Quantity) { *v.Addr().Interface().(*resource.Quantity) = value })

// decodeTime decodes times with seconds.
var decodeTime = timePlan(time.RFC3339, func(v reflect.Value, t time.Time) { v.Addr().Interface().(*metav1.Time).Time = t })

// decodeMicroTime decodes times with microseconds, as in Leases.
var decodeMicroTime = timePlan(metav1.RFC3339Micro,
	func(v reflect.Value, t time.Time) { v.Addr().Interface().(*metav1.MicroTime).Time = t })

// decodeDuration decodes durations in Go's format. A number without a unit is rejected, including
// 0.
var decodeDuration = scalarPlan("a duration", ", such as 30s, 5m or 1h30m", func(text string, typ scalarType) (time.Duration, bool) {
	value, err := time.ParseDuration(text)
	return value, err == nil && typ == stringScalar // a plain number lacks the unit
}, func(v reflect.Value, d time.Duration) { v.Addr().Interface().(*metav1.Duration).Duration = d })

// timePlan decodes a time as one in the local zone, like unmarshalling JSON.
func timePlan(layout string, set func(reflect.Value, time.Time)) decodeFunc {
	return scalarPlan("a time", ", such as "+layout, func(text string, typ scalarType) (time.Time, bool) {
		value, err := time.Parse(layout, text)
		return value.Local(), err == nil && typ == stringScalar // resolveType classifies a plain date as a string
	}, set)
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

// scalarType is the type of a plain scalar. Quoted scalars are always strings.
type scalarType uint8

const (
	stringScalar scalarType = iota
	nullScalar
	boolScalar
	intScalar
	floatScalar
)

// String returns the type for messages. Both kinds of numbers are "a number".
func (s scalarType) String() string {
	return [...]string{"a string", "null", "a boolean", "a number", "a number"}[s]
}

// resolveType returns the type of a plain scalar like kubectl's YAML library, by the rules of YAML
// 1.1, including the booleans yes and off. Input rejected by kubectl is thus rejected here as well:
//
//	value: on        a boolean: refused for a string, as in env
//	value: 0777      a number: 511
//	value: 1e3       a number: 1000
//	value: 100m      a string
//	value: 1_000     a number: 1000
//	value: 12:30     a string
func resolveType(text string) scalarType {
	if text == "" {
		return nullScalar
	}
	// The first letter decides for most texts. This runs for each plain scalar of a cluster.
	switch c := text[0]; {
	case c >= '0' && c <= '9' || c == '+' || c == '-':
		return resolveNumber(text)
	case c == '.':
		if _, err := strconv.ParseFloat(text, 64); err == nil || isInfinite(text) {
			return floatScalar
		}
		return stringScalar
	// Most scalars are neither booleans nor null, because they begin with another letter or are too
	// long.
	case strings.IndexByte("yYnNtTfFoO~", c) < 0 || len(text) > len("false"):
		return stringScalar
	}

	switch text {
	case "~", "null", "Null", "NULL":
		return nullScalar
	case "y", "Y", "yes", "Yes", "YES", "on", "On", "ON", "true", "True", "TRUE",
		"n", "N", "no", "No", "NO", "off", "Off", "OFF", "false", "False", "FALSE":
		return boolScalar
	}
	return stringScalar
}

// isInfinite reports whether a text is one of YAML's words for infinity and not-a-number.
func isInfinite(text string) bool {
	switch text {
	case ".nan", ".NaN", ".NAN", ".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF", "-.inf", "-.Inf", "-.INF":
		return true
	}
	return false
}

// parseBool returns the value of a scalar with the type boolScalar: true if it begins with y or t,
// or is "on".
func parseBool(text string) bool {
	return strings.IndexByte("yYtT", text[0]) >= 0 || strings.EqualFold(text, "on")
}

// resolveNumber implements resolveType for text beginning with a digit or a sign.
func resolveNumber(text string) scalarType {
	if isInfinite(text) {
		return floatScalar
	}
	if strings.IndexFunc(text, func(r rune) bool { return !strings.ContainsRune("0123456789abcdefABCDEFxXoOpP+-._", r) }) >= 0 {
		return stringScalar // such as 100m, 1Gi, times
	}
	// Test for dates before numbers: 2006-01-02 has only digits and dashes.
	if isDate(text) {
		return stringScalar
	}
	if _, ok := parseInt(text); ok {
		return intScalar
	}
	// Integers beyond int64 are also numbers. They are rejected by fields of a smaller range.
	plain := strings.ReplaceAll(text, "_", "")
	if _, err := strconv.ParseUint(plain, 0, 64); err == nil {
		return intScalar
	}
	if floatText.MatchString(plain) {
		if _, err := strconv.ParseFloat(plain, 64); err == nil {
			return floatScalar
		}
	}
	return stringScalar
}

// parseInt parses an integer in YAML 1.1 notation: 0x1f, 0b11, 0777 (octal), 1_000. ok is false for
// values outside int64.
func parseInt(text string) (int64, bool) {
	plain := strings.ReplaceAll(text, "_", "")
	if n, err := strconv.ParseInt(plain, 0, 64); err == nil {
		return n, true
	}
	if digits, found := strings.CutPrefix(plain, "0b"); found {
		n, err := strconv.ParseInt(digits, 2, 64)
		return n, err == nil
	}
	if digits, found := strings.CutPrefix(plain, "-0b"); found {
		n, err := strconv.ParseInt("-"+digits, 2, 64)
		return n, err == nil
	}
	return 0, false
}

// isDate reports whether a text looks like 2006-01-02, a time in YAML and a string in JSON. Time
// fields are strings, so it is a string here.
func isDate(text string) bool {
	return len(text) > 4 && text[4] == '-' && strings.IndexFunc(text[:4], func(r rune) bool { return r < '0' || r > '9' }) < 0
}

// floatText matches 1.5, .5, 1., 1e3 and signs, but not strconv's hexadecimal or named floats.
var floatText = regexp.MustCompile(`^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$`)

// formatNumber prints a plain number in the JSON form used by kubectl: 0x10 as 16, 2.0 as 2. It
// returns any other text unchanged, which is a fault wherever a number is required.
func formatNumber(text string) string {
	if n, ok := parseInt(text); ok {
		return strconv.FormatInt(n, 10)
	}
	plain := strings.ReplaceAll(text, "_", "")
	if n, err := strconv.ParseUint(plain, 0, 64); err == nil {
		return strconv.FormatUint(n, 10)
	}
	f, err := strconv.ParseFloat(plain, 64)
	if err != nil || math.IsInf(f, 0) || math.IsNaN(f) {
		return text
	}
	// Write whole numbers without an exponent, as far as a float represents them exactly.
	if f == math.Trunc(f) && math.Abs(f) < 1e15 {
		return strconv.FormatFloat(f, 'f', -1, 64)
	}
	return strconv.FormatFloat(f, 'g', -1, 64)
}
