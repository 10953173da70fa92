// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package process

import (
	"errors"
	"syscall"
)

func isolated() *syscall.SysProcAttr { return nil }

func peakMemory(int) (int64, error) {
	return 0, errors.New("peak memory of another process can be read on Linux only")
}

// LoadAverage is only implemented on Linux.
func LoadAverage() string { return "unknown" }

// residentMemory is not implemented on this system.
func residentMemory(int) (int64, error) {
	return 0, errors.New("not implemented on this system")
}
