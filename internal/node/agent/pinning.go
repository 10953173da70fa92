package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/cpuset"

	"github.com/berth-k8s/berth/internal/durable"
	"github.com/berth-k8s/berth/internal/node/admit"
	"github.com/berth-k8s/berth/internal/node/agent/cpus"
	"github.com/berth-k8s/berth/internal/node/agent/memory"
	"github.com/berth-k8s/berth/internal/node/agent/metrics"
	"github.com/berth-k8s/berth/internal/node/agent/topology"
)

// pinning is which container runs on which CPUs, and has memory of which NUMA nodes. The zero value
// lets all run on all.
type pinning struct {
	machine   *topology.Machine
	policy    *cpus.Policy   // nil: the policy is none
	memory    *memory.Policy // nil: the policy is None
	alignment topology.Alignment
	// file and memoryFile are the checkpoints. What a pod is given is there before the pod is
	// admitted.
	file, memoryFile string
	kubelet          *metrics.Kubelet
	// changed triggers a check of where containers run; it has room for one.
	changed chan struct{}

	mu    sync.Mutex
	state cpus.State
	banks memory.State
	// changes counts what was assigned and taken back.
	changes int
	// placed is where each container was put last.
	placed map[containerName]placement
}

type containerName struct {
	pod  types.UID
	name string
}

// placement is the CPUs that a container in the runtime was restricted to.
type placement struct{ id, cpus string }

// open reads the machine and the checkpoint, which has to be of the same policy. system is the
// kernel's folder /sys/devices/system.
func (p *pinning) open(c Config, system fs.FS, kubelet *metrics.Kubelet) (err error) {
	p.kubelet = kubelet
	p.file, p.alignment, p.changed = filepath.Join(c.RootDir, cpus.CheckpointFile), c.Alignment, make(chan struct{}, 1)
	p.placed = map[containerName]placement{}
	static := c.CPUPolicy == cpus.Static
	if aligned := c.Alignment.Policy != "" && c.Alignment.Policy != topology.None; static || aligned || c.MemoryPolicy == memory.Static || !c.ReservedCPUs.IsEmpty() {
		if p.machine, err = topology.Read(system); err != nil {
			return fmt.Errorf("read how the machine's CPUs are arranged: %w", err)
		}
		if err := c.Alignment.Suits(p.machine); err != nil {
			return fmt.Errorf("topology manager policy %s: %w", c.Alignment.Policy, err)
		}
		if online := p.machine.All(); !c.ReservedCPUs.IsSubsetOf(online) {
			return fmt.Errorf("reserved-cpus: %s is not a subset of online-cpus: %s", c.ReservedCPUs, online)
		}
	}
	restored, err := p.read(c.CPUPolicy)
	if err != nil || !static {
		return err
	}
	reserved := c.KubeReserved.Cpu().MilliValue() + c.SystemReserved.Cpu().MilliValue()
	if p.policy, err = cpus.New(p.machine, int((reserved+999)/1000), c.ReservedCPUs, c.CPUOptions); err != nil {
		return fmt.Errorf("CPU manager policy %s: %w", cpus.Static, err)
	}
	if p.state, err = p.policy.Begin(restored); err != nil {
		return fmt.Errorf("invalid state, please drain node and remove policy state file %q: %w", p.file, err)
	}
	p.kubelet.Assigned(p.policy.Count(p.state))
	if p.state.Pool.Equals(restored.Pool) {
		return nil // it is in the file: an agent starts on a full disk, too
	}
	return p.write(cpus.Static, p.state)
}

