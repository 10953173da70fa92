//go:build unix

package supervisor

import (
	"os/exec"
	"syscall"
)

// isolateProcess puts the process into its own group, so that Ctrl-C in the terminal reaches only
// the supervisor, which then ends the parts in order.
func isolateProcess(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	boundToParent(cmd.SysProcAttr)
}

// killGroup kills what is left of the process and of what it has started. A group that is gone
// already is no error.
func killGroup(cmd *exec.Cmd) { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
