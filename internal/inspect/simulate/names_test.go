// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import "testing"

// Generated names skip taken names: among some ten thousand pods, two would otherwise collide.
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
