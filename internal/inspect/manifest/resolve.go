// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"math"
	"strconv"
	"strings"
)

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
	switch text[0] {
	case 'y', 'Y', 't', 'T':
		return true
	}
	return len(text) == len("on") && (text[1] == 'n' || text[1] == 'N')
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
	if isFloat(plain) {
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

// isFloat accepts 1.5, .5, 1., 1e3 and signs, but not strconv's hexadecimal or named floats.
func isFloat(text string) bool {
	i, digits := 0, 0
	skip := func() {
		for i < len(text) && text[i] >= '0' && text[i] <= '9' {
			i++
			digits++
		}
	}

	sign := func() {
		if i < len(text) && (text[i] == '+' || text[i] == '-') {
			i++
		}
	}

	sign()
	skip()
	if i < len(text) && text[i] == '.' {
		i++
		skip()
	}

	// A mere sign or dot is a string.
	if digits == 0 {
		return false
	}
	if i < len(text) && (text[i] == 'e' || text[i] == 'E') {
		i++
		sign()
		digits = 0
		if skip(); digits == 0 {
			return false
		}
	}

	return i == len(text)
}

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
