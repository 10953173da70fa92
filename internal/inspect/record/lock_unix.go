// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package record

import (
	"os"
	"syscall"
)

// acquireLock takes the lock, released when the process ends at the latest. It fails immediately if
// another process holds it.
func acquireLock(f *os.File) error {
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
}
