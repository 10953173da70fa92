// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"sigs.k8s.io/yaml"
)

// TestFindings runs the text files of partial clusters and their expected findings. The first
// command of a file, usual, has the defaults for all other clusters in the file.
func TestFindings(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var usual string
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "usual" {
				usual = d.Input
				return ""
			}
			facts := Facts{WebhookEndpoints: -1}
			for _, text := range []string{usual, d.Input} {
				if err := yaml.UnmarshalStrict([]byte(text), &facts); err != nil {
					d.Fatalf(t, "%v", err)
				}
			}
			var out strings.Builder
			if err := NewAnswer(facts.Version, Judge(&facts)).Write(&out, ""); err != nil {
				d.Fatalf(t, "%v", err)
			}
			return out.String()
		})
	})
}

func TestLevelsHold(t *testing.T) {
	a := NewAnswer("v1.36.3", []Finding{{Level: OK}, {Level: Note}, {Level: Warning}, {Level: Problem}})
	if a.Held(Problem) != 1 || a.Held(Warning) != 2 {
		t.Errorf("%d problems, %d warnings or more", a.Held(Problem), a.Held(Warning))
	}
	var out strings.Builder
	if err := a.Write(&out, "json"); err != nil || !strings.Contains(out.String(), `"kind": "Check"`) {
		t.Errorf("%v: %s", err, out.String())
	}
}

func FuzzMinor(f *testing.F) {
	for _, seed := range []string{"v1.36.3", "v1.34+", "1.35.2-eks-1", "v2", "", "."} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, version string) {
		if minor := MinorOf(version); minor < -1 {
			t.Errorf("%q has minor %d", version, minor)
		}
	})
}
