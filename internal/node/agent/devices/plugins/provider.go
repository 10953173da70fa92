package plugins

import (
	"context"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/node/agent/topology"
)

// Placed provides the topology hints of devices for a pod's admission, and assigns none: the pod
// holds its devices. machine are the machine's NUMA nodes.
func (m *Manager) Placed(machine []int) topology.Provider { return placed{m, machine} }

type placed struct {
	m       *Manager
	machine []int
}

func (p placed) Hints(pod *v1.Pod, c *v1.Container) topology.Hints {
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	return p.m.ledger.Hints(pod, c, p.machine)
}

func (p placed) PodHints(pod *v1.Pod) topology.Hints {
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	return p.m.ledger.PodHints(pod, p.machine)
}

func (placed) Assign(*v1.Pod, *v1.Container, topology.Hint) error { return nil }

// giving asks plugins for devices as they are assigned.
type giving struct {
	placed
	ctx context.Context
	err error // why devices could not be given
}

func (g *giving) Assign(pod *v1.Pod, c *v1.Container, near topology.Hint) error {
	g.err = g.m.allocate(g.ctx, pod, c, near.Nodes)
	return g.err
}

// AllocateAligned is Allocate with NUMA nodes: assign assigns the pod's resources to its containers
// with this provider of devices among others. It returns a refusal if those, or the devices
// together with them, cannot be assigned; the pod has no devices then.
func (m *Manager) AllocateAligned(ctx context.Context, pod *v1.Pod, machine []int, assign func(topology.Provider) *topology.Refusal) (*topology.Refusal, error) {
	g := &giving{placed: placed{m, machine}, ctx: ctx}
	refused := assign(g)
	err := g.err
	if refused == nil && err == nil {
		err = m.save()
	}
	if refused != nil || err != nil {
		m.Free(pod.UID)
	}
	return refused, err
}
