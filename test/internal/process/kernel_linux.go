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

// isolated keeps Ctrl-C from the process, which this one ends in order, and has the kernel end it
// should this one die.
func isolated() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// peakMemory is the most resident memory that a running process has had. What wait reports is of no
// use for this: a child inherits the peak of the process that started it.
func peakMemory(pid int) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(status) {
		fields := bytes.Fields(line)
		if len(fields) >= 2 && string(fields[0]) == "VmHWM:" {
			kib, err := strconv.ParseInt(string(fields[1]), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("/proc/%d/status has no VmHWM", pid)
}

// LoadAverage is the machine's of the last minute: what else it was doing.
func LoadAverage() string {
	load, err := os.ReadFile("/proc/loadavg")
	first, _, found := bytes.Cut(load, []byte(" "))
	if err != nil || !found {
		return "unknown"
	}
	return string(first)
}
