// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package places

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// demand is the total demand of all tasks in percent of the GPUs.
const demand = 130

// Arrivals returns the tasks of a mix in random order, followed by tasks drawn from the mix, until
// their total demand reaches demand.
func (t *Trace) Arrivals(m *Mix, seed uint64) []Task {
	rng := rand.New(rand.NewPCG(seed, 0))
	if !slices.ContainsFunc(m.Tasks, func(s Task) bool { return s.GPUs > 0 }) {
		return t.arrivalsOfCPU(m, rng)
	}
	list := slices.Clone(m.Tasks)
	rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	var wanted int64
	for i := range list {
		wanted += list[i].wantedGPUs()
	}

	goal := t.GPUs * Milli * demand / 100
	for wanted < goal {
		task := m.Tasks[rng.IntN(len(m.Tasks))]
		list = append(list, task)
		wanted += task.wantedGPUs()
	}

	for wanted > goal {
		i := rng.IntN(len(list))
		if wanted-list[i].wantedGPUs() < goal {
			break
		}
		wanted -= list[i].wantedGPUs()
		list = slices.Delete(list, i, i+1)
	}

	return list
}

// cpuDemand is the total demand of a mix without GPU tasks, in percent of the CPU. All policies
// place all of its tasks; they differ in the number of nodes left empty.
const cpuDemand = 50

// The kinds of tasks for a mix.
const (
	AllTasks   = "all"
	WholeTasks = "whole" // tasks that request only whole GPUs
	CPUTasks   = "cpu"   // tasks without GPUs
)

// Keep keeps only the tasks of a kind in all mixes.
func (t *Trace) Keep(kind string) error {
	for i := range t.Mixes {
		m := &t.Mixes[i]
		m.Tasks = slices.DeleteFunc(m.Tasks, func(s Task) bool {
			switch kind {
			case WholeTasks:
				return s.GPUs == 0 || s.GPUMilli < Milli
			case CPUTasks:
				return s.GPUs > 0
			}
			return false
		})
		if len(m.Tasks) == 0 {
			return fmt.Errorf("mix %s has no such tasks as %q", m.Name, kind)
		}
	}
	return nil
}

// arrivalsOfCPU draws tasks of a mix without GPUs until they demand cpuDemand.
func (t *Trace) arrivalsOfCPU(m *Mix, rng *rand.Rand) (list []Task) {
	var cpu int64
	for i := range t.Nodes {
		cpu += t.Nodes[i].CPU
	}
	for wanted := int64(0); wanted < cpu*cpuDemand/100; {
		task := m.Tasks[rng.IntN(len(m.Tasks))]
		list = append(list, task)
		wanted += max(1, task.CPU)
	}
	return list
}

// countShapes returns the shapes of a mix, the most frequent first, and the number of tasks of each
// shape.
func (m *Mix) countShapes() (list []Shape, counts map[Shape]int64) {
	counts = map[Shape]int64{}
	for i := range m.Tasks {
		s := m.Tasks[i].Shape
		if counts[s]++; counts[s] == 1 {
			list = append(list, s)
		}
	}
	slices.SortStableFunc(list, func(a, b Shape) int { return int(counts[b] - counts[a]) })
	return list, counts
}
