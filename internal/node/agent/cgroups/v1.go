package cgroups

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// hierarchies of cgroup v1: controller to mount point. Some controllers may share one.
type hierarchies map[string]string

// made are the hierarchies in which a pod's group is created. The runtime creates groups in others,
// too, so removal looks at all hierarchies.
var made = []string{"cpu", "cpuacct", "cpuset", "memory", "pids", "systemd"}

func v1Hierarchies(mount string) hierarchies {
	found := hierarchies{}
	entries, _ := os.ReadDir(mount)
	for _, entry := range entries {
		folder := filepath.Join(mount, entry.Name())
		// cpu is a link to cpu,cpuacct where both are mounted together.
		if _, err := os.Stat(filepath.Join(folder, "cgroup.procs")); err != nil || !entry.IsDir() {
			continue
		}
		for controller := range strings.SplitSeq(entry.Name(), ",") {
			found[controller] = folder
		}
	}
	return found
}

func (h hierarchies) folders(path string) (all []string) {
	seen := map[string]bool{}
	for _, mount := range h {
		if !seen[mount] {
			seen[mount] = true
			all = append(all, filepath.Join(mount, path))
		}
	}
	return all
}

// in returns a group's folder in the controller's hierarchy, if that exists.
func (h hierarchies) in(controller, path string) (folder string, found bool) {
	mount, found := h[controller]
	return filepath.Join(mount, path), found
}

func (h hierarchies) make(path string) error {
	for _, controller := range made {
		folder, found := h.in(controller, path)
		if !found {
			continue
		}
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
		if controller == "cpuset" {
			if err := inherit(h["cpuset"], path); err != nil {
				return err
			}
		}
	}
	return nil
}

// inherit copies processors and memory nodes from the parent: a new group has none, and accepts no
// process without them.
func inherit(mount, path string) error {
	above := mount
	for part := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
		folder := filepath.Join(above, part)
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			if now, err := read(folder, file); err != nil && !errors.Is(err, os.ErrNotExist) || now != "" {
				continue
			}
			value, err := read(above, file)
			if err != nil {
				return err
			}
			if err := write(folder, file, value); err != nil {
				return err
			}
		}
		above = folder
	}
	return nil
}

func (h hierarchies) set(path string, sizes Sizes) error {
	var failed error
	set := func(controller, file string, value int64) {
		folder, found := h.in(controller, path)
		if value != 0 && found {
			failed = errors.Join(failed, writeNumber(folder, file, value))
		}
	}
	set("memory", "memory.limit_in_bytes", sizes.Memory)
	set("cpu", "cpu.shares", sizes.Shares)
	set("cpu", "cpu.cfs_period_us", sizes.Period)
	set("cpu", "cpu.cfs_quota_us", sizes.Quota)
	set("pids", "pids.max", sizes.PIDs)
	return failed
}

func (h hierarchies) sizes(path string) (sizes Sizes, err error) {
	if sizes.Memory, _, err = h.limits(path); err != nil {
		return sizes, err
	}
	if folder, found := h.in("cpu", path); found {
		if sizes.Quota, err = readLimit(folder, "cpu.cfs_quota_us"); err == nil {
			sizes.Quota = max(sizes.Quota, 0) // -1: none
			sizes.Period, err = readLimit(folder, "cpu.cfs_period_us")
		}
	}
	return sizes, err
}

func (h hierarchies) limits(path string) (memory, pids int64, err error) {
	if folder, found := h.in("memory", path); found {
		if memory, err = readLimit(folder, "memory.limit_in_bytes"); err != nil {
			return 0, 0, err
		}
	}
	if folder, found := h.in("pids", path); found {
		pids, err = readLimit(folder, "pids.max")
	}
	return memory, pids, err
}

func (h hierarchies) usage(path string) (Usage, error) {
	usage := Usage{Time: time.Now()}
	memory, _ := h.in("memory", path)
	var err error
	if usage.Memory, err = readNumber(memory, "memory.usage_in_bytes"); err != nil {
		return usage, err
	}
	stat, err := readTable(memory, "memory.stat")
	if err != nil {
		return usage, err
	}
	usage.WorkingSet = workingSet(usage.Memory, stat["total_inactive_file"])
	usage.RSS, usage.Faults, usage.MajorFault = stat["total_rss"], stat["total_pgfault"], stat["total_pgmajfault"]
	if folder, found := h.in("cpuacct", path); found {
		nanoseconds, err := readNumber(folder, "cpuacct.usage")
		if err != nil {
			return usage, err
		}
		usage.CPU = time.Duration(nanoseconds)
	}
	if folder, found := h.in("pids", path); found {
		// The topmost group does not count.
		usage.Tasks, err = readLimit(folder, "pids.current")
	}
	return usage, err
}
