package memory

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Table is the account of one resource of a node, in bytes. Free and Reserved, which is what
// containers have, add up to Allocatable.
type Table struct {
	TotalMemSize   uint64 `json:"total"`
	SystemReserved uint64 `json:"systemReserved"`
	Allocatable    uint64 `json:"allocatable"`
	Reserved       uint64 `json:"reserved"`
	Free           uint64 `json:"free"`
}

// Node is the account of a NUMA node.
type Node struct {
	// NumberOfAssignments counts the blocks of containers that the node has a part in.
	NumberOfAssignments int `json:"numberOfAssignments"`
	// MemoryMap has memory, and each size of huge pages that the machine has.
	MemoryMap map[v1.ResourceName]*Table `json:"memoryMap"`
	// Cells are the nodes of the group that this one is used in: itself alone, or several.
	Cells []int `json:"cells"`
}

// Machine is the account of all NUMA nodes, by number.
type Machine map[int]*Node

// Block is what a container has of a resource.
type Block struct {
	NUMAAffinity []int           `json:"numaAffinity"`
	Type         v1.ResourceName `json:"type"`
	Size         uint64          `json:"size"`
}

// State is who has memory of which nodes. The zero value is unknown: see Begin.
type State struct {
	Machine Machine
	// Given is what containers have, by pod and name. Of an init container only that counts which
	// no later container has.
	Given map[types.UID]map[string][]Block
}

// clone is a copy that shares nothing that changes.
func (s State) clone() State {
	out := State{Machine: Machine{}, Given: map[types.UID]map[string][]Block{}}
	for id, node := range s.Machine {
		copied := &Node{NumberOfAssignments: node.NumberOfAssignments, MemoryMap: map[v1.ResourceName]*Table{}, Cells: slices.Clone(node.Cells)}
		for name, table := range node.MemoryMap {
			copied.MemoryMap[name] = new(*table)
		}
		out.Machine[id] = copied
	}
	for pod, containers := range s.Given {
		out.Given[pod] = map[string][]Block{}
		for name, blocks := range containers {
			out.Given[pod][name] = slices.Clone(blocks)
		}
	}
	return out
}

// Nodes are the nodes that a container's memory comes from; none: any.
func (s State) Nodes(pod types.UID, container string) (out []int) {
	for _, block := range s.Given[pod][container] {
		out = append(out, block.NUMAAffinity...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Allocatable is what containers can have of each node altogether.
func (s State) Allocatable() (out []Block) {
	for _, id := range slices.Sorted(maps.Keys(s.Machine)) {
		tables := s.Machine[id].MemoryMap
		for _, name := range slices.Sorted(maps.Keys(tables)) {
			if size := tables[name].Allocatable; size > 0 {
				out = append(out, Block{NUMAAffinity: []int{id}, Type: name, Size: size})
			}
		}
	}
	return out
}

// Release returns the state without a pod.
func (s State) Release(pod types.UID) State {
	out := s.clone()
	for _, name := range slices.Sorted(maps.Keys(out.Given[pod])) {
		for _, block := range out.Given[pod][name] {
			out.Machine.release(block)
		}
	}
	delete(out.Given, pod)
	return out
}

// take reserves a block. What an init container had of it is reserved already. A node that has too
// little gives all that it has, and the next one the rest.
func (m Machine) take(block Block, reused uint64) {
	left := block.Size - min(block.Size, reused)
	for _, id := range block.NUMAAffinity {
		node := m[id]
		node.NumberOfAssignments++
		node.Cells = block.NUMAAffinity
		if table := node.MemoryMap[block.Type]; table != nil {
			part := min(left, table.Free)
			table.Reserved, table.Free, left = table.Reserved+part, table.Free-part, left-part
		}
	}
}

// release gives a block back.
func (m Machine) release(block Block) {
	left := block.Size
	for _, id := range block.NUMAAffinity {
		node := m[id]
		if node.NumberOfAssignments--; node.NumberOfAssignments == 0 {
			node.Cells = []int{id}
		}
		if table := node.MemoryMap[block.Type]; table != nil {
			part := min(left, table.Reserved)
			table.Reserved, table.Free, left = table.Reserved-part, table.Free+part, left-part
		}
	}
}

// sum adds up the free or the allocatable amounts of nodes.
func (m Machine) sum(nodes []int, name v1.ResourceName, of func(*Table) uint64) (sum uint64) {
	for _, id := range nodes {
		if table := m[id].MemoryMap[name]; table != nil {
			sum += of(table)
		}
	}
	return sum
}

func free(t *Table) uint64        { return t.Free }
func reserved(t *Table) uint64    { return t.Reserved }
func allocatable(t *Table) uint64 { return t.Allocatable }

// Begin checks a state that was read from a checkpoint against the machine, and returns the state
// to go on with. An empty one becomes that of a machine without pods. The messages are the
// kubelet's.
func (p *Policy) Begin(s State) (State, error) {
	if len(s.Machine) == 0 {
		if len(s.Given) != 0 {
			return s, errors.New("[memorymanager] machine state can not be empty when it has memory assignments")
		}
		return State{Machine: p.empty()}.clone(), nil
	}
	expected := p.empty()
	for pod, containers := range s.Given {
		for container, blocks := range containers {
			for _, block := range blocks {
				for _, id := range block.NUMAAffinity {
					if expected[id] == nil {
						return s, fmt.Errorf("[memorymanager] (pod: %s, container: %s) the memory assignment uses the NUMA that does not exist", pod, container)
					}
					if expected[id].MemoryMap[block.Type] == nil {
						return s, fmt.Errorf("[memorymanager] (pod: %s, container: %s) the memory assignment uses memory resource that does not exist", pod, container)
					}
				}
				expected.take(block, 0)
			}
		}
	}
	if !s.Machine.same(expected) {
		return s, errors.New("[memorymanager] the expected machine state is different from the real one")
	}
	return s.clone(), nil
}

// same reports whether two accounts are: of a group of nodes, only what they have together counts.
func (m Machine) same(other Machine) bool {
	return maps.EqualFunc(m, other, func(a, b *Node) bool {
		return a != nil && a.NumberOfAssignments == b.NumberOfAssignments && slices.Equal(slices.Sorted(slices.Values(a.Cells)), slices.Sorted(slices.Values(b.Cells))) &&
			m.known(a.Cells) && len(a.MemoryMap) == len(b.MemoryMap) && !slices.ContainsFunc(slices.Collect(maps.Keys(a.MemoryMap)), func(name v1.ResourceName) bool {
			x, y := a.MemoryMap[name], b.MemoryMap[name]
			return x == nil || y == nil || x.TotalMemSize != y.TotalMemSize || x.SystemReserved != y.SystemReserved || x.Allocatable != y.Allocatable ||
				m.sum(a.Cells, name, free) != other.sum(a.Cells, name, free) || m.sum(a.Cells, name, reserved) != other.sum(a.Cells, name, reserved)
		})
	})
}

// known reports whether all nodes are the machine's.
func (m Machine) known(nodes []int) bool {
	return !slices.ContainsFunc(nodes, func(id int) bool { return m[id] == nil })
}
