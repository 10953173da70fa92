// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package advice

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/berth-k8s/berth/internal/inspect/explain"
)

var (
	towns = flag.Int("towns", 30, "random clusters")
	first = flag.Uint64("first", 0, "the first seed")
)

// explained returns the explanation of the town's pod, or nil if the pod is not pending.
func (c *town) explained(t *testing.T) *explain.Explanation {
	t.Helper()
	u, err := c.visit()
	if err != nil {
		t.Fatalf("town %d: %v", c.seed, err)
	}
	if u.runs() {
		return nil
	}
	if u, err = c.visit(); err != nil {
		t.Fatal(err)
	}
	e, err := explain.Of(u.w, explain.Options{Namespace: "default", Name: c.pod.Name})
	if err != nil {
		t.Fatalf("town %d: %v", c.seed, err)
	}
	return e
}

// TestPrintedAdviceComesTrue verifies that the pod runs after any printed suggestion is carried out
// literally, each in a new world of the same cluster.
func TestPrintedAdviceComesTrue(t *testing.T) {
	pending, helped, followed, withheld := 0, 0, 0, 0
	kinds, skipped, reasons := map[string]int{}, map[string]int{}, map[string]int{}
	for seed := *first; seed < *first+uint64(*towns); seed++ {
		c := draw(seed)
		e := c.explained(t)
		if e == nil {
			continue
		}
		pending++
		withheld += len(e.Withheld)
		for _, w := range e.Withheld {
			reasons[causeOf(w.Reason)]++
		}
		if len(e.Suggestions) > 0 {
			helped++
		}
		for i := range e.Suggestions {
			s := &e.Suggestions[i]
			u, err := c.visit()
			if err != nil {
				t.Fatal(err)
			}
			unknown, err := u.follow(s)
			if unknown != "" {
				skipped[unknown]++
				continue
			}
			if err != nil {
				t.Errorf("town %d %v: %q cannot be followed: %v", seed, c.traits, s.Text, err)
				continue
			}
			followed++
			for _, change := range s.Changes {
				kinds[change.Kind]++
			}
			if !u.runs() {
				t.Errorf("town %d %v: %q does not help (%s)\n%s", seed, c.traits, s.Text, s.Command(), u.state())
			}
		}
	}
	t.Logf("%d towns, %d with a pending pod, suggestions for %d; %d followed: %v; not executable: %v; %d withheld: %v",
		*towns, pending, helped, followed, kinds, skipped, withheld, reasons)
	if pending < *towns/3 || helped < pending/3 {
		t.Errorf("the clusters are too easy or too hard")
	}
}

// causeOf groups reasons of withheld advice by dropping names and numbers.
func causeOf(reason string) string {
	for _, cause := range []string{"minimum cpu usage", "maximum cpu usage", "ratio", "exceeded quota", "toleration", "RuntimeClass",
		"conflict", "nodes are available", "paused", "partition", "OnDelete", "must be less than or equal"} {
		if strings.Contains(reason, cause) {
			return cause
		}
	}
	return reason
}

func (u *user) state() string {
	var lines []string
	for _, f := range u.w.InNamespace("default") {
		if strings.HasPrefix(f.Object.Name, "waits") {
			lines = append(lines, fmt.Sprintf("%s: refused %q, message %q", f.Object.Name, f.Refused, f.Message))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
