package memory

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Policies, by the kubelet's names.
const (
	None   = "None"
	Static = "Static"
)

// Bank is the memory of a NUMA node, in bytes.
type Bank struct {
	Total uint64
	// HugePages is what of it is set aside for huge pages, by the name of the resource.
	HugePages map[v1.ResourceName]uint64
}

// Reserved is what of each NUMA node is kept from containers, by node and resource.
type Reserved map[int]v1.ResourceList

// Policy is the static policy on a machine. It does not change.
type Policy struct {
	banks    map[int]Bank
	reserved Reserved
}

// New returns the policy for a machine. all is what the node reserves altogether, with what
// eviction keeps free: reserved has to say of which nodes all of it is.
func New(banks map[int]Bank, reserved Reserved, all v1.ResourceList) (*Policy, error) {
	sums := v1.ResourceList{}
	for node, list := range reserved {
		if _, there := banks[node]; !there {
			return nil, fmt.Errorf("the reserved memory configuration references a NUMA node %d that does not exist on this machine", node)
		}
		for name, amount := range list {
			sum := sums[name]
			sum.Add(amount)
			sums[name] = sum
		}
	}
	for _, name := range slices.Sorted(maps.Keys(merged(sums, all))) {
		if sum, want := sums[name], all[name]; managed(name) && sum.Cmp(want) != 0 {
			return nil, fmt.Errorf("the total amount %q of type %q is not equal to the value %q determined by Node Allocatable feature", sum.String(), name, want.String())
		}
	}
	if total := sums[v1.ResourceMemory]; total.Sign() <= 0 {
		return nil, errors.New("[memorymanager] you should specify the system reserved memory")
	}
	return &Policy{banks: banks, reserved: reserved}, nil
}

func merged(a, b v1.ResourceList) v1.ResourceList {
	out := maps.Clone(a)
	maps.Copy(out, b)
	return out
}

// managed reports whether a resource comes from NUMA nodes' memory.
func managed(name v1.ResourceName) bool {
	return name == v1.ResourceMemory || strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix)
}

// empty is the account of the machine without pods.
func (p *Policy) empty() Machine {
	out := Machine{}
	for id, bank := range p.banks {
		node := &Node{MemoryMap: map[v1.ResourceName]*Table{}, Cells: []int{id}}
		var pages uint64
		for name, total := range bank.HugePages {
			node.MemoryMap[name] = p.table(id, name, total, total)
			pages += total
		}
		node.MemoryMap[v1.ResourceMemory] = p.table(id, v1.ResourceMemory, bank.Total, bank.Total-min(pages, bank.Total))
		out[id] = node
	}
	return out
}

func (p *Policy) table(node int, name v1.ResourceName, total, usable uint64) *Table {
	amount := p.reserved[node][name]
	kept := uint64(amount.Value())
	left := usable - min(kept, usable)
	return &Table{TotalMemSize: total, SystemReserved: kept, Allocatable: left, Free: left}
}

// ParseReserved reads the kubelet's flag: 0:memory=1Gi,hugepages-2Mi=100Mi;1:memory=2Gi.
func ParseReserved(text string) (Reserved, error) {
	out := Reserved{}
	for part := range strings.SplitSeq(text, ";") {
		if strings.TrimSpace(part) == "" {
			continue
		}
		number, list, found := strings.Cut(part, ":")
		node, err := strconv.Atoi(strings.TrimSpace(number))
		if err != nil || !found || node < 0 {
			return nil, fmt.Errorf("invalid memory reservation %q: must be NODE:RESOURCE=AMOUNT, with more of RESOURCE=AMOUNT after commas", part)
		}
		if out[node] == nil {
			out[node] = v1.ResourceList{}
		}
		for pair := range strings.SplitSeq(list, ",") {
			name, amount, _ := strings.Cut(strings.TrimSpace(pair), "=")
			quantity, err := resource.ParseQuantity(amount)
			if err != nil || !managed(v1.ResourceName(name)) || quantity.Sign() <= 0 {
				return nil, fmt.Errorf("invalid memory reservation %q: must be memory or hugepages-SIZE, and an amount", pair)
			}
			if _, twice := out[node][v1.ResourceName(name)]; twice {
				return nil, fmt.Errorf("invalid memory reservation: %s of NUMA node %d is given twice", name, node)
			}
			out[node][v1.ResourceName(name)] = quantity
		}
	}
	return out, nil
}
