package build

import "testing"

func TestRequirementsThatAreThereAreNotRepeated(t *testing.T) {
	const than = "module m\n\nrequire (\n\texample.com/a v1.0.0\n\texample.com/a/b v1.0.0 // indirect\n)\n"
	const more = "module n\n\ngo 1.26.0\n\nrequire example.com/c v1.2.0\n\nrequire (\n\texample.com/a v1.0.0\n\texample.com/d v0.0.0-2026 // indirect\n)\n\n" +
		"replace example.com/c => example.com/c v1.3.0\n"
	const want = "require example.com/c v1.2.0\nrequire example.com/d v0.0.0-2026\n"
	if got := string(requirements(more, than)); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
