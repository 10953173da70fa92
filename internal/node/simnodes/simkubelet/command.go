// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simkubelet

import (
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
)

// ending is the way a process ends by itself. The zero value ends immediately, with success.
type ending struct {
	runFor   time.Duration
	exitCode int32
}

// endingOf derives a container's ending from its command line, if it is evident without running
// anything. It understands true, false and sleep, and shell scripts of these with exit and echo.
// Users write such commands to try a failing Job or a restarting pod.
//
//	["sh", "-c", "sleep 30; exit 1"]   after 30 s, with code 1
//	["sh", "-c", "sleep 5 && false"]   after 5 s, with code 1
//	["sleep", "infinity"]              never
//	["sh", "-c", "curl ..."]           not known
func endingOf(c *v1.Container) (ending, bool) {
	argv := slices.Concat(c.Command, c.Args)
	if len(c.Command) == 0 {
		// The image defines the program, which is unknown except for pause.
		return ending{runFor: forEver}, imageName(c.Image) == "pause"
	}
	switch name := path.Base(argv[0]); {
	case len(argv) == 3 && argv[1] == "-c" && (name == "sh" || name == "bash" || name == "ash"):
		return endingOfScript(argv[2])
	case name == "exit" || name == ":":
		return ending{}, false // these are shell builtins, not programs
	default:
		var e ending
		_, known := e.applyStatement(append([]string{name}, argv[1:]...))
		return e, known
	}
}

// endingOfScript parses a shell script of plain statements. It handles ;, newlines and &&, and
// gives up on everything else.
func endingOfScript(text string) (ending, bool) {
	var e ending
	// Expansions, pipes and groups of a shell are not plain; neither is a single &.
	text = strings.ReplaceAll(text, "&&", "\x00")
	if strings.ContainsAny(text, "$`|&<>()[]{}*?!\\") {
		return e, false
	}
	for _, line := range strings.FieldsFunc(text, func(r rune) bool { return r == ';' || r == '\n' }) {
		for _, words := range strings.Split(line, "\x00") {
			fields := strings.Fields(words)
			if len(fields) == 0 {
				continue
			}
			last, known := e.applyStatement(fields)
			// Statements after exit are never run; an unknown statement makes the whole script
			// unknown.
			if !known || last {
				return e, known
			}
			if e.exitCode != 0 {
				break // statements after && are skipped
			}
		}
	}
	return e, true
}

// applyStatement adds one command to the ending. last is true if no command runs after it. Times
// add up, and the last command sets the exit code.
func (e *ending) applyStatement(words []string) (last, known bool) {
	switch words[0] {
	case "true", ":", "echo":
		e.exitCode = 0
	case "false":
		e.exitCode = 1
	case "exit":
		if len(words) == 1 {
			return true, true
		}
		code, err := strconv.ParseUint(words[1], 10, 8)
		e.exitCode = int32(code)
		return true, err == nil && len(words) == 2
	case "sleep":
		if len(words) != 2 {
			return false, false
		}
		d, known := sleepOf(words[1])
		e.exitCode = 0
		if d == forEver || e.runFor+d > mostSleep {
			e.runFor = forEver
			return true, known
		}
		e.runFor += d
		return false, known
	default:
		return false, false
	}

	return false, true
}

// mostSleep is the longest finite sleep: longer ones count as endless, so that the sum of a
// script's sleeps cannot overflow a duration.
const mostSleep = 365 * 24 * time.Hour

// sleepOf parses the argument of sleep: a number with a unit or in seconds.
func sleepOf(text string) (time.Duration, bool) {
	if text == "infinity" || text == "inf" {
		return forEver, true
	}
	unit := time.Second
	if n := len(text) - 1; n > 0 {
		if u, ok := map[byte]time.Duration{'s': time.Second, 'm': time.Minute, 'h': time.Hour, 'd': 24 * time.Hour}[text[n]]; ok {
			unit, text = u, text[:n]
		}
	}

	amount, err := strconv.ParseFloat(text, 64)
	if err != nil || !(amount >= 0) {
		return 0, false
	}
	if amount*unit.Seconds() >= mostSleep.Seconds() {
		return forEver, true
	}
	return time.Duration(amount * float64(unit)), true
}

// imageName returns the last part of an image's path, without tag and digest.
//
//	registry.k8s.io/pause:3.10@sha256:...   pause
func imageName(image string) string {
	name := path.Base(image)
	name, _, _ = strings.Cut(name, "@")
	name, _, _ = strings.Cut(name, ":")
	return name
}
