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

// claimTurn is the state shared by concurrent writers of one claim. Pods of one group, or several
// pods of one claim, may be bound at the same time, and each needs its reservation. They take
// turns, starting from the last writer's result, and so do not cause each other conflicts. Each
// writer adds the reservations of the waiting pods, so that few of them write.
type claimTurn struct {
	users int // guarded by claimTurns
	// turn holds one token: its holder writes, and owns newest and written. newest is the API
	// server's latest known version of the claim. written means that the allocation is, or may be,
	// in the API.
	turn    chan struct{}
	newest  *resourcev1.ResourceClaim
	written bool

	mu      sync.Mutex
	waiting []*plugins.ReservedClaim // reservations waiting for their turn, or for a writer that includes them
}

// claimTurns holds the turns of the claims currently being written, by cycle.ClaimUse.Shared.
type claimTurns struct {
	mu    sync.Mutex
	turns map[uint64]*claimTurn // only turns with users
}

// joinClaims adds the pod to the writers of its claims. The owner calls it before any of the
// writes, so that pods sharing a claim get the same turn, in whichever order their writes begin.
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

// leaveClaims removes the pod from the writers of its claims. The last pod leaving a claim drops
// its newest state.
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

// awaitTurn waits for the turn to write; if held is true, the caller must call passTurn. A stopped
// pod gives up immediately, except while another writer holds its reservation: the outcome of that
// write decides what the pod must give back.
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

// stopWaiting removes a reservation from the waiting ones. It returns false if a writer has already
// included it.
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
