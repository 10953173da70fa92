package places

import (
	"math/rand/v2"
	"slices"
)

// demand is what all tasks together want, in per cent of the GPUs.
const demand = 130

// Arrivals returns the tasks of a mix in the order of their arrival.
func (t *Trace) Arrivals(m *Mix, seed uint64) []Task {
	rng := rand.New(rand.NewPCG(seed, 0))
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

// countShapes counts the tasks of a mix by shape, those that come most often first.
func (m *Mix) countShapes() (list []Shape, counts []int64) {
	at := map[Shape]int{}
	for i := range m.Tasks {
		s := m.Tasks[i].Shape
		k, known := at[s]
		if !known {
			k = len(list)
			at[s] = k
			list, counts = append(list, s), append(counts, 0)
		}
		counts[k]++
	}

	order := make([]int, len(list))
	for i := range order {
		order[i] = i
	}

	slices.SortStableFunc(order, func(a, b int) int { return int(counts[b] - counts[a]) })
	sorted, sums := make([]Shape, len(list)), make([]int64, len(list))
	for i, k := range order {
		sorted[i], sums[i] = list[k], counts[k]
	}
	return sorted, sums
}
