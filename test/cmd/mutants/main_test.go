// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestTheListFitsTheTree verifies that the text of every mutation occurs exactly once in the cores,
// and that a list with another text is refused.
func TestTheListFitsTheTree(t *testing.T) {
	b := bench{out: t.Output(), root: "../../.."}
	if err := b.run(mutations, regexp.MustCompile(""), true); err != nil {
		t.Error(err)
	}
	changed := strings.Replace(mutations, "pacing.Backoff", "no such text", 1)
	if err := b.run(changed, regexp.MustCompile(""), true); changed == mutations || err == nil {
		t.Error("a list with a text that does not occur is accepted")
	}
}

// TestMutationsAreApplied verifies the table and the error for each kind of mutation, and that the
// tree is not changed.
func TestMutationsAreApplied(t *testing.T) {
	root := t.TempDir()
	const code = "package p\n\nfunc abs(n int) int {\n\tif n < 0 {\n\t\treturn -n\n\t}\n\treturn n\n}\n"
	for name, text := range map[string]string{
		"go.mod":    "module example.com/p\n\ngo 1.24\n",
		"p.go":      code,
		"p_test.go": "package p\n\nimport \"testing\"\n\nfunc TestAbs(t *testing.T) {\n\tif abs(-2) != 2 {\n\t\tt.Error(abs(-2))\n\t}\n}\n",
	} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	for mutation, expected := range map[string]struct{ line, err string }{
		"mutation sign\n- return -n\n+ return n":                          {line: "p/sign killed TestAbs"},
		"mutation zero reverts=7\n- n < 0\n+ n <= 0":                      {line: "p/zero (reverts=7) SURVIVED -", err: "1 mutations survived"},
		"mutation zero survives\n- n < 0\n+ n <= 0":                       {line: "p/zero (survives) survived -"},
		"mutation loop\n- return -n\n+ for {\n+ }":                        {line: "p/loop killed TestAbs (hangs or crashes)"},
		"mutation changed\n- return 7\n+ return\n- return -n\n+ return 0": {line: "p/changed killed TestAbs"},
		"mutation absent\n- return 7\n+ return n":                         {err: "p/absent: the text to replace occurs 0 times"},
		"mutation twice\n- return\n+ return 1 +":                          {err: "p/twice: the text to replace occurs 2 times"},
		"mutation broken\n- return -n\n+ return":                          {err: "p/broken: compile ."},
	} {
		var out strings.Builder
		b := bench{out: &out, root: root, seeds: []string{"1"}, least: time.Second}
		err := b.run("core p .\ntest . -test.run=Abs\n# why\n"+mutation+"\n", regexp.MustCompile(""), false)
		lines := regexp.MustCompile(` +([0-9.]+ s)? *`).ReplaceAllString(out.String(), " ")
		if expected.line != "" && !strings.Contains(lines, "\n"+expected.line+"\n") {
			t.Errorf("%s:\n%s", mutation, lines)
		}
		if expected.err == "" && err != nil || expected.err != "" && (err == nil || !strings.Contains(err.Error(), expected.err)) {
			t.Errorf("%s: error %v, expected %q", mutation, err, expected.err)
		}
	}
	if text, err := os.ReadFile(filepath.Join(root, "p.go")); err != nil || string(text) != code {
		t.Errorf("the tree was changed: %v\n%s", err, text)
	}
}
