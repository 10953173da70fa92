package cgroups

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// write writes a file of a group if its content differs: some writes cost the kernel work even if
// they change nothing.
func write(folder, file, value string) error {
	path := filepath.Join(folder, file)
	if now, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(now)) == value {
		return nil
	}
	if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
		return fmt.Errorf("write %s: %w", value, err)
	}
	return nil
}

func writeNumber(folder, file string, value int64) error {
	return write(folder, file, strconv.FormatInt(value, 10))
}

func read(folder, file string) (string, error) {
	text, err := os.ReadFile(filepath.Join(folder, file))
	return strings.TrimSpace(string(text)), err
}

// unlimited is the smallest value that means "none" in cgroup v1, which then shows the largest
// number of bytes in whole pages, whatever the page size.
const unlimited = int64(1<<63 - 1<<20)

// readNumber reads a file with one number. "max", and what amounts to no limit, is 0.
func readNumber(folder, file string) (int64, error) {
	text, err := read(folder, file)
	if err != nil || text == "max" {
		return 0, err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", filepath.Join(folder, file), err)
	}
	if n >= unlimited {
		return 0, nil
	}
	return n, nil
}

// readLimit is readNumber for files that a group may lack: the topmost has no limits.
func readLimit(folder, file string) (int64, error) {
	n, err := readNumber(folder, file)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	return n, err
}

// readTable reads a file of names and numbers.
func readTable(folder, file string) (map[string]int64, error) {
	text, err := read(folder, file)
	if err != nil {
		return nil, err
	}
	table := map[string]int64{}
	for line := range strings.Lines(text) {
		if name, value, found := strings.Cut(strings.TrimSpace(line), " "); found {
			if n, err := strconv.ParseInt(value, 10, 64); err == nil {
				table[name] = n
			}
		}
	}
	return table, nil
}