// read reads the checkpoint. Without one, an empty one is written, so that a later change of the
// policy is noticed; a node whose policy is none does without if it cannot be written.
func (p *pinning) read(policy string) (cpus.State, error) {
	if policy == "" {
		policy = cpus.None
	}
	text, err := os.ReadFile(p.file)
	if errors.Is(err, os.ErrNotExist) {
		err := p.write(policy, cpus.State{})
		if err != nil && policy == cpus.None {
			klog.ErrorS(err, "Cannot record the CPU manager's policy; a later change of it is not noticed", "file", p.file)
			err = nil
		}
		return cpus.State{}, err
	}
	state := cpus.State{}
	if err == nil {
		state, err = cpus.Decode(policy, text)
	}
	if err != nil {
		return state, fmt.Errorf("could not restore state from checkpoint: %w, please drain this node and delete the CPU manager checkpoint file %q before restarting Kubelet", err, p.file)
	}
	return state, nil
}

// write replaces the checkpoint; a crash leaves the old one or the new one.
func (p *pinning) write(policy string, s cpus.State) error {
	text, err := cpus.Encode(policy, s)
	if err != nil {
		return err
	}
	return durable.Replace(p.file, text, 0o600)
}

// aligns reports whether resources of a container have to be near each other.
func (p *pinning) aligns() bool { return !p.alignment.Off() }

// align lets a provider assign its resource near the CPUs and the memory that the pod could be
// given now; these it is not given yet. If changes is another number later, others have been given
// some, or have given some back.
func (p *pinning) align(pod *v1.Pod, provider topology.Provider) (refused *topology.Refusal, changes int) {
	p.mu.Lock()
	_, providers := p.drafts(provider)
	changes = p.changes
	p.mu.Unlock()
	return p.alignment.Assign(p.machine, pod, providers...), changes
}

// refuse returns why a pod cannot be given what it requests; nil: it can, or needs nothing. held
// provides hints about what it has already; nil: nothing has.
func (p *pinning) refuse(pod *v1.Pod, held topology.Provider) (refused *admit.Refusal, changes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.concerns(pod) && held == nil {
		return nil, p.changes
	}
	began := time.Now()
	draft, refused := p.draft(pod, held)
	pinned := 0
	if draft.cpus != nil {
		pinned = draft.cpus.Pinned
	}
	p.kubelet.Aligned(time.Since(began), pinned, refused != nil)
	return refused, p.changes
}

// concerns reports whether something is assigned to a pod.
func (p *pinning) concerns(pod *v1.Pod) bool {
	return p.policy != nil && cpus.Eligible(pod) || p.memory != nil && memory.Eligible(pod)
}

// drafts are the states as they become if a pod is admitted; nil: that one has no policy.
type drafts struct {
	cpus   *cpus.Draft
	memory *memory.Draft
}

// drafts are the states as they are, with the providers for a pod in the kubelet's order. first is
// that of devices; nil: there is none. The caller holds the mutex.
func (p *pinning) drafts(first topology.Provider) (draft drafts, providers []topology.Provider) {
	if first != nil {
		providers = append(providers, first)
	}
	if p.policy != nil {
		draft.cpus = p.policy.Draft(p.state)
		providers = append(providers, draft.cpus)
	}
	if p.memory != nil {
		draft.memory = p.memory.Draft(p.banks)
		providers = append(providers, draft.memory)
	}
	return draft, providers
}

// draft is the state with what the pod requests. The caller holds the mutex.
func (p *pinning) draft(pod *v1.Pod, held topology.Provider) (draft drafts, refusal *admit.Refusal) {
	draft, providers := p.drafts(held)
	if refused := p.alignment.Assign(p.machine, pod, providers...); refused != nil {
		refusal = &admit.Refusal{Reason: refused.Reason, Message: refused.Message}
	}
	return draft, refusal
}

