// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2ereal

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// usage is the CPU time by program, in seconds, including the children that have ended.
type usage map[string]float64

// cpuUsage returns the CPU time of all processes of the cluster. Other processes of the machine are
// outside the PID namespace.
func cpuUsage() usage {
	used := usage{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range stats {
		stat, err := os.ReadFile(file)
		open, end := strings.IndexByte(string(stat), '('), strings.LastIndexByte(string(stat), ')')
		if err != nil || end < 0 {
			continue // the process has ended
		}
		const first, last, perSecond = 11, 14, 100 // fields of proc(5), counted after the name
		fields, ticks := strings.Fields(string(stat[end+1:])), 0
		for _, field := range fields[first : last+1] {
			n, _ := strconv.Atoi(field)
			ticks += n
		}
		used[string(stat[open+1:end])] += float64(ticks) / perSecond
	}
	return used
}

// since describes the programs that used at least a second since the earlier measurement.
func (u usage) since(before usage) string {
	for name := range u {
		u[name] -= before[name]
	}
	names := slices.SortedFunc(maps.Keys(u), func(a, b string) int { return cmp.Compare(u[b], u[a]) })
	var parts []string
	for _, name := range names {
		if u[name] >= 1 {
			parts = append(parts, fmt.Sprintf("%s %.0f", name, u[name]))
		}
	}
	return strings.Join(parts, ", ")
}
