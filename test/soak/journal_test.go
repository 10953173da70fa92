// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"bytes"
	"fmt"
	"testing"
)

type nowhere struct{ bytes.Buffer }

func (*nowhere) Close() error { return nil }

func TestPanicsAreFoundInLogs(t *testing.T) {
	for _, c := range []struct {
		text  string
		found bool
	}{
		{"panic: runtime error: index out of range [3]\n", true},
		{"fatal error: concurrent map writes\n", true},
		{"WARNING: DATA RACE\n", true},
		{`E1120 11:00:00.000000 1 runtime.go:142] "Observed a panic" panic="x"` + "\n", true},
		{"the word panic: in the middle\n", false},
		{"all is well\n", false},
	} {
		found := make(chan string, 1)
		j := newJournal("x", &nowhere{}, func(line string) { found <- line })
		for i := range c.text { // write byte by byte, since a write may end anywhere in a line
			fmt.Fprint(j, c.text[i:i+1])
		}
		j.mu.Lock()
		lines := len(j.lines)
		j.mu.Unlock()
		if lines != 1 {
			t.Errorf("%q: %d lines", c.text, lines)
		}
		if c.found {
			<-found
		} else if panicPattern.MatchString(c.text) {
			t.Errorf("%q: found", c.text)
		}
	}
}

func TestJournalKeepsTheLastLines(t *testing.T) {
	file := &nowhere{}
	j := newJournal("x", file, nil)
	for i := range keptLines + 10 {
		fmt.Fprintf(j, "line %d of pod-%d\n", i, i%10)
	}
	if last := j.lastLines(2); last[0] != fmt.Sprintf("line %d of pod-9", keptLines+9) || len(last) != 2 {
		t.Errorf("last: %v", last)
	}
	if about := j.linesAbout(3, "pod-7"); len(about) != 3 {
		t.Errorf("about pod-7: %v", about)
	}
	if len(j.lines) != keptLines || bytes.Count(file.Bytes(), []byte("\n")) != keptLines+10 {
		t.Errorf("%d lines kept, %d written", len(j.lines), bytes.Count(file.Bytes(), []byte("\n")))
	}
	fmt.Fprintln(j, "health and metrics on http://127.0.0.1:1234")
	if j.endpointAddress() != "http://127.0.0.1:1234" {
		t.Errorf("endpoints: %q", j.endpointAddress())
	}
	if j.forgetEndpoints(); j.endpointAddress() != "" {
		t.Error("endpoints of a process that ended")
	}
}
