// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package quantity bounds the quantities used in Berth's computations.
//
// The API accepts quantities with any exponent of 31 bits: 1e60000000 is ten characters long, and
// comparing it with 1 computes a number of 25 MB, which takes half a minute. Every tenant can write
// such a quantity into a pod or a claim. Therefore quantities are bounded on entry: in objects of
// the API, in manifests, and in device selectors.
package quantity

import (
	"math"
	"reflect"
	"strconv"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
)

// largestExponent bounds the exponent of quantities: all larger quantities become ±1e270. This is
// far beyond any 64-bit amount, so no verdict depends on the differences between larger quantities.
// It is within the range of a float64.
const largestExponent = 270

// mostDigits is the number of digits parsed of a quantity. Even for 1e270, they reach the nano
// units, to which the API rounds.
const mostDigits = largestExponent + 100

// mostPower is an exponent so large that the quantity is beyond the bound with any suffix, even n.
const mostPower = largestExponent + 20

// largestQuantity replaces all larger quantities.
var largestQuantity = resource.MustParse("1e" + strconv.Itoa(largestExponent))

// Parse returns the same quantities and errors as [resource.ParseQuantity], in time that is linear
// in the length of the text and independent of the exponent. It bounds quantities beyond
// largestExponent like Bound.
func Parse(text string) (resource.Quantity, error) {
	sign, rest := "", text
	if rest != "" && (rest[0] == '-' || rest[0] == '+') {
		sign, rest = rest[:1], rest[1:]
	}
	whole := rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789"))]
	suffix, fraction := rest[len(whole):], ""
	if after, dot := strings.CutPrefix(suffix, "."); dot {
		suffix = strings.TrimLeft(after, "0123456789")
		fraction = after[:len(after)-len(suffix)]
	}

	exponent, decimal := decimalExponent(suffix)
	if all := len(whole) + len(fraction); all == 0 || all <= mostDigits && -mostDigits <= exponent && exponent <= mostDigits {
		quantity, err := resource.ParseQuantity(text)
		return Bound(quantity), err
	}
	if decimal {
		suffix = "e0"
	}
	// The suffix decides whether the text is a quantity, and its format.
	if _, err := resource.ParseQuantity("1.0" + suffix); err != nil {
		return resource.Quantity{}, err
	}

	digits := strings.TrimLeft(whole+fraction, "0")
	// The number is 0.digits * 10^power.
	power := exponent + len(digits) - len(fraction)
	switch {
	case digits == "":
		return resource.ParseQuantity("0" + suffix)
	case power > mostPower:
		digits, power = "1", mostPower
	case power < -mostDigits:
		power = -mostDigits // rounds up to a nano unit, like every smaller number
	}
	if len(digits) > mostDigits {
		rest := digits[mostDigits:]
		digits = digits[:mostDigits]
		if strings.Trim(rest, "0") != "" {
			digits += "1" // the API rounds up
		}
	}
	digits += strings.Repeat("0", max(0, power-len(digits)))
	point := max(0, power)
	quantity, err := resource.ParseQuantity(sign + "0" + digits[:point] + "." + strings.Repeat("0", max(0, -power)) + digits[point:] + suffix)
	return Bound(quantity), err
}

// decimalExponent returns the exponent of a suffix such as e6, 0 for any other suffix. As in the
// API, the exponent wraps around at 32 bits.
func decimalExponent(suffix string) (exponent int, decimal bool) {
	if len(suffix) < 2 || suffix[0] != 'e' && suffix[0] != 'E' {
		return 0, false
	}
	parsed, err := strconv.ParseInt(suffix[1:], 10, 64)
	return int(int32(parsed)), err == nil
}

// Bound returns ±1e270 for a quantity beyond that, 0 for a zero with an exponent, and any other
// quantity unchanged. Computing with the result takes microseconds at most.
func Bound(quantity resource.Quantity) resource.Quantity {
	if isBounded(quantity) {
		return quantity
	}
	bounded := largestQuantity
	switch quantity.Sign() {
	case 0:
		bounded = resource.Quantity{Format: quantity.Format}
	case -1:
		bounded.Neg()
	}
	return bounded
}

// isBounded reports whether a quantity is within the bound. The approximation is cheap for any
// exponent; it is NaN for a zero with a large exponent. Close to the bound, an exact comparison is
// also cheap.
func isBounded(quantity resource.Quantity) bool {
	if about := math.Abs(quantity.AsApproximateFloat64()); about < 1e269 || !(about < 1e271) {
		return about < 1e269
	}
	if quantity.Sign() < 0 {
		quantity = quantity.DeepCopy()
		quantity.Neg()
	}
	return quantity.Cmp(largestQuantity) <= 0
}

