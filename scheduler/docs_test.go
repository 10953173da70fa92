// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

var update = flag.Bool("update", false, "write docs/reference/ignored-flags.md anew")

// ignored returns the table of accepted flags without effect.
func ignored() string {
	var table strings.Builder
	table.WriteString("| flag | why |\n| --- | --- |\n")
	NewCommand().Flags().VisitAll(func(f *pflag.Flag) {
		if why, ok := strings.CutPrefix(f.Usage, "has no effect: "); ok && f.Hidden {
			fmt.Fprintf(&table, "| `--%s` | %s |\n", f.Name, why)
		}
	})
	return table.String()
}

func between(t *testing.T, page, name, content string) string {
	t.Helper()
	before, rest, found := strings.Cut(page, "<!-- "+name+" -->\n")
	_, after, foundEnd := strings.Cut(rest, "<!-- end of "+name+" -->\n")
	if !found || !foundEnd {
		t.Fatalf("the page has no place for %s", name)
	}
	return before + "<!-- " + name + " -->\n" + content + "<!-- end of " + name + " -->\n" + after
}

func TestIgnoredFlagsOnThePageAreCurrent(t *testing.T) {
	file := filepath.Join("..", "docs", "reference", "ignored-flags.md")
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want := between(t, string(page), "ignored", ignored())
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(page) {
		t.Error("docs/reference/ignored-flags.md is out of date: go test ./scheduler -update")
	}
}
