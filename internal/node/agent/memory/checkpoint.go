package memory

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/dump"
)

// CheckpointFile is the name of the checkpoint, in the agent's folder.
const CheckpointFile = "memory_manager_state"

// checkpoint is the content of the kubelet's file. Names and order of the fields count for the
// checksum, here and in what it contains.
type checkpoint struct {
	PolicyName   string      `json:"policyName"`
	MachineState Machine     `json:"machineState"`
	Entries      assignments `json:"entries,omitempty"`
	Checksum     checksum    `json:"checksum"`
}

type (
	assignments map[string]map[string][]Block
	checksum    uint64
)

// kubeletNames are those of the types in the kubelet.
var kubeletNames = strings.NewReplacer(
	"memory.checkpoint", "state.MemoryManagerCheckpoint", "memory.Machine", "state.NUMANodeMap", "memory.Node", "state.NUMANodeState",
	"memory.Table", "state.MemoryTable", "memory.Block", "state.Block", "memory.assignments", "state.ContainerMemoryAssignments", "memory.checksum", "checksum.Checksum",
)

// sum is the kubelet's checksum, a hash of the content printed with the kubelet's names of the
// types.
func (c checkpoint) sum() checksum {
	c.Checksum = 0
	hash := fnv.New32a()
	fmt.Fprintf(hash, "%v", kubeletNames.Replace(dump.ForHash(&c)))
	return checksum(hash.Sum32())
}

// Encode returns the checkpoint of a policy's state.
func Encode(policy string, s State) ([]byte, error) {
	c := checkpoint{PolicyName: policy, MachineState: s.Machine, Entries: assignments{}}
	if c.MachineState == nil {
		c.MachineState = Machine{}
	}
	for pod, containers := range s.Given {
		c.Entries[string(pod)] = containers
	}
	c.Checksum = c.sum()
	return json.Marshal(c)
}

// Decode reads a checkpoint, which must be of this policy. The messages are the kubelet's.
func Decode(policy string, text []byte) (State, error) {
	s := State{Machine: Machine{}, Given: map[types.UID]map[string][]Block{}}
	c := checkpoint{MachineState: Machine{}, Entries: assignments{}}
	if err := json.Unmarshal(text, &c); err != nil {
		return s, err
	}
	if c.Checksum != 0 && c.Checksum != c.sum() {
		return s, errors.New("checkpoint is corrupted")
	}
	if c.PolicyName != policy {
		return s, fmt.Errorf("[memorymanager] configured policy %q differs from state checkpoint policy %q", policy, c.PolicyName)
	}
	for id, node := range c.MachineState {
		if node == nil {
			return s, fmt.Errorf("[memorymanager] machine state of NUMA node %d is empty", id)
		}
		for name, table := range node.MemoryMap {
			if table == nil {
				return s, fmt.Errorf("[memorymanager] machine state of NUMA node %d has nothing for %s", id, name)
			}
		}
	}
	s.Machine = c.MachineState
	for pod, containers := range c.Entries {
		s.Given[types.UID(pod)] = containers
	}
	return s, nil
}
