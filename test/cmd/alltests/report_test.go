// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// tell passes lines of `go test -json` to a report, and returns the other output.
func tell(r *report, lines ...string) *bytes.Buffer {
	var other bytes.Buffer
	r.readOutput(strings.NewReader(strings.Join(lines, "\n")+"\n"), command{events: true}, &other)
	return &other
}

func TestWhatFailedIsPrintedAndWhatPassedIsNot(t *testing.T) {
	var out bytes.Buffer
	r := newReport(&out, time.Now)
	other := tell(r,
		`{"Action":"start","Package":"github.com/berth-k8s/berth/a"}`,
		`{"Action":"run","Package":"github.com/berth-k8s/berth/a","Test":"TestGood"}`,
		`{"Action":"output","Package":"github.com/berth-k8s/berth/a","Test":"TestGood","Output":"all is well\n"}`,
		`{"Action":"pass","Package":"github.com/berth-k8s/berth/a","Test":"TestGood","Elapsed":1}`,
		`{"Action":"run","Package":"github.com/berth-k8s/berth/a","Test":"TestBad"}`,
		`{"Action":"output","Package":"github.com/berth-k8s/berth/a","Test":"TestBad/case","Output":"got 1, want 2\n"}`,
		`{"Action":"fail","Package":"github.com/berth-k8s/berth/a","Test":"TestBad/case","Elapsed":1}`,
		`{"Action":"fail","Package":"github.com/berth-k8s/berth/a","Test":"TestBad","Elapsed":2}`,
		`{"Action":"skip","Package":"github.com/berth-k8s/berth/a","Test":"TestElsewhere","Elapsed":0}`,
		`{"Action":"output","Package":"github.com/berth-k8s/berth/a","Output":"FAIL\n"}`,
		`{"Action":"fail","Package":"github.com/berth-k8s/berth/a","Elapsed":3}`,
		`{"ImportPath":"github.com/berth-k8s/berth/b [github.com/berth-k8s/berth/b.test]","Action":"build-output","Output":"b.go:3:1: syntax error\n"}`,
		`{"Action":"fail","Package":"github.com/berth-k8s/berth/b","Elapsed":0,"FailedBuild":"github.com/berth-k8s/berth/b [github.com/berth-k8s/berth/b.test]"}`,
		`not an event`)
	r.printSummary()
	for _, want := range []string{"FAIL a 3.0 s", "got 1, want 2", "b.go:3:1: syntax error", "==> FAILED: a, b\n", "==> skipped: a TestElsewhere\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, &out)
		}
	}
	if strings.Contains(out.String(), "all is well") {
		t.Errorf("a test that passed is quoted:\n%s", &out)
	}
	if !r.hasFailed() {
		t.Error("nothing failed")
	}
	if other.String() != "not an event\n" {
		t.Errorf("beside the events: %q", other)
	}
}

