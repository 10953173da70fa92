// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// boundToParent makes the kernel kill the process when its parent dies.
func boundToParent(attributes *syscall.SysProcAttr) { attributes.Pdeathsig = syscall.SIGKILL }

// spawner starts all children from one goroutine that never leaves its thread: for the kernel, the
// parent is the thread that forked, not the process.
var spawner = sync.OnceValue(func() chan<- func() {
	starts := make(chan func())
	go func() {
		runtime.LockOSThread()
		for start := range starts {
			start()
		}
	}()
	return starts
})

// spawnProcess starts the process from the goroutine of spawner.
func spawnProcess(cmd *exec.Cmd) error {
	result := make(chan error)
	spawner() <- func() { result <- cmd.Start() }
	return <-result
}