// assign gives a pod what it requests. An error is one of the disk; the pod has nothing then.
func (p *pinning) assign(pod *v1.Pod, held topology.Provider) (*admit.Refusal, error) {
	if !p.concerns(pod) {
		return nil, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	draft, refused := p.draft(pod, held)
	if refused != nil {
		return refused, nil
	}
	if draft.memory != nil {
		if err := p.writeMemory(memory.Static, draft.memory.State()); err != nil {
			return nil, fmt.Errorf("record the memory of a pod: %w", err)
		}
	}
	if draft.cpus != nil {
		if err := p.write(cpus.Static, draft.cpus.State()); err != nil {
			return nil, fmt.Errorf("record the CPUs of a pod: %w", err)
		}
		p.goOn(draft.cpus.State())
	}
	if draft.memory != nil {
		p.banks = draft.memory.State()
	}
	p.changes++
	return nil, nil
}

// release takes back what a pod has; true if it had anything. A checkpoint that cannot be written
// is no obstacle: what it has of the pod is taken back after the next start.
func (p *pinning) release(pod types.UID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	hadMemory := p.releaseMemory(pod)
	had := p.releaseCPUs(pod) || hadMemory
	if had {
		p.changes++
	}
	return had
}

// releaseCPUs takes back a pod's CPUs. The caller holds the mutex.
func (p *pinning) releaseCPUs(pod types.UID) bool {
	for name := range p.placed {
		if name.pod == pod {
			delete(p.placed, name)
		}
	}
	if _, has := p.state.Given[pod]; !has {
		return false
	}
	p.goOn(p.state.Release(pod))
	if err := p.write(cpus.Static, p.state); err != nil {
		klog.ErrorS(err, "Cannot record that a pod's CPUs are free", "uid", pod)
	}
	return true
}

// goOn makes a state the current one, and triggers a check of where containers run. The caller
// holds the mutex.
func (p *pinning) goOn(s cpus.State) {
	p.state = s
	p.kubelet.Assigned(p.policy.Count(s))
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// holders are the pods that have CPUs of their own, or memory of certain NUMA nodes.
func (p *pinning) holders() (pods []types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pods = slices.AppendSeq(slices.Collect(maps.Keys(p.state.Given)), maps.Keys(p.banks.Given))
	slices.Sort(pods)
	return slices.Compact(pods)
}

// cpusOf returns the CPUs that a container is to run on, as the runtime takes them; empty: on all.
func (p *pinning) cpusOf(pod types.UID, container string) string {
	if p.policy == nil {
		return ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.policy.For(p.state, pod, container).String()
}

// owns reports whether a container has CPUs of its own. These need no quota, which would only
// throttle it.
func (p *pinning) owns(pod types.UID, container string) bool {
	return p != nil && !p.own(pod, container).IsEmpty()
}

func (p *pinning) own(pod types.UID, container string) cpuset.CPUSet {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state.Own(pod, container)
}

// podOwns reports whether a container of the pod has CPUs of its own.
func (p *pinning) podOwns(pod *v1.Pod) bool {
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.state.Given[pod.UID]) > 0
}

// put records where a container was put.
func (p *pinning) put(pod types.UID, container, id, on string) {
	if p.policy == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.placed[containerName{pod, container}] = placement{id, on}
}

// isPlaced reports whether a container was put on these CPUs.
func (p *pinning) isPlaced(pod types.UID, container, id, on string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.placed[containerName{pod, container}] == placement{id, on}
}

// forbidsResize returns why a Guaranteed pod cannot be resized; empty: it can.
func (p *pinning) forbidsResize(wanted, have *v1.Pod) string {
	if !guaranteed(wanted) {
		return ""
	}
	before := allocated(have)
	for _, c := range resizable(wanted) {
		granted := before[c.Name]
		if p.policy != nil && !granted.Requests.Cpu().Equal(*c.Resources.Requests.Cpu()) {
			return fmt.Sprintf("Resize is infeasible for Guaranteed Pods alongside CPU Manager policy %q", cpus.Static)
		}
		if p.memory != nil && !granted.Requests.Memory().Equal(*c.Resources.Requests.Memory()) {
			return fmt.Sprintf("Resize is infeasible for Guaranteed Pods alongside Memory Manager policy %q", memory.Static)
		}
	}
	return ""
}
