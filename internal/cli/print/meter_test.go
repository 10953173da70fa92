// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package print

import (
	"bufio"
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/berth-k8s/berth/internal/answer"
)

// TestProgressInLines verifies that without a terminal a slow command writes a line every few
// seconds, but not for every step.
func TestProgressInLines(t *testing.T) {
	after, every := MeterAfter, LinesEvery
	t.Cleanup(func() { MeterAfter, LinesEvery = after, every })

	MeterAfter, LinesEvery = 0, time.Millisecond
	lines, stderr := io.Pipe()
	var m Meter
	m.Begin(stderr, "reading")
	scanner := bufio.NewScanner(lines)
	for seen := 0; seen < 3 && scanner.Scan(); {
		if scanner.Text() == "berth: reading" {
			seen++
		}
	}
	lines.Close()
	m.End()

	MeterAfter, LinesEvery = 0, time.Hour
	var shown bytes.Buffer // read only after the end of the output
	for range 100 {
		m.Begin(&shown, "reading")
		m.Clear()
	}
	if text := shown.String(); strings.Count(text, "\n") > 1 {
		t.Errorf("%q", text)
	}
}

// TestProgressWaits verifies that a command shows no progress for two seconds.
func TestProgressWaits(t *testing.T) {
	var shown bytes.Buffer
	var m Meter
	m.Begin(answer.Terminal{Writer: &shown, Width: 80}, "reading")
	m.End()
	if text := shown.String(); text != "" {
		t.Errorf("%q", text)
	}
}
