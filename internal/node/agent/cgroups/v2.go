package cgroups

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// v2 is the one hierarchy of cgroup v2, at its mount point.
type v2 struct{ mount string }

// The controllers that pods need. Those that the kernel lacks (mostly hugetlb) are left out.
var wanted = []string{"cpu", "cpuset", "memory", "pids", "hugetlb"}

func (v v2) folders(path string) []string { return []string{filepath.Join(v.mount, path)} }

// make enables the controllers in each group on the path, including the last: containers come
// beneath it.
func (v v2) make(path string) error {
	text, err := read(v.mount, "cgroup.controllers")
	if err != nil {
		return err
	}
	there := strings.Fields(text)
	folder := v.mount
	for _, part := range append([]string{"."}, strings.Split(strings.Trim(path, "/"), "/")...) {
		folder = filepath.Join(folder, part)
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
		on, err := read(folder, "cgroup.subtree_control")
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		for _, controller := range wanted {
			if !slices.Contains(there, controller) || slices.Contains(strings.Fields(on), controller) {
				continue
			}
			if err := write(folder, "cgroup.subtree_control", "+"+controller); err != nil {
				return fmt.Errorf("%w (a cgroup that holds processes cannot hold limited cgroups: choose another root)", err)
			}
		}
	}
	return nil
}

func (v v2) set(path string, sizes Sizes) error {
	folder := filepath.Join(v.mount, path)
	var failed error
	if sizes.Memory != 0 {
		failed = errors.Join(failed, writeNumber(folder, "memory.max", sizes.Memory))
	}
	if sizes.Shares != 0 {
		failed = errors.Join(failed, writeNumber(folder, "cpu.weight", weight(sizes.Shares)))
	}
	if sizes.Quota != 0 {
		failed = errors.Join(failed, write(folder, "cpu.max", fmt.Sprintf("%d %d", sizes.Quota, sizes.Period)))
	}
	if sizes.PIDs != 0 {
		failed = errors.Join(failed, writeNumber(folder, "pids.max", sizes.PIDs))
	}
	return failed
}

func (v v2) sizes(path string) (sizes Sizes, err error) {
	if sizes.Memory, _, err = v.limits(path); err != nil {
		return sizes, err
	}
	text, err := read(filepath.Join(v.mount, path), "cpu.max")
	if errors.Is(err, os.ErrNotExist) {
		return sizes, nil
	}
	if err != nil || strings.HasPrefix(text, "max") {
		return sizes, err
	}
	_, err = fmt.Sscan(text, &sizes.Quota, &sizes.Period)
	return sizes, err
}

func (v v2) limits(path string) (memory, pids int64, err error) {
	folder := filepath.Join(v.mount, path)
	if memory, err = readLimit(folder, "memory.max"); err != nil {
		return 0, 0, err
	}
	pids, err = readLimit(folder, "pids.max")
	return memory, pids, err
}

func (v v2) usage(path string) (Usage, error) {
	usage := Usage{Time: time.Now()}
	folder := filepath.Join(v.mount, path)
	cpu, err := readTable(folder, "cpu.stat")
	if err != nil {
		return usage, err
	}
	usage.CPU = time.Duration(cpu["usage_usec"]) * time.Microsecond
	stat, err := readTable(folder, "memory.stat")
	if err != nil {
		return usage, err
	}
	// The topmost group has neither memory.current nor pids.current.
	if usage.Memory, err = readLimit(folder, "memory.current"); err != nil {
		return usage, err
	}
	usage.WorkingSet = workingSet(usage.Memory, stat["inactive_file"])
	usage.RSS, usage.Faults, usage.MajorFault = stat["anon"], stat["pgfault"], stat["pgmajfault"]
	usage.Tasks, err = readLimit(folder, "pids.current")
	return usage, err
}
