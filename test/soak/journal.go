// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"bytes"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// keptLines is the number of log lines kept in memory for a report; the file has all lines.
const keptLines = 20_000

// journal keeps the log of a part in a file, and parses the log while it is written.
type journal struct {
	name  string
	panic func(line string)

	mu      sync.Mutex
	file    io.WriteCloser
	lines   []line // ring buffer
	next    int
	partial []byte
	address string // address of the part's endpoints, as last reported
}

type line struct {
	at   time.Time
	text string
}

var (
	addressPattern = regexp.MustCompile(`health and metrics on (http://\S+)`)
	panicPattern   = regexp.MustCompile(`^panic: |^fatal error: |DATA RACE|Observed a panic|^unexpected fault address`)
)

func newJournal(name string, file io.WriteCloser, panic func(string)) *journal {
	return &journal{name: name, file: file, panic: panic}
}

// Write processes a part's output.
func (j *journal) Write(text []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.partial = append(j.partial, text...)
	for {
		end := bytes.IndexByte(j.partial, '\n')
		if end < 0 {
			break
		}
		j.takeLine(string(j.partial[:end]))
		j.partial = j.partial[end+1:]
	}
	return j.file.Write(text)
}

// takeLine parses and keeps a line. The caller must hold mu.
func (j *journal) takeLine(text string) {
	if found := addressPattern.FindStringSubmatch(text); found != nil {
		j.address = found[1]
	}
	if panicPattern.MatchString(text) && j.panic != nil {
		go j.panic(text) // asynchronous, because panic reads the surrounding lines and so needs mu
	}
	one := line{time.Now(), text}
	if len(j.lines) < keptLines {
		j.lines = append(j.lines, one)
		return
	}
	j.lines[j.next] = one
	j.next = (j.next + 1) % keptLines
}

// writeNote adds a note by the campaign to the log.
func (j *journal) writeNote(format string, args ...any) {
	fmt.Fprintf(j, "---- "+time.Now().Format(time.TimeOnly)+" "+format+"\n", args...)
}

func (j *journal) endpointAddress() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.address
}

// forgetEndpoints clears the endpoints when the part is restarted.
func (j *journal) forgetEndpoints() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.address = ""
}

// linesAbout returns the last lines that contain one of the words, up to a limit, the newest first.
func (j *journal) linesAbout(most int, words ...string) []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	var found []string
	for i := range j.lines {
		l := j.lines[(j.next+len(j.lines)-1-i)%len(j.lines)]
		for _, word := range words {
			if word != "" && strings.Contains(l.text, word) {
				found = append(found, fmt.Sprintf("%s %s: %s", l.at.Format("15:04:05.000"), j.name, l.text))
				break
			}
		}
		if len(found) == most {
			break
		}
	}
	return found
}

const started = "---- started"

// ofThis returns the recent output of the last started process.
func (j *journal) ofThis() string {
	lines := j.lastLines(20)
	if i := slices.Index(lines, started); i >= 0 {
		lines = lines[:i]
	}
	slices.Reverse(lines)
	return strings.Join(lines, "\n")
}

// lastLines returns the last lines, the newest first.
func (j *journal) lastLines(most int) []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	var found []string
	for i := range min(most, len(j.lines)) {
		found = append(found, j.lines[(j.next+len(j.lines)-1-i)%len(j.lines)].text)
	}
	return found
}
