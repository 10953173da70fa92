package memory

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Read reads the memory of NUMA nodes from the kernel's folder /sys/devices/system. On a kernel
// without NUMA, the one node has all memory, and no huge pages.
func Read(system fs.FS, nodes []int, all uint64) (map[int]Bank, error) {
	if _, err := fs.Stat(system, "node"); errors.Is(err, fs.ErrNotExist) {
		return map[int]Bank{nodes[0]: {Total: all}}, nil
	}
	out := map[int]Bank{}
	for _, id := range nodes {
		folder := path.Join("node", "node"+strconv.Itoa(id))
		total, err := memTotal(system, path.Join(folder, "meminfo"))
		if err != nil {
			return nil, err
		}
		bank := Bank{Total: total, HugePages: map[v1.ResourceName]uint64{}}
		pools, err := fs.Glob(system, path.Join(folder, "hugepages", "hugepages-*kB"))
		if err != nil {
			return nil, err
		}
		for _, pool := range pools {
			kib, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(path.Base(pool), "hugepages-"), "kB"), 10, 64)
			if err != nil {
				continue
			}
			text, err := fs.ReadFile(system, path.Join(pool, "nr_hugepages"))
			if err != nil {
				return nil, err
			}
			count, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", pool, err)
			}
			size := resource.NewQuantity(int64(kib<<10), resource.BinarySI)
			bank.HugePages[v1.ResourceName(v1.ResourceHugePagesPrefix+size.String())] = count * kib << 10
		}
		out[id] = bank
	}
	return out, nil
}

// memTotal reads a line such as: Node 0 MemTotal: 16316248 kB.
func memTotal(system fs.FS, name string) (uint64, error) {
	text, err := fs.ReadFile(system, name)
	if err != nil {
		return 0, err
	}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		if _, amount, found := strings.Cut(lines.Text(), "MemTotal:"); found {
			kib, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(amount), " kB"), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("%s: %w", name, err)
			}
			return kib << 10, nil
		}
	}
	return 0, fmt.Errorf("%s: no MemTotal", name)
}