func TestTheSlowestTestsAreListedFirst(t *testing.T) {
	var out bytes.Buffer
	r := newReport(&out, time.Now)
	for i := range slowest + 2 {
		tell(r, fmt.Sprintf(`{"Action":"pass","Package":"p","Test":"Test%d","Elapsed":%d}`, i, i))
	}
	tell(r, `{"Action":"pass","Package":"p","Test":"Test0/inner","Elapsed":99}`)
	r.printSummary()
	var names []string
	for line := range strings.Lines(out.String()) {
		if _, name, found := strings.Cut(line, " s  p "); found {
			names = append(names, strings.TrimSpace(name))
		}
	}
	if got, want := strings.Join(names, " "), "Test11 Test10 Test9 Test8 Test7 Test6 Test5 Test4 Test3 Test2"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestWhatRunsIsNamed verifies that the summary lists the unfinished packages, each with the test
// that has been running longest, and that a paused test does not count as running.
func TestWhatRunsIsNamed(t *testing.T) {
	at := time.Unix(0, 0)
	var out bytes.Buffer
	r := newReport(&out, func() time.Time { return at })
	tell(r,
		`{"Action":"start","Package":"github.com/berth-k8s/berth/a"}`,
		`{"Action":"run","Package":"github.com/berth-k8s/berth/a","Test":"TestLater"}`,
		`{"Action":"pause","Package":"github.com/berth-k8s/berth/a","Test":"TestLater"}`)
	at = at.Add(time.Second)
	tell(r, `{"Action":"run","Package":"github.com/berth-k8s/berth/a","Test":"TestLong"}`)
	at = at.Add(time.Second)
	tell(r,
		`{"Action":"run","Package":"github.com/berth-k8s/berth/a","Test":"TestShort"}`,
		`{"Action":"start","Package":"github.com/berth-k8s/berth/b"}`)
	at = at.Add(3 * time.Second)
	r.printSummary()
	if want := "==> not ended: a 5.0 s (TestLong and 1 more), b 3.0 s\n"; !strings.Contains(out.String(), want) {
		t.Errorf("%q, want %q in it", &out, want)
	}
}

func TestACommandThatCannotRunFails(t *testing.T) {
	var out bytes.Buffer
	r := newReport(&out, time.Now)
	r.runPart(part{name: "x", atOnce: 1, commands: func(options) ([]command, error) {
		return []command{{words: []string{"go", "no-such-command"}, events: true}}, nil
	}}, options{root: t.TempDir()})
	if !r.hasFailed() || !strings.Contains(out.String(), "unknown command") {
		t.Errorf("failed: %t\n%s", r.hasFailed(), &out)
	}
}

func TestEveryFuzzerIsFound(t *testing.T) {
	root := t.TempDir()
	for path, text := range map[string]string{
		"a/a_test.go":    "func FuzzA(f *testing.F) {}\nfunc FuzzB(f *testing.F) {}\nfunc TestA(t *testing.T) {}\n",
		"a/a.go":         "func FuzzC(f *testing.F) {}\n",
		".git/b_test.go": "func FuzzD(f *testing.F) {}\n",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, path), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, wide := range []bool{false, true} {
		commands, err := listFuzzers(options{root: root, fuzztime: "1x", wide: wide})
		if err != nil {
			t.Fatal(err)
		}
		var found []string
		for _, c := range commands {
			name := c.words[slices.IndexFunc(c.words, func(w string) bool { return strings.HasSuffix(w, "$") && strings.Contains(w, "^Fuzz") })]
			found = append(found, c.folder+" "+strings.TrimPrefix(name, "-test.fuzz="))
		}
		if got, want := strings.Join(found, ", "), "a ^FuzzA$, a ^FuzzB$"; got != want {
			t.Errorf("wide %t: %s, want %s", wide, got, want)
		}
	}
}

// TestPackagesThatPassedRunAgainAfterAChange runs a passing and a failing package, and then
// changes files outside of their module.
func TestPackagesThatPassedRunAgainAfterAChange(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("hack/announce.sh", "#!/bin/sh\n", 0o700)
	write("page.md", "one", 0o600)
	write("bin/program", "ignored", 0o600)
	write(".gitignore", "/bin/\n", 0o600)
	write("m/go.mod", "module m\n\ngo 1.26\n", 0o600)
	write("m/good/good_test.go", "package good\n\nimport \"testing\"\n\nfunc TestGood(t *testing.T) {}\n", 0o600)
	write("m/bad/bad_test.go", "package bad\n\nimport \"testing\"\n\nfunc TestBad(t *testing.T) { t.Fatal() }\n", 0o600)
	if out, err := exec.Command("git", "init", "-q", root).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}

	run := func(o options) string {
		var out bytes.Buffer
		r := newReport(&out, time.Now)
		r.passed = readPassed(o)
		r.runCommand(part{name: "live", lane: live}, goTest("m", anew, "./..."), o)
		return out.String()
	}
	for _, step := range []struct {
		does   func()
		o      options
		before bool // the result of the good package is an earlier one
	}{
		{func() {}, options{}, false},
		{func() {}, options{}, true},
		{func() { write("bin/program", "another", 0o600) }, options{}, true},
		{func() {}, options{long: true}, false},
		{func() { write("page.md", "two", 0o600) }, options{long: true}, false},
		{func() { write("new.md", "new", 0o600) }, options{long: true}, false},
		{func() {}, options{long: true}, true},
		{func() { os.Remove(filepath.Join(root, "page.md")) }, options{long: true}, false},
	} {
		step.does()
		step.o.root = root
		out := run(step.o)
		if got := strings.Contains(out, "ok   m/good, as before\n"); got != step.before || !strings.Contains(out, "ok   m/good") || !strings.Contains(out, "FAIL m/bad") {
			t.Errorf("as before: %t, want %t:\n%s", got, step.before, out)
		}
	}
}
