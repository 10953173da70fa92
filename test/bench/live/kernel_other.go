//go:build !linux

package live

import (
	"errors"
	"syscall"
)

func isolated() *syscall.SysProcAttr { return nil }

func peakMemory(int) (int64, error) {
	return 0, errors.New("peak memory of another process can be read on Linux only")
}

func loadAverage() string { return "unknown" }
