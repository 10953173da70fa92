// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"testing"
)

func TestResultsAreReadFromWhatTestsPrint(t *testing.T) {
	got := readResults(strings.NewReader("\x16=== RUN   TestA\n\x16=== RUN   TestA/one\n    \x16--- PASS: TestA/one (0.1s)\n=== RUN   TestA/two\n" +
		"noise --- PASS: TestX (1s)\n\x16--- FAIL: TestA (0.1s)\n    --- FAIL: TestA/two (0.00s)\n=== RUN   TestB\n--- SKIP: TestB (0.00s)\n=== RUN   TestC\npanic: x\n"))
	want := map[string]string{"TestA/one": "PASS", "TestA/two": "FAIL", "TestB": "SKIP", "TestC": "FAIL"}
	if len(got) != len(want) {
		t.Errorf("got %v", got)
	}
	for name, how := range want {
		if got[name] != how {
			t.Errorf("%s: got %q, want %s", name, got[name], how)
		}
	}
}

func TestAFailureThatIsNotListedFailsTheRun(t *testing.T) {
	k, err := readKnown("# why\nscheduler Test[AB].*\tinternals\n*scheduler TestD\truns no scheduler\nnode TestE\tis gone\n")
	if err != nil {
		t.Fatal(err)
	}
	r := row{name: "scheduler", berth: results{"TestA/x": "FAIL", "TestC": "PASS", "TestD": "PASS"}}
	r.judgeFailures(k)
	var out strings.Builder
	if err := printTable(&out, []row{r}, false); err != nil || !strings.Contains(out.String(), "| scheduler | 2 | 1 | 1 | 1 |") {
		t.Errorf("%v: %s", err, out.String())
	}
	if got := fmt.Sprint(k.unneededPatterns([]string{"scheduler", "node"}),
		k.unneededPatterns([]string{"scheduler"})); got != "[node TestE] []" {
		t.Errorf("lines that no test needs: %s", got)
	}
	r = row{name: "scheduler", berth: results{"TestC": "FAIL"}}
	r.judgeFailures(k)
	if err := printTable(&out, []row{r}, false); err == nil {
		t.Error("the run is good")
	}
	if _, err := readKnown("no reason"); err == nil {
		t.Error("a line without a reason is taken")
	}
}
