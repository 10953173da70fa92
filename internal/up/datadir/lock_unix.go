// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package datadir

import (
	"os"
	"syscall"
)

// acquire takes the lock, or fails immediately if another process has it.
func acquire(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) }
