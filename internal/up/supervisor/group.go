// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package supervisor

import (
	"os/exec"
	"syscall"
)

// isolateProcess puts the process into a separate group, so that Ctrl-C in the terminal reaches
// only the supervisor, which then ends the parts in order.
func isolateProcess(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	boundToParent(cmd.SysProcAttr)
}

// killGroup kills the remains of the process and its descendants. A missing group is not an error.
func killGroup(cmd *exec.Cmd) { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
