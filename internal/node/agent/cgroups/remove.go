package cgroups

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// patience is how long killed processes may take to disappear.
const patience = 10 * time.Second

// RemovePod kills what is left in the pod's group and removes the group. It is no error if the pod
// has none.
func (t *Tree) RemovePod(uid types.UID) error {
	for {
		group, err := t.find(uid)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err := t.remove(t.path(group)); err != nil {
			return fmt.Errorf("remove the cgroup of pod %s: %w", uid, err)
		}
	}
}

// remove retries until the processes are gone: a killed one remains for a moment, and may have
// started another.
func (t *Tree) remove(path string) error {
	pause := time.Millisecond
	for end := time.Now().Add(patience); ; pause = min(2*pause, 100*time.Millisecond) {
		var failed error
		for _, folder := range t.files.folders(path) {
			kill(folder)
			failed = errors.Join(failed, t.removeFolder(folder))
		}
		if failed == nil || time.Now().After(end) {
			return failed
		}
		time.Sleep(pause)
	}
}

// groupsIn lists a folder and those beneath it, the deepest first.
func groupsIn(folder string) (all []string) {
	_ = filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return fs.SkipDir // gone meanwhile
		}
		if entry.IsDir() {
			all = append(all, path)
		}
		return nil
	})
	slices.Reverse(all)
	return all
}

func (t *Tree) removeFolder(folder string) error {
	for _, group := range groupsIn(folder) {
		if err := t.rmdir(group); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// kill kills all processes in a group and beneath it.
func kill(folder string) {
	// Where the kernel can do it at once, nothing escapes by forking.
	if _, err := os.Stat(filepath.Join(folder, "cgroup.kill")); err == nil {
		_ = os.WriteFile(filepath.Join(folder, "cgroup.kill"), []byte("1"), 0o644)
	}
	for _, group := range groupsIn(folder) {
		text, _ := read(group, "cgroup.procs")
		for _, word := range strings.Fields(text) {
			// 0 is a process of another PID namespace, and a signal to 0 or a negative number would
			// reach our own process group, or every process.
			if pid, err := strconv.Atoi(word); err == nil && pid > 1 && pid != os.Getpid() {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	}
}
