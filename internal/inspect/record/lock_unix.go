//go:build unix

package record

import (
	"os"
	"syscall"
)

// acquire takes the lock, which is released when the process ends at the latest.
func acquire(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) }
