// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package places

import (
	"fmt"
	"strings"
	"time"

	"github.com/berth-k8s/berth/test/internal/process"
)

// share is an amount of one GPU.
type share struct {
	gpu    int
	amount int64
}

// Run is the result of one policy for the tasks of one mix in one order.
type Run struct {
	Policy, Mix string
	Seed        uint64
	Allocated   float64 // allocated share of the GPUs, in percent
	Empty       float64 // share of the nodes without a task, in percent
	Decisions   int
	Took        time.Duration // CPU time, which excludes other work on the machine
	Placements  []Placement
	Moves       []Moved // moves in order
}

// Placement is the result for a task.
type Placement struct {
	Task string
	Node string // empty if the task fits nowhere
	gpus []share
}

// Policies lists the policies in the order of the report.
var Policies = []string{"default", "MostAllocated", "FGD", "Fragmentation", "learnt", "moves", "claims"}

// IsProfile reports whether a policy is the name of a file with a profile; see learntProfile.
func IsProfile(policy string) bool { return strings.HasSuffix(policy, ".yaml") }

// player is the implementation of a policy. It places one task after the other.
type player interface {
	placeTask(t *Task) (node string, gpus []share, err error)
}

func (t *Trace) newPlayer(policy string, m *Mix, seed uint64) (player, error) {
	file := fragmentationProfile
	if IsProfile(policy) {
		text, err := learntProfile(policy)
		if err != nil {
			return nil, err
		}
		return newEngine(t, text, seed)
	}
	switch policy {
	case "FGD":
		return newFGD(t, m), nil
	case "claims":
		return newClaimant(t, m, seed)
	case "default":
		file = defaultProfile
	case "MostAllocated":
		file = mostAllocatedProfile
	case "Fragmentation", "moves":
		var err error
		if file, err = profileOf(m); err != nil {
			return nil, err
		}
		if policy == "moves" { // moves make room for the next task
			file += "      nearPercent: 25\n"
		}
	}

	e, err := newEngine(t, file, seed)
	if err != nil || policy != "moves" {
		return e, err
	}
	return newMover(e), nil
}

// Play places the tasks of a mix by a policy, and verifies that allocations do not overlap.
func (t *Trace) Play(policy string, m *Mix, seed uint64) (*Run, error) {
	p, err := t.newPlayer(policy, m, seed)
	if err != nil {
		return nil, err
	}

	arrivals := t.Arrivals(m, seed)
	r := &Run{Policy: policy, Mix: m.Name, Seed: seed, Decisions: len(arrivals), Placements: make([]Placement, 0, len(arrivals))}

	began := process.Own()
	for i := range arrivals {
		node, gpus, err := p.placeTask(&arrivals[i])
		if err != nil {
			return nil, fmt.Errorf("%s, mix %s, seed %d: %w", policy, m.Name, seed, err)
		}
		r.Placements = append(r.Placements, Placement{arrivals[i].Name, node, gpus})
	}

	r.Took = process.Own() - began
	if m, is := p.(*mover); is {
		r.Moves = m.moves
	}
	return r, t.checkRun(r, arrivals)
}

// checkRun computes the results of a run from its placements and moves, and returns an error if
// allocations overlap.
func (t *Trace) checkRun(r *Run, arrivals []Task) error {
	nodes := map[string]*freeNode{}
	for _, n := range t.Nodes {
		nodes[n.Name] = newFreeNode(n)
	}

	var sum int64
	moves, at := r.Moves, map[int]Placement{}
	for i, p := range r.Placements {
		for ; len(moves) > 0 && moves[0].Arrival == i; moves = moves[1:] {
			m := &moves[0]
			before := at[m.Task]
			nodes[before.Node].returnTask(&arrivals[m.Task].Shape, before.gpus)
			if err := nodes[m.Node].takeTask(&arrivals[m.Task].Shape, m.gpus); err != nil {
				return fmt.Errorf("%s, mix %s, seed %d, arrival %d, %s moved to %s: %w",
					r.Policy, r.Mix, r.Seed, i+1, m.Placement.Task, m.Node, err)
			}
			at[m.Task] = m.Placement
		}
		if p.Node == "" {
			continue
		}
		if err := nodes[p.Node].takeTask(&arrivals[i].Shape, p.gpus); err != nil {
			return fmt.Errorf("%s, mix %s, seed %d, arrival %d, %s on %s: %w", r.Policy, r.Mix, r.Seed, i+1, p.Task, p.Node, err)
		}
		at[i] = p
		sum += arrivals[i].wantedGPUs()
	}

	used := map[string]bool{}
	for _, p := range at {
		used[p.Node] = true
	}
	r.Empty = 100 * float64(len(t.Nodes)-len(used)) / float64(len(t.Nodes))
	r.Allocated = 100 * float64(sum) / float64(t.GPUs*Milli)
	return nil
}

func (n *freeNode) returnTask(s *Shape, gpus []share) {
	n.CPU += s.CPU
	n.Memory += s.Memory
	for _, g := range gpus {
		n.free[g.gpu] += g.amount
	}
}

func (n *freeNode) takeTask(s *Shape, gpus []share) error {
	n.CPU -= s.CPU
	n.Memory -= s.Memory
	switch {
	case n.CPU < 0 || n.Memory < 0:
		return fmt.Errorf("CPU or memory is given away twice")
	case s.GPUs > 0 && !s.allowsModel(n.Model):
		return fmt.Errorf("model %s is not one of %s", n.Model, s.Models)
	case int64(len(gpus)) != s.GPUs:
		return fmt.Errorf("%d GPUs instead of %d", len(gpus), s.GPUs)
	}

	for _, g := range gpus {
		if g.amount != s.GPUMilli || g.gpu >= len(n.free) || n.free[g.gpu] < g.amount {
			return fmt.Errorf("GPU %d is given away twice", g.gpu)
		}
		n.free[g.gpu] -= g.amount
	}
	return nil
}
