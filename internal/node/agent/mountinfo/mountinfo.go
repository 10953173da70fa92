// Package mountinfo lists what is mounted on the machine.
package mountinfo

import (
	"os"
	"slices"
	"strconv"
	"strings"
)

// Below lists what is mounted below a folder, or on it, in the order in which it was mounted.
func Below(dir string) ([]string, error) {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return points(string(table), dir), nil
}

// points reads the mount points below a folder, or on it, from a table of mounts as
// proc_pid_mountinfo(5) describes it.
func points(table, dir string) []string {
	const place = 4 // id, parent, device, root, mount point
	var found []string
	for line := range strings.Lines(table) {
		fields := strings.Split(line, " ") // at no other white space: the kernel leaves that in names as it is
		if len(fields) <= place {
			continue
		}
		if point := unescaped(fields[place]); point == dir || strings.HasPrefix(point, dir+"/") {
			found = append(found, point)
		}
	}
	return found
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

// On reports whether something is mounted on a folder or file.
func On(path string) (bool, error) {
	below, err := Below(path)
	return slices.Contains(below, path), err
}
