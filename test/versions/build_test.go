// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package versions

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestNewestIsTheLastPatchThatIsARelease(t *testing.T) {
	listed := strings.Fields("v1.34.0 v1.34.9 v1.34.10 v1.35.0-rc.1 v1.35.0 v1.35.4 v1.36.0-alpha.1 v2.35.9")
	for minor, want := range map[string]string{"1.34": "v1.34.10", "1.35": "v1.35.4"} {
		if got, err := newestOf(listed, minor); err != nil || got != want {
			t.Errorf("of %s: %s (%v), want %s", minor, got, err, want)
		}
	}
	for _, minor := range []string{"1.36", "1.3", "1", "next"} {
		if got, err := newestOf(listed, minor); err == nil {
			t.Errorf("of %s: %s, and there is none", minor, got)
		}
	}
}

// TestAReleaseIsBuiltOfWhatItRequires verifies that the generated go.mod requires the modules
// released with k8s.io/kubernetes in the same release, and other modules in the required version.
func TestAReleaseIsBuiltOfWhatItRequires(t *testing.T) {
	own := &goMod{}
	if err := json.Unmarshal([]byte(`{"Module": {"Path": "k8s.io/kubernetes"}, "Go": "1.25.0", "Godebug": [{"Key": "default", "Value": "go1.25"}],
		"Require": [{"Path": "go.uber.org/zap", "Version": "v1.27.0"}, {"Path": "k8s.io/api", "Version": "v0.0.0"}, {"Path": "k8s.io/klog/v2", "Version": "v2.130.1", "Indirect": true}]}`), own); err != nil {
		t.Fatal(err)
	}
	const want = `module versions

go 1.25.0

godebug default=go1.25
require k8s.io/kubernetes v1.35.4
require go.uber.org/zap v1.27.0 // indirect
replace k8s.io/api => k8s.io/api v0.35.4
require k8s.io/api v0.35.4 // indirect
require k8s.io/klog/v2 v2.130.1 // indirect
`
	if got, err := own.module("v1.35.4"); err != nil || string(got) != want {
		t.Errorf("(%v) %s\nwant %s", err, got, want)
	}
}
