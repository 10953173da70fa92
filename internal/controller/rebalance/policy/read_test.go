// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/berth-k8s/berth/internal/controller/rebalance/policy"
)

// TestRead verifies the goals and notes, or the error, of the policies in testdata/read.txt. Except
// for the command whole, the policies omit their first two lines. The priority class high has the
// value 1000.
func TestRead(t *testing.T) {
	priorities := func(name string) (int32, bool) { return 1000, name == "high" }
	datadriven.RunTest(t, "testdata/read.txt", func(t *testing.T, d *datadriven.TestData) string {
		text := "apiVersion: descheduler/v1alpha2\nkind: DeschedulerPolicy\n" + d.Input
		if d.Cmd == "whole" {
			text = d.Input
		}
		p, err := policy.Read("p.yaml", []byte(text), priorities)
		if err != nil {
			return err.Error() + "\n"
		}
		var b strings.Builder
		for i := range p.Goals {
			g := &p.Goals[i]
			fmt.Fprintf(&b, "%s of %s, line %d", g.Name, g.Profile, g.Line)
			if g.Evictor.Priority != nil {
				fmt.Fprintf(&b, ", priority below %d", *g.Evictor.Priority)
			}
			fmt.Fprintf(&b, ", storage %v, daemons %v, critical %v, claims %v %v\n",
				g.Evictor.LocalStorage, g.Evictor.DaemonSets, g.Evictor.Critical, g.Evictor.Claims, g.Evictor.StorageClasses)
		}
		for _, note := range p.Notes {
			b.WriteString(note + "\n")
		}
		return b.String()
	})
}
