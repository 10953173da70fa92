package decide

import "math/rand/v2"

// tie decides among nodes that are equally good. It holds the only source of randomness of a
// decider.
//
// To prefer some of them by a rule, give a plugin a finer score ([plugins.Scoring].Exact). Ranking
// and base choose by it among nodes with the same total before they draw.
//
// Draws are output: replays and stories pin each of them. So how often a decision draws, and in
// which order, is part of what it promises.
type tie struct {
	rng *rand.Rand
	// preferred is the node that the pod being decided is to get if it is among the best; none:
	// chance decides.
	preferred int32
}

func newTie(seed uint64) *tie { return &tie{rand.New(rand.NewPCG(seed, 0)), none} }

// draw returns a number below n, each with the same probability.
func (t *tie) draw(n int) int { return t.rng.IntN(n) }
