// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"encoding/json"
	"maps"
	"math/rand"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/randfill"
	"sigs.k8s.io/yaml"
)

// TestEveryFieldOfEveryKindIsDecodedAsJSONIs compares the decoder with encoding/json for every kind
// with every field set, as JSON and as YAML.
func TestEveryFieldOfEveryKindIsDecodedAsJSONIs(t *testing.T) {
	filler := fuzzer.FuzzerFor(fuzzer.MergeFuzzerFuncs(metafuzzer.Funcs, plainTexts), rand.NewSource(1), serializer.NewCodecFactory(runtime.NewScheme())).
		NilChance(0.1).NumElements(1, 2).MaxDepth(100)
	p := &parser{decoder: newDecoder()}
	for _, name := range slices.Sorted(maps.Keys(kinds)) {
		k := kinds[name]
		for range 8 {
			object := reflect.New(k.typ)
			filler.Fill(object.Interface())
			asJSON, err := json.Marshal(object.Interface())
			if err != nil {
				t.Fatal(err)
			}
			asYAML, err := yaml.JSONToYAML(asJSON)
			if err != nil {
				t.Fatal(err)
			}
			want := reflect.New(k.typ).Interface()
			if err := json.Unmarshal(asJSON, want); err != nil {
				t.Fatal(err)
			}
			for _, c := range []chunk{{text: string(asJSON), line: 1, json: true}, {text: string(asYAML), line: 1}} {
				if !p.readTree(c) {
					if fault := parseLibrary(&p.tree, c.text, 1); fault != nil {
						t.Fatal(fault.text)
					}
				}
				got := reflect.New(k.typ)
				p.decoder.resetFor(&p.tree)
				planOf(k.typ)(p.decoder, 0, got.Elem())
				for _, fault := range append(p.decoder.faults, p.decoder.unknown...) {
					t.Fatalf("%s: %s: %s\n%s", name, fault.path, fault.text, c.text)
				}
				if !apiequality.Semantic.DeepEqual(want, got.Interface()) {
					t.Fatalf("%s, want -, got +:\n%s", name, cmp.Diff(want, got.Interface()))
				}
			}
		}
	}
}

// plainTexts fills some types with restricted values, and clears fields that the decoder skips or
// that are recursive.
func plainTexts(serializer.CodecFactory) []any {
	return []any{
		func(entries *[]metav1.ManagedFieldsEntry, c randfill.Continue) { *entries = nil },
		func(templates *[]schedulingv1beta1.CompositePodGroupTemplate, c randfill.Continue) { *templates = nil }, // the type is recursive
		func(raw *runtime.RawExtension, c randfill.Continue) { raw.Raw = []byte(`{"a":[1,"b",null,true]}`) },
		func(time *metav1.MicroTime, c randfill.Continue) {
			*time = metav1.NewMicroTime(metav1.Unix(c.Int63n(1e9), 0).Time)
		},
	}
}
