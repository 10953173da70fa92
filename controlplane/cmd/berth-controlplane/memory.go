// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

// mostMemory bounds the default limit.
const mostMemory = 8 << 30

// memoryLimit parses --memory-limit into bytes. Empty selects GOMEMLIMIT if set, or else three
// quarters of the memory available to the process, but 8 GiB at most. The error names the flag.
func memoryLimit(given string) (int64, error) {
	if given != "" {
		q, err := resource.ParseQuantity(given)
		if err != nil || q.Sign() <= 0 {
			return 0, fmt.Errorf("--memory-limit %q: must be an amount of memory, such as 4Gi", given)
		}
		return q.Value(), nil
	}
	// A negative limit only returns the current one, set by GOMEMLIMIT.
	if set := debug.SetMemoryLimit(-1); set < math.MaxInt64 {
		return set, nil
	}
	return min(mostMemory, machineMemory()/4*3, groupMemory("/proc/self/cgroup", "/sys/fs/cgroup")/4*3), nil
}

// groupMemory returns the lowest memory limit of the process's control groups, version 1 or 2, and
// their ancestors, for example a container's. Without a limit it returns twice mostMemory. groups
// is the file listing the process's groups; mounted is their mount point.
func groupMemory(groups, mounted string) int64 {
	lowest := int64(2 * mostMemory)
	text, err := os.ReadFile(groups)
	if err != nil {
		return lowest
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3) // number:controllers:path
		if len(fields) < 3 {
			continue
		}
		dir, file := mounted, "memory.max"
		// Version 1 has a separate hierarchy for each controller; version 2 has no controllers in
		// its line.
		if fields[1] != "" {
			dir, file = filepath.Join(mounted, "memory"), "memory.limit_in_bytes"
			if !slices.Contains(strings.Split(fields[1], ","), "memory") {
				continue
			}
		}
		// A group's limit applies to all groups below it.
		for at := filepath.Clean("/" + fields[2]); ; at = filepath.Dir(at) {
			limit, err := os.ReadFile(filepath.Join(dir, at, file))
			if n, bad := strconv.ParseInt(strings.TrimSpace(string(limit)), 10, 64); err == nil && bad == nil && n > 0 { // skips "max"
				lowest = min(lowest, n)
			}
			if at == "/" {
				break
			}
		}
	}
	return lowest
}

// machineMemory returns the machine's memory, or twice mostMemory if unknown. It is unknown on
// systems without /proc.
func machineMemory() int64 {
	file, err := os.Open("/proc/meminfo")
	if err != nil {
		return 2 * mostMemory
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var kib int64
		if _, err := fmt.Sscanf(lines.Text(), "MemTotal: %d kB", &kib); err == nil {
			return kib << 10
		}
	}
	return 2 * mostMemory
}

// watchMemory calls end once the process holds more than the limit, until the context ends. Above
// nine tenths of the limit, the garbage collector works harder. Without a limit, a tenant's stored
// objects could exhaust the machine's memory, and the kernel would kill some process without an
// explanation. watchMemory checks four times a second, measuring the system memory held by the
// process rather than the size of its objects.
func watchMemory(ctx context.Context, limit int64, end func(error)) {
	const often = 250 * time.Millisecond
	debug.SetMemoryLimit(limit / 10 * 9)
	held := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	ticker := time.NewTicker(often)
	defer ticker.Stop()

	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		// Read the memory held by the runtime and not yet returned to the system.
		metrics.Read(held)
		if now := held[0].Value.Uint64() - held[1].Value.Uint64(); now > uint64(limit) {
			end(fmt.Errorf("%d MiB of memory are in use, and the limit is %d MiB: the cluster's objects are too many or too large; "+
				"acknowledged writes are on disk: set GOMEMLIMIT or --memory-limit higher and remove some", now>>20, limit>>20))
			return
		}
	}
}
