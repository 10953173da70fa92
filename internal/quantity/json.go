// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package quantity

import (
	"bytes"
	"encoding/json"
	"reflect"
	"regexp"
	"strings"
)

// costly matches JSON with long exponents or digits. Escapes can hide either.
var costly = regexp.MustCompile(`[eE][-+]?[0-9]{3,}\s*["\s,}\]]|[0-9]{300}|\\u`)

// Unmarshal decodes an API object like [json.Unmarshal], and parses its quantities like [Parse].
func Unmarshal(data []byte, object any) error {
	if costly.Match(data) {
		var tree any
		decoder := json.NewDecoder(bytes.NewReader(data))
		decoder.UseNumber()
		if err := decoder.Decode(&tree); err != nil {
			return err
		}
		bounded, err := json.Marshal(boundJSON(tree, reflect.TypeOf(object)))
		if err != nil {
			return err
		}
		data = bounded
	}
	return json.Unmarshal(data, object)
}

// boundJSON returns a decoded value of type t with bounded quantities.
func boundJSON(value any, t reflect.Type) any {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == quantityType {
		return boundText(value)
	}

	switch value := value.(type) {
	case []any:
		if t.Kind() == reflect.Slice {
			for i := range value {
				value[i] = boundJSON(value[i], t.Elem())
			}
		}
	case map[string]any:
		for name, field := range value {
			if fieldType := jsonField(t, name); fieldType != nil {
				value[name] = boundJSON(field, fieldType)
			}
		}
	}
	return value
}

// boundText returns the canonical form of a quantity. It keeps invalid values: the decoder rejects
// them.
func boundText(value any) any {
	var text string
	switch value := value.(type) {
	case string:
		text = value
	case json.Number:
		text = value.String()
	default:
		return value
	}
	quantity, err := Parse(strings.TrimSpace(text))
	if err != nil {
		return value
	}
	return quantity.String()
}

// jsonField returns the type of a member of a map or a struct, nil for an unknown member. Like the
// decoder it ignores case.
func jsonField(t reflect.Type, name string) reflect.Type {
	switch t.Kind() {
	case reflect.Map:
		return t.Elem()
	case reflect.Struct:
		for field := range t.Fields() {
			tag, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			switch {
			case tag == "" && field.Anonymous:
				if found := jsonField(field.Type, name); found != nil {
					return found
				}
			case strings.EqualFold(tag, name):
				return field.Type
			}
		}
	}
	return nil
}
