// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-k8s/berth/internal/world/workload"
)

// FuzzRead verifies that no input makes the reader or the expansion panic, hang or grow without
// bound, and that errors have a line of the input.
func FuzzRead(f *testing.F) {
	for _, seed := range seeds {
		f.Add(seed)
	}
	f.Add(everyWorkload)
	f.Add(string(cluster(1, 1)))
	files, _ := filepath.Glob("testdata/*.txt")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for _, part := range strings.Split(string(text), "----\n") {
			if _, manifest, found := strings.Cut(part, "\nread\n"); found {
				f.Add(manifest)
			}
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, lenient := range []bool{false, true} {
			set, err := Read([]string{"-"}, strings.NewReader(text), Options{Lenient: lenient, Workers: 1})
			var wrong Errors
			if errors.As(err, &wrong) {
				for _, e := range wrong {
					if e.Line < 1 || e.Line > strings.Count(text, "\n")+1 || e.Text == "" {
						t.Fatalf("%v in %q", e, text)
					}
				}
			}
			if err == nil && !large(set) {
				set.Expand(1)
			}
		}
	})
}

// large reports whether Expand might create more than a thousand pods.
func large(s *Set) bool {
	total := int32(0)
	count := func(n *int32) int32 {
		if n == nil {
			return 1
		}
		return max(0, min(*n, workload.Most))
	}
	for _, w := range s.Deployments {
		total += count(w.Spec.Replicas)
	}
	for _, w := range s.ReplicaSets {
		total += count(w.Spec.Replicas)
	}
	for _, w := range s.StatefulSets {
		total += count(w.Spec.Replicas)
	}
	for _, w := range s.ReplicationControllers {
		total += count(w.Spec.Replicas)
	}
	for _, w := range s.Jobs {
		total += count(w.Spec.Parallelism)
	}
	return total > 1000
}
