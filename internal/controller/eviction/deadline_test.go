// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package eviction_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	v1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// TestDeadlines runs testdata/deadline.txt. The input of a case lists the taints, each with the
// time of its addition, as "0s key=value:NoExecute", and after "pod tolerates" the pod's
// tolerations. The argument "bound" is the time at which the pod was bound, and "turned" the time
// at which the taints replaced their opposites.
func TestDeadlines(t *testing.T) {
	datadriven.RunTest(t, "testdata/deadline.txt", func(t *testing.T, d *datadriven.TestData) string {
		taintLines, tolerations, _ := strings.Cut(d.Input, "pod tolerates")
		var held []eviction.Held
		var at time.Time
		if turned := ""; d.MaybeScanArgs(t, "turned", &turned) {
			at = start.Add(mustDuration(t, turned))
		}
		for line := range strings.Lines(taintLines) {
			words := strings.Fields(line)
			taint, err := rules.ParseTaint(words[1])
			if err != nil {
				return err.Error()
			}
			if taint.Effect == v1.TaintEffectNoExecute {
				held = append(held, eviction.Held{Taint: taint, Since: start.Add(mustDuration(t, words[0])), Turned: at})
			}
		}
		bound := "0s"
		d.MaybeScanArgs(t, "bound", &bound)
		due := eviction.Deadline(mustTolerations(t, tolerations), start.Add(mustDuration(t, bound)), held)
		if due.Stays() {
			return "stays"
		}
		return fmt.Sprintf("goes at %s for %s", due.At.Sub(start), due.Taint.ToString())
	})
}

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func mustDuration(t *testing.T, s string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func mustTolerations(t *testing.T, text string) (list []v1.Toleration) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(text), &list); err != nil {
		t.Fatal(err)
	}
	return list
}
