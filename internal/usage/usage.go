// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package usage distinguishes errors of a command line from errors of the command's work.
package usage

import (
	"errors"
	"fmt"
)

// ExitCode is the exit code of a command after an [Error].
const ExitCode = 2

// Error is an error of the command line: a wrong flag, argument or command, or a file that is named
// on the command line and cannot be used.
type Error struct{ error }

// Unwrap returns the underlying error.
func (e Error) Unwrap() error { return e.error }

// Of returns err as an Error; nil for nil.
func Of(err error) error {
	if err == nil {
		return nil
	}
	return Error{err}
}

// Errorf returns an Error with a message formatted by fmt.Errorf.
func Errorf(format string, args ...any) error { return Error{fmt.Errorf(format, args...)} }

// IsError reports whether err is, or wraps, an Error.
func IsError(err error) bool { return errors.As(err, new(Error)) }