// BoundAll returns an object with all quantities bounded by Bound: usually the object itself, or a
// modified copy if one of its quantities is beyond the bound.
func BoundAll[T any](object T) T {
	v := reflect.ValueOf(object)
	if v.Kind() != reflect.Pointer || v.IsNil() || quantitiesOf(v.Type()) == nil || !quantitiesOf(v.Type())(v, false) {
		return object
	}
	original, is := any(object).(runtime.Object)
	if !is {
		return object
	}
	bounded := original.DeepCopyObject()
	quantitiesOf(v.Type())(reflect.ValueOf(bounded), true)
	return bounded.(T)
}

// boundFunc reports whether a value has an unbounded quantity; bound also bounds all of them.
type boundFunc func(v reflect.Value, bound bool) (found bool)

// quantityPlans holds the boundFunc of each type, nil for types without quantities. Types are
// inspected by reflection once per process.
var quantityPlans sync.Map // of reflect.Type

// quantitiesOf returns the boundFunc of a type, nil if the type has no quantities.
func quantitiesOf(t reflect.Type) boundFunc {
	if plan, known := quantityPlans.Load(t); known {
		return plan.(boundFunc)
	}
	// Types may be recursive: until the plan is complete, it is looked up on each call.
	quantityPlans.Store(t, boundFunc(func(v reflect.Value, bound bool) bool {
		plan := quantitiesOf(t)
		return plan != nil && plan(v, bound)
	}))
	plan := planQuantities(t)
	quantityPlans.Store(t, plan)
	return plan
}

var quantityType = reflect.TypeFor[resource.Quantity]()

// planQuantities inspects a type for quantitiesOf.
func planQuantities(t reflect.Type) boundFunc {
	if t == quantityType {
		return func(v reflect.Value, bound bool) bool {
			if !bound { // a map value is not addressable
				return !isBounded(v.Interface().(resource.Quantity))
			}
			v.Set(reflect.ValueOf(Bound(v.Interface().(resource.Quantity))))
			return true
		}
	}

	switch t.Kind() {
	case reflect.Struct:
		return planFields(t)
	case reflect.Pointer, reflect.Slice, reflect.Map:
		elem := quantitiesOf(t.Elem())
		switch {
		case elem == nil:
			return nil
		case t.Kind() == reflect.Pointer:
			return func(v reflect.Value, bound bool) bool { return !v.IsNil() && elem(v.Elem(), bound) }
		case t.Kind() == reflect.Slice:
			return func(v reflect.Value, bound bool) (found bool) {
				for i := 0; i < v.Len() && (bound || !found); i++ {
					found = elem(v.Index(i), bound) || found
				}
				return found
			}
		}
		return planMap(t, elem)
	}
	return nil
}

// planFields returns the plan of a struct: the plans of its fields with quantities.
func planFields(t reflect.Type) boundFunc {
	type field struct {
		index int
		plan  boundFunc
	}
	var fields []field
	for i := range t.NumField() {
		if !t.Field(i).IsExported() {
			continue
		}
		if plan := quantitiesOf(t.Field(i).Type); plan != nil {
			fields = append(fields, field{i, plan})
		}
	}

	if fields == nil {
		return nil
	}
	return func(v reflect.Value, bound bool) (found bool) {
		for i := 0; i < len(fields) && (bound || !found); i++ {
			found = fields[i].plan(v.Field(fields[i].index), bound) || found
		}
		return found
	}
}

// planMap returns the plan of a map. Values of a map cannot be changed in place: they are replaced.
func planMap(t reflect.Type, elem boundFunc) boundFunc {
	return func(v reflect.Value, bound bool) (found bool) {
		if list, is := v.Interface().(v1.ResourceList); is && !bound { // most maps, without reflection
			for _, quantity := range list {
				if !isBounded(quantity) {
					return true
				}
			}
			return false
		}

		for all := v.MapRange(); (bound || !found) && all.Next(); {
			value := all.Value()
			if bound {
				value = reflect.New(t.Elem()).Elem()
				value.Set(all.Value())
			}
			found = elem(value, bound) || found
			if bound {
				v.SetMapIndex(all.Key(), value)
			}
		}
		return found
	}
}
