package simulate

import "testing"

// A generated name that is taken is not given again: of some ten thousand pods, two would have the
// same.
func TestGeneratedNamesDiffer(t *testing.T) {
	w := &World{pods: map[Name]*pod{}}
	for range 3 {
		name := Name{"default", w.generated("default", "web-")}
		if w.pods[name] != nil {
			t.Fatalf("%s was given before", name.Name)
		}
		w.pods[name] = &pod{}
	}
}
