// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import "math/rand/v2"

// tie decides among equally good nodes. It holds the only source of randomness of a decider.
//
// To prefer some of these nodes by a rule, implement fine scores in a plugin
// ([plugins.Scoring].Exact). Rankings and bases compare the fine scores of nodes with the same
// total before drawing.
//
// Draws are part of the output: replays and stories pin each draw. The number and order of a
// decision's draws are therefore part of its contract.
type tie struct {
	rng *rand.Rand
	// preferred is the node to choose for the pod being decided if it is among the best; none: the
	// choice is random.
	preferred int32
}

func newTie(seed uint64) *tie { return &tie{rand.New(rand.NewPCG(seed, 0)), none} }

// draw returns a number below n, each with the same probability.
func (t *tie) draw(n int) int { return t.rng.IntN(n) }
