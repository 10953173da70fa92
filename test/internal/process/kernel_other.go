// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package process

import (
	"errors"
	"syscall"
)

func isolated() *syscall.SysProcAttr { return nil }

// errLinuxOnly is returned for measurements that read /proc, which only Linux has.
var errLinuxOnly = errors.New("the memory of another process can be read on Linux only")

func peakMemory(int) (int64, error) { return 0, errLinuxOnly }

// LoadAverage is only implemented on Linux.
func LoadAverage() string { return "unknown" }

func residentMemory(int) (int64, error) { return 0, errLinuxOnly }
