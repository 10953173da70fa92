package simulate

import "testing"

// A generated name that is taken is not given again: of some ten thousand pods, two would have the
// same.
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
