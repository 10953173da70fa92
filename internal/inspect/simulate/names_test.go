// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import "testing"

// TestGeneratedNamesDiffer verifies that generated names skip taken names. Without this, two of
// some ten thousand pods would probably have the same name.
func TestGeneratedNamesDiffer(t *testing.T) {
	s := &pods{named: map[Name]*pod{}}
	for range 3 {
		name := Name{"default", s.generateName("default", "web-")}
		if s.named[name] != nil {
			t.Fatalf("%s was given before", name.Name)
		}
		s.named[name] = &pod{}
	}
}
