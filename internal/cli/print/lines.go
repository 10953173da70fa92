// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package print

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/usage"
)

// Line writes a line that may have text from a cluster or a file. It makes control characters
// visible, so that they do not control the terminal.
func Line(out io.Writer, format string, args ...any) {
	fmt.Fprintln(out, answer.Visible(fmt.Sprintf(format, args...)))
}

// PrintLine writes a line, unless it is empty.
func PrintLine(out io.Writer, line string) {
	if line != "" {
		Line(out, "%s", line)
	}
}

// Once writes each distinct text only once.
type Once struct {
	Out     io.Writer
	written []string
}

func (o *Once) Write(text []byte) (int, error) {
	if slices.Contains(o.written, string(text)) {
		return len(text), nil
	}
	o.written = append(o.written, string(text))
	return o.Out.Write(text)
}

// OneLine formats an error on one line. Some libraries list several causes on separate lines.
func OneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// ShellWord quotes a word for a shell if necessary.
func ShellWord(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+:@%", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// Formats lists the formats of results about a cluster.
var Formats = append(slices.Clone(answer.Formats), "name", "wide")

// CheckFormat checks --output.
func CheckFormat(output string, allowed []string) error {
	if err := answer.Check(output, allowed...); err != nil {
		return usage.Errorf("--output %w", err)
	}
	return nil
}

// FormatsUsage is the text of a flag --output.
func FormatsUsage(allowed []string) string { return answer.Choice(allowed) + "; by default a table" }

// ExitHeld is the exit code of a command whose result meets a condition of --fail-on.
const ExitHeld = 3

// heldError is not a failure of the command.
type heldError struct{ error }

// Held returns an error with the exit code ExitHeld if the result meets conditions of --fail-on.
func Held(conditions []string, holds func(condition string) bool) error {
	held := slices.DeleteFunc(slices.Clone(conditions), func(c string) bool { return !holds(c) })
	if len(held) == 0 {
		return nil
	}
	return HeldError(fmt.Errorf("--fail-on %s: condition met", strings.Join(held, ", ")))
}

// HeldError is an error with the exit code ExitHeld.
func HeldError(err error) error { return heldError{err} }

// IsHeld reports whether an error has the exit code ExitHeld.
func IsHeld(err error) bool { return errors.As(err, new(heldError)) }

// Noticed records whether anything was written, and the first error.
type Noticed struct {
	io.Writer
	Any bool
	Err error
}

func (n *Noticed) Write(text []byte) (int, error) {
	n.Any = true
	size, err := n.Writer.Write(text)
	n.Err = cmp.Or(n.Err, err)
	return size, err
}
