// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package supervisor

import (
	"os/exec"
	"syscall"
)

// boundToParent does nothing: without Linux's parent-death signal a part outlives a supervisor
// killed with SIGKILL.
func boundToParent(*syscall.SysProcAttr) {}

// spawnProcess starts the process; the calling thread matters on Linux only.
func spawnProcess(cmd *exec.Cmd) error { return cmd.Start() }
