//go:build unix && !linux

package supervisor

import (
	"os/exec"
	"syscall"
)

// boundToParent does nothing: without Linux's parent-death signal a part outlives a supervisor that
// is killed with SIGKILL.
func boundToParent(*syscall.SysProcAttr) {}

// spawnProcess starts the process; it matters only on Linux from where.
func spawnProcess(cmd *exec.Cmd) error { return cmd.Start() }
