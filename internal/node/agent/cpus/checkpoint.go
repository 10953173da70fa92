package cpus

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"
	"k8s.io/utils/dump"
)

// CheckpointFile is the name of the checkpoint, in the agent's folder.
const CheckpointFile = "cpu_manager_state"

// checkpoint is the content of the kubelet's file, of its version 2. Names and order of the fields
// count for the checksum.
type checkpoint struct {
	PolicyName    string                       `json:"policyName"`
	DefaultCPUSet string                       `json:"defaultCpuSet"`
	Entries       map[string]map[string]string `json:"entries,omitempty"`
	Checksum      checksum                     `json:"checksum"`
}

type checksum uint64

// sum is the kubelet's checksum, a hash of the content printed with the kubelet's names of the
// types.
func (c checkpoint) sum() checksum {
	c.Checksum = 0
	text := dump.ForHash(&c)
	text = strings.Replace(text, "(*cpus.checkpoint)", "(*state.CPUManagerCheckpoint)", 1)
	if i := strings.LastIndex(text, "(cpus.checksum)"); i >= 0 {
		text = text[:i] + strings.Replace(text[i:], "(cpus.checksum)", "(checksum.Checksum)", 1)
	}
	hash := fnv.New32a()
	fmt.Fprintf(hash, "%v", text)
	return checksum(hash.Sum32())
}

// Encode returns the checkpoint of a policy's state.
func Encode(policy string, s State) ([]byte, error) {
	c := checkpoint{PolicyName: policy, DefaultCPUSet: s.Pool.String(), Entries: map[string]map[string]string{}}
	for pod, containers := range s.Given {
		c.Entries[string(pod)] = map[string]string{}
		for name, cpus := range containers {
			c.Entries[string(pod)][name] = cpus.String()
		}
	}
	c.Checksum = c.sum()
	return json.Marshal(c)
}

// Decode reads a checkpoint, which must be of this policy. The messages are the kubelet's.
func Decode(policy string, text []byte) (State, error) {
	s := State{Given: map[types.UID]map[string]cpuset.CPUSet{}}
	c := checkpoint{Entries: map[string]map[string]string{}}
	if err := json.Unmarshal(text, &c); err != nil {
		return s, err
	}
	if c.Checksum != 0 && c.Checksum != c.sum() {
		return s, errors.New("checkpoint is corrupted")
	}
	if c.PolicyName != policy {
		return s, fmt.Errorf("configured policy %q differs from state checkpoint policy %q", policy, c.PolicyName)
	}
	var err error
	if s.Pool, err = cpuset.Parse(c.DefaultCPUSet); err != nil {
		return s, fmt.Errorf("could not parse default cpu set %q: %w", c.DefaultCPUSet, err)
	}
	for pod, containers := range c.Entries {
		s.Given[types.UID(pod)] = map[string]cpuset.CPUSet{}
		for name, text := range containers {
			cpus, err := cpuset.Parse(text)
			if err != nil {
				return s, fmt.Errorf("could not parse cpuset %q for container %q in pod %q: %w", text, name, pod, err)
			}
			s.Given[types.UID(pod)][name] = cpus
		}
	}
	return s, nil
}
