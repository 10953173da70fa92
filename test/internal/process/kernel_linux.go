// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"syscall"
)

// isolated returns attributes that keep Ctrl-C in the terminal from the child, because this process
// stops its children in the right order. The kernel also kills the child if this process dies.
func isolated() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// peakMemory returns the maximum resident memory of a running process in bytes. The value reported
// by wait is unusable, because a child inherits the peak of the process that started it.
func peakMemory(pid int) (int64, error) { return memoryOf(pid, "VmHWM:") }

// residentMemory returns the resident memory of a running process in bytes.
func residentMemory(pid int) (int64, error) { return memoryOf(pid, "VmRSS:") }

func memoryOf(pid int, field string) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(status) {
		fields := bytes.Fields(line)
		if len(fields) >= 2 && string(fields[0]) == field {
			kib, err := strconv.ParseInt(string(fields[1]), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("/proc/%d/status has no %s", pid, field)
}

// LoadAverage returns the machine's load average of the last minute. It shows whether the machine
// does other work.
func LoadAverage() string {
	load, err := os.ReadFile("/proc/loadavg")
	first, _, found := bytes.Cut(load, []byte(" "))
	if err != nil || !found {
		return "unknown"
	}
	return string(first)
}
