package topology

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"k8s.io/utils/cpuset"
)

// CPU is where a logical CPU, a hardware thread, is.
type CPU struct {
	// Core is the physical core, as the lowest CPU of it that is online: unlike the kernel's
	// core_id it is unique on the machine.
	Core   int
	Socket int
	// Node is the NUMA node.
	Node int
	// Cache is the last-level cache that it shares with others; where the kernel shows none, the
	// socket.
	Cache int
}

// Machine is the arrangement of a machine. It does not change while the machine is up.
type Machine struct {
	// CPUs are those online, by number.
	CPUs map[int]CPU
	// Nodes are the NUMA nodes in order, also those without CPUs; at least one.
	Nodes []int
	// Distances are those from each node to all, in the order of Nodes.
	Distances map[int][]uint64
}

// All returns the CPUs that are online.
func (m *Machine) All() cpuset.CPUSet {
	all := make([]int, 0, len(m.CPUs))
	for cpu := range m.CPUs {
		all = append(all, cpu)
	}
	return cpuset.New(all...)
}

// Where returns the CPUs of which a property has this value, as in Where(CPU.NodeOf, 1).
func (m *Machine) Where(property func(CPU) int, is int) cpuset.CPUSet {
	var all []int
	for cpu, at := range m.CPUs {
		if property(at) == is {
			all = append(all, cpu)
		}
	}
	return cpuset.New(all...)
}

// IDs returns all values of a property, in order.
func (m *Machine) IDs(property func(CPU) int) (ids []int) {
	for _, at := range m.CPUs {
		ids = append(ids, property(at))
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// CoreOf, SocketOf, NodeOf and CacheOf are the properties of a CPU.
func (c CPU) CoreOf() int   { return c.Core }
func (c CPU) SocketOf() int { return c.Socket }
func (c CPU) NodeOf() int   { return c.Node }
func (c CPU) CacheOf() int  { return c.Cache }

// Threads is how many CPUs a core has; the most, if cores differ.
func (m *Machine) Threads() (most int) {
	count := map[int]int{}
	for _, at := range m.CPUs {
		count[at.Core]++
		most = max(most, count[at.Core])
	}
	return most
}

// Read reads the arrangement from the kernel's folder /sys/devices/system.
func Read(system fs.FS) (*Machine, error) {
	online, err := readSet(system, "cpu/online")
	if err != nil {
		return nil, fmt.Errorf("read which CPUs are online: %w", err)
	}
	m := &Machine{CPUs: map[int]CPU{}}
	nodes, err := m.readNodes(system)
	if err != nil {
		return nil, err
	}
	for _, cpu := range online.List() {
		folder := path.Join("cpu", "cpu"+strconv.Itoa(cpu))
		at := CPU{Core: cpu, Node: nodes[cpu]}
		// Both are missing on some virtual machines: one socket, one thread per core.
		if siblings, err := readSet(system, path.Join(folder, "topology/thread_siblings_list")); err == nil {
			if both := siblings.Intersection(online); both.Contains(cpu) {
				at.Core = both.List()[0]
			}
		}
		if socket, err := readNumber(system, path.Join(folder, "topology/physical_package_id")); err == nil {
			at.Socket = max(socket, 0)
		}
		at.Cache = lastLevel(system, folder, at.Socket)
		m.CPUs[cpu] = at
	}
	if len(m.CPUs) == 0 {
		return nil, errors.New("read which CPUs are online: none is")
	}
	return m, nil
}

// readNodes reads the NUMA nodes, and returns the node of each CPU. A kernel without NUMA has one.
func (m *Machine) readNodes(system fs.FS) (of map[int]int, err error) {
	of, m.Distances = map[int]int{}, map[int][]uint64{}
	entries, err := fs.ReadDir(system, "node")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the NUMA nodes: %w", err)
	}
	for _, entry := range entries {
		number, is := strings.CutPrefix(entry.Name(), "node")
		node, err := strconv.Atoi(number)
		if !is || err != nil {
			continue
		}
		if node > 63 {
			return nil, fmt.Errorf("NUMA node %d: nodes from 64 on are not supported", node)
		}
		folder := path.Join("node", entry.Name())
		cpus, err := readSet(system, path.Join(folder, "cpulist"))
		if err != nil {
			return nil, fmt.Errorf("read the CPUs of NUMA node %d: %w", node, err)
		}
		for _, cpu := range cpus.UnsortedList() {
			of[cpu] = node
		}
		m.Nodes = append(m.Nodes, node)
		text, _ := fs.ReadFile(system, path.Join(folder, "distance"))
		for field := range strings.FieldsSeq(string(text)) {
			if distance, err := strconv.ParseUint(field, 10, 64); err == nil {
				m.Distances[node] = append(m.Distances[node], distance)
			}
		}
	}
	if len(m.Nodes) == 0 {
		m.Nodes = []int{0}
	}
	slices.Sort(m.Nodes)
	return of, nil
}

// lastLevel is the number of the third-level cache of a CPU; the socket if it has none.
func lastLevel(system fs.FS, folder string, socket int) int {
	for i := range 10 {
		cache := path.Join(folder, "cache", "index"+strconv.Itoa(i))
		if level, err := readNumber(system, path.Join(cache, "level")); err != nil || level != 3 {
			continue
		}
		if id, err := readNumber(system, path.Join(cache, "id")); err == nil {
			return id
		}
	}
	return socket
}

func readSet(system fs.FS, name string) (cpuset.CPUSet, error) {
	text, err := fs.ReadFile(system, name)
	if err != nil {
		return cpuset.New(), err
	}
	return cpuset.Parse(strings.TrimSpace(string(text)))
}

func readNumber(system fs.FS, name string) (int, error) {
	text, err := fs.ReadFile(system, name)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}
