// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

const aSecret = "s3cret"

// decisive holds the names of the map[string]string fields used by decisions: labels and label
// selectors.
var decisive = map[string]bool{"Labels": true, "NodeSelector": true, "MatchLabels": true, "Selector": true}

// hide puts a secret into every annotation, every opaque parameter, every environment variable and
// every map[string]string of a value, except for decisive fields.
func hide(v reflect.Value, field string, depth int) {
	if depth > 12 {
		return
	}
	switch v.Interface().(type) {
	case resource.Quantity, metav1.Time, metav1.MicroTime, runtime.RawExtension:
		return
	case map[string]string:
		if !decisive[field] {
			v.Set(reflect.ValueOf(map[string]string{"key": aSecret}))
		}
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		one := reflect.New(v.Type().Elem())
		hide(one.Elem(), field, depth+1)
		v.Set(one)
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Field(i); f.CanSet() {
				hide(f, v.Type().Field(i).Name, depth+1)
			}
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return
		}
		one := reflect.New(v.Type().Elem()).Elem()
		hide(one, field, depth+1)
		v.Set(reflect.Append(v, one))
	}
}

// TestSecretsOfNoKindAreWritten verifies that Stripped hashes the values of annotations and the
// parameters of volume drivers, for every kind. Stripping an object twice has no further effect,
// and does not change the object.
func TestSecretsOfNoKindAreWritten(t *testing.T) {
	for kind, empty := range made {
		o := empty()
		hide(reflect.ValueOf(o).Elem(), "", 0)
		before, _ := json.Marshal(o)
		if !strings.Contains(string(before), aSecret) {
			t.Errorf("%s has no secret: %.300s", kind, before)
		}

		once := Stripped(o)
		text, err := json.Marshal(once)
		if at := strings.Index(string(text), aSecret); err != nil || at >= 0 || !strings.Contains(string(text), hashMark) {
			t.Errorf("%s: %.300s, %v", kind, text[max(0, at-200):], err)
		}
		if again, _ := json.Marshal(Stripped(once)); string(again) != string(text) {
			t.Errorf("%s, stripped twice: %s, before %s", kind, again, text)
		}
		if after, _ := json.Marshal(o); string(after) != string(before) {
			t.Errorf("%s was changed", kind)
		}
	}
}

// TestHashesCannotBeGuessed verifies that hashes depend on the key. Otherwise, a reader of a
// journal could find a short value by trying all of them. Within a process, equal values have equal
// hashes, so that changes are visible.
func TestHashesCannotBeGuessed(t *testing.T) {
	if one, other := newHasher().hashValue("yes"), newHasher().hashValue("yes"); one == other || !isHash(one) {
		t.Errorf("with two keys, the hashes are %s and %s", one, other)
	}
	if hash := hashValue("yes"); hash != hashes.hashValue("yes") || hash == (&hasher{}).hashValue("yes") {
		t.Errorf("the hash %s does not depend on the key", hash)
	}
	if hashValue("yes") == hashValue("no") {
		t.Error("changes are not visible")
	}
}

// BenchmarkHashValue measures the time to hash a typical annotation, which delays the core and the
// journal.
func BenchmarkHashValue(b *testing.B) {
	value := strings.Repeat("x", 100)
	for b.Loop() {
		hashValue(value)
	}
}

// TestRestoredAnnotations verifies that the scheduler's additions to a stripped object are written
// together with the object's current annotations.
func TestRestoredAnnotations(t *testing.T) {
	known := strippedAnnotations(map[string]string{"note": aSecret, "gone": "x"})
	known["volume.kubernetes.io/selected-node"] = "node-1"
	delete(known, "gone")
	got := Restored(known, map[string]string{"note": aSecret, "new": "y"})
	want := map[string]string{"note": aSecret, "new": "y", "volume.kubernetes.io/selected-node": "node-1"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
