// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/inspect/explain"
	"github.com/berth-k8s/berth/internal/inspect/replay"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/inspect/survey"
	"github.com/berth-k8s/berth/internal/inspect/whatif"
)

// TestEveryFieldOfAnswersIsDocumented verifies that the pages document the JSON fields of all
// results.
func TestEveryFieldOfAnswersIsDocumented(t *testing.T) {
	for _, c := range []struct {
		pages   string
		answers []any
	}{
		{"reference/answers.md", []any{explain.Explanation{}, explain.GroupExplanation{}, explain.Several{}}},
		{"reference/answers.md", []any{survey.Pending{}, survey.Evictions{}, survey.Capacity{}}},
		{"reference/answers.md", []any{simulate.Simulation{}}},
		{"reference/answers.md", []any{whatif.Forecast{}}},
		{"reference/answers.md", []any{rebalance.Plan{}}},
		{"reference/answers.md", []any{replay.Played{}, replay.Compared{}}},
	} {
		var text strings.Builder
		for page := range strings.FieldsSeq(c.pages) {
			data, err := os.ReadFile(filepath.Join("..", "..", "docs", page))
			if err != nil {
				t.Fatal(err)
			}
			text.Write(data)
		}
		for _, answer := range c.answers {
			for name, where := range fieldsOf(reflect.TypeOf(answer), map[string]string{}) {
				if !strings.Contains(text.String(), "`"+name+"`") && !strings.Contains(text.String(), name+"[]`") {
					t.Errorf("docs/%s do not say what %q of %s is", c.pages, name, where)
				}
			}
		}
	}
}

// fieldsOf adds the JSON field names of a type and its nested types, with their locations.
func fieldsOf(typ reflect.Type, fields map[string]string) map[string]string {
	switch typ.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		return fieldsOf(typ.Elem(), fields)
	case reflect.Struct:
	default:
		return fields
	}
	if typ.Name() != "" && !strings.Contains(typ.PkgPath(), "/internal/") {
		return fields
	}
	for i := range typ.NumField() {
		f := typ.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" {
			continue // not in answers
		}
		if name != "" && name != "apiVersion" && name != "kind" { // these fields are common to all answers
			fields[name] = typ.String()
		}
		if name != "" || f.Anonymous {
			fieldsOf(f.Type, fields)
		}
	}
	return fields
}
