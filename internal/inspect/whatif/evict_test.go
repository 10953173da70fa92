// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package whatif_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/inspect/whatif"
)

// TestEvict runs testdata/evict.txt: each case is a cluster, extended by "more", and a list of
// evicted pods.
func TestEvict(t *testing.T) {
	var cluster string
	datadriven.RunTest(t, "testdata/evict.txt", func(t *testing.T, d *datadriven.TestData) string {
		switch d.Cmd {
		case "cluster":
			cluster = d.Input
			return ""
		case "more":
			cluster += "\n---\n" + d.Input
			return ""
		}

		set, err := manifest.Read([]string{"-"}, strings.NewReader(cluster), manifest.Options{})
		if err != nil {
			return err.Error()
		}
		set.Expand(1)
		w, err := simulate.Open(set, simulate.Options{})
		if err != nil {
			return err.Error()
		}
		op := &simulate.Evict{}
		for _, arg := range d.CmdArgs {
			op.Pods = append(op.Pods, arg.Key)
		}
		f, err := whatif.Run(w, []whatif.Step{{Words: "evict", Operation: &simulate.Operation{Evict: op}}}, whatif.Options{})
		if err != nil {
			return err.Error()
		}

		var text bytes.Buffer
		if err := f.Write(&text, "wide"); err != nil {
			t.Fatal(err)
		}
		page, _, _ := strings.Cut(text.String(), "\n         NODES") // the utilisation
		return strings.TrimPrefix(page, "what if: evict\n")
	})
}
