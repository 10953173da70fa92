package volumes

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// isMountPoint reports whether the folder is on another filesystem than its parent. A bind mount of
// the same filesystem is not detected.
func isMountPoint(dir string) (bool, error) {
	var inside, outside unix.Stat_t
	if err := unix.Lstat(dir, &inside); err != nil {
		return false, fmt.Errorf("%s: %w", dir, err)
	}
	if err := unix.Lstat(filepath.Dir(dir), &outside); err != nil {
		return false, fmt.Errorf("%s: %w", filepath.Dir(dir), err)
	}
	return inside.Dev != outside.Dev, nil
}

// mountsBelow lists what is mounted below a folder, or on it, in the order in which it was mounted.
func mountsBelow(dir string) ([]string, error) {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return mountPoints(string(table), dir), nil
}

// mountPoints reads the mount points below a folder, or on it, from a table of mounts as
// proc_pid_mountinfo(5) describes it.
func mountPoints(table, dir string) []string {
	const place = 4 // id, parent, device, root, mount point
	var points []string
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) <= place {
			continue
		}
		if point := unescaped(fields[place]); point == dir || strings.HasPrefix(point, dir+"/") {
			points = append(points, point)
		}
	}
	return points
}

// unescaped undoes what the kernel does to spaces and the like: \040.
func unescaped(path string) string {
	var out strings.Builder
	for i := 0; i < len(path); i++ {
		if path[i] == '\\' && i+3 < len(path) {
			if code, err := strconv.ParseUint(path[i+1:i+4], 8, 8); err == nil {
				out.WriteByte(byte(code))
				i += 3
				continue
			}
		}
		out.WriteByte(path[i])
	}
	return out.String()
}
