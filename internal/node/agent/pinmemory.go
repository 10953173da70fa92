package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/durable"
	"github.com/berth-k8s/berth/internal/node/agent/memory"
)

// openMemory reads the memory of the NUMA nodes and the checkpoint, which has to be of the same
// policy. system is the kernel's folder /sys/devices/system, capacity the node's.
func (p *pinning) openMemory(c Config, system fs.FS, capacity v1.ResourceList) error {
	p.memoryFile = filepath.Join(c.RootDir, memory.CheckpointFile)
	policy := c.MemoryPolicy
	if policy == "" {
		policy = memory.None
	}
	restored, err := p.readMemory(policy)
	if err != nil || policy == memory.None {
		return err
	}
	banks, err := memory.Read(system, p.machine.Nodes, uint64(capacity.Memory().Value()))
	if err != nil {
		return fmt.Errorf("read the memory of the NUMA nodes: %w", err)
	}
	all := v1.ResourceList{v1.ResourceMemory: threshold(c.Eviction.Hard["memory.available"], capacity[v1.ResourceMemory])}
	for _, list := range []v1.ResourceList{c.KubeReserved, c.SystemReserved} {
		for name, amount := range list {
			sum := all[name]
			sum.Add(amount)
			all[name] = sum
		}
	}
	if p.memory, err = memory.New(banks, c.ReservedMemory, all); err != nil {
		return fmt.Errorf("memory manager policy %s: %w", memory.Static, err)
	}
	if p.banks, err = p.memory.Begin(restored); err != nil {
		return fmt.Errorf("invalid state, please drain node and remove policy state file %q: %w", p.memoryFile, err)
	}
	if len(restored.Machine) > 0 {
		return nil // it is in the file: an agent starts on a full disk, too
	}
	return p.writeMemory(memory.Static, p.banks)
}

// readMemory reads the checkpoint. Without one, an empty one is written, as with CPUs.
func (p *pinning) readMemory(policy string) (memory.State, error) {
	text, err := os.ReadFile(p.memoryFile)
	if errors.Is(err, os.ErrNotExist) {
		err := p.writeMemory(policy, memory.State{})
		if err != nil && policy == memory.None {
			klog.ErrorS(err, "Cannot record the memory manager's policy; a later change of it is not noticed", "file", p.memoryFile)
			err = nil
		}
		return memory.State{}, err
	}
	state := memory.State{}
	if err == nil {
		state, err = memory.Decode(policy, text)
	}
	if err != nil {
		return state, fmt.Errorf("could not restore state from checkpoint: %w, please drain this node and delete the memory manager checkpoint file %q before restarting Kubelet", err, p.memoryFile)
	}
	return state, nil
}

func (p *pinning) writeMemory(policy string, s memory.State) error {
	text, err := memory.Encode(policy, s)
	if err != nil {
		return err
	}
	return durable.Replace(p.memoryFile, text, 0o600)
}

// releaseMemory takes back a pod's memory. The caller holds the mutex.
func (p *pinning) releaseMemory(pod types.UID) bool {
	if _, has := p.banks.Given[pod]; !has {
		return false
	}
	p.banks = p.banks.Release(pod)
	if err := p.writeMemory(memory.Static, p.banks); err != nil {
		klog.ErrorS(err, "Cannot record that a pod's memory is free", "uid", pod)
	}
	return true
}

// memoryOf returns the NUMA nodes from which a container gets its memory, in the runtime's
// notation; empty means any.
func (p *pinning) memoryOf(pod types.UID, container string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var nodes []string
	for _, id := range p.banks.Nodes(pod, container) {
		nodes = append(nodes, strconv.Itoa(id))
	}
	return strings.Join(nodes, ",")
}

// blocks is what a container has of the NUMA nodes' memory.
func (p *pinning) blocks(pod types.UID, container string) []memory.Block {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.banks.Given[pod][container]
}

// allocatableBlocks is what containers can have of the NUMA nodes' memory altogether.
func (p *pinning) allocatableBlocks() []memory.Block {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.banks.Allocatable()
}

// ownIDs are the CPUs that a container has of its own.
func (p *pinning) ownIDs(pod types.UID, container string) []int {
	return p.own(pod, container).List()
}

// allocatableIDs are the CPUs that containers can have of their own.
func (p *pinning) allocatableIDs() []int {
	if p.policy == nil {
		return nil
	}
	return p.machine.All().Difference(p.policy.Reserved()).List()
}
