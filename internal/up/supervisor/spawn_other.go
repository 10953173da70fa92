//go:build !linux

package supervisor

import "os/exec"

// isolate does nothing. Without Linux's parent-death signal a part outlives a supervisor that is
// killed with SIGKILL, and only the part itself is killed, not what it has started.
func isolate(*exec.Cmd) {}

func spawn(cmd *exec.Cmd) error { return cmd.Start() }

func killGroup(cmd *exec.Cmd) { _ = cmd.Process.Kill() }
