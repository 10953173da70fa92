// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"context"
	"slices"
	"sync"

	resourcev1 "k8s.io/api/resource/v1"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// claimTurn is the state shared by the concurrent writers of one claim. When several pods that
// share a claim are bound at the same time, each of them needs a reservation. Their writers take
// turns, and each starts from the result of the previous one, so that they do not conflict. Each
// writer also adds the reservations of the waiting writers, which then need not write.
type claimTurn struct {
	users int // number of pods that use the turn; guarded by claimTurns.mu
	// turn contains one token. The goroutine that takes the token may write the claim, and owns
	// newest and written. newest is the latest known version of the claim, or nil. written is true
	// if the API server has, or may have, the allocation.
	turn    chan struct{}
	newest  *resourcev1.ResourceClaim
	written bool

	mu      sync.Mutex
	waiting []*plugins.ReservedClaim // reservations of the waiting writers
}

// claimTurns holds the turns of the claims currently being written, by cycle.ClaimUse.Shared.
type claimTurns struct {
	mu    sync.Mutex
	turns map[uint64]*claimTurn // turns with users > 0
}

// joinClaims adds a pod to the users of its claims' turns. It is called on the owner's goroutine,
// before any of the writes begin, so that pods that share a claim use the same turn.
func (l *claimTurns) joinClaims(uses []cycle.ClaimUse) (turns []*claimTurn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, use := range uses {
		t := l.turns[use.Shared]
		if t == nil {
			t = &claimTurn{turn: make(chan struct{}, 1), written: use.Written}
			t.turn <- struct{}{}
			l.turns[use.Shared] = t
		}
		t.users++
		turns = append(turns, t)
	}
	return turns
}

// leaveClaims removes a pod from the users of its claims' turns. A turn without users is dropped.
func (l *claimTurns) leaveClaims(uses []cycle.ClaimUse) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, use := range uses {
		if t := l.turns[use.Shared]; t != nil {
			if t.users--; t.users == 0 {
				delete(l.turns, use.Shared)
			}
		}
	}
}

// awaitTurn waits for the turn to write; if held is true, the caller must call passTurn. When ctx
// ends, awaitTurn gives up immediately, unless another writer has included the reservation. In that
// case it waits for the outcome of that write, which determines what must be released.
func (t *claimTurn) awaitTurn(ctx context.Context, reserved *plugins.ReservedClaim) (held bool, err error) {
	t.mu.Lock()
	t.waiting = append(t.waiting, reserved)
	t.mu.Unlock()
	select {
	case <-t.turn:
		t.stopWaiting(reserved)
		return true, nil
	case <-ctx.Done():
	}

	if !t.stopWaiting(reserved) {
		<-t.turn
		held = true
	}
	return held, context.Cause(ctx)
}

// stopWaiting removes a reservation from waiting. It returns false if another writer has already
// taken it.
func (t *claimTurn) stopWaiting(reserved *plugins.ReservedClaim) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.Index(t.waiting, reserved)
	if i >= 0 {
		t.waiting = slices.Delete(t.waiting, i, i+1)
	}
	return i >= 0
}

// takeWaiting removes and returns the waiting reservations.
func (t *claimTurn) takeWaiting() (others []*plugins.ReservedClaim) {
	t.mu.Lock()
	defer t.mu.Unlock()
	others, t.waiting = t.waiting, nil
	return others
}

// passTurn passes the turn to the next writer.
func (t *claimTurn) passTurn() { t.turn <- struct{}{} }
