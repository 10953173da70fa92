package live

import (
	"context"
	"slices"
	"sync"

	resourcev1 "k8s.io/api/resource/v1"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// claimTurn is what those who write the same claim share. Pods of one group, or several pods of one
// claim, may be bound at the same time, and each needs its reservation. Taking turns, and starting
// from the last writer's result, saves them the conflicts that they would otherwise cause one
// another. Whoever writes adds the reservations of those who wait, so that few of them write.
type claimTurn struct {
	users int // guarded by claimTurns
	// turn holds one token: its holder writes, and owns the next two. newest is the claim as the
	// API server returned it last. written means that the allocation is in the API, or may be.
	turn    chan struct{}
	newest  *resourcev1.ResourceClaim
	written bool

	mu      sync.Mutex
	waiting []*plugins.ReservedClaim // of those who wait for their turn, until a writer takes them along
}

// claimTurns are those of the claims that are being written, by cycle.ClaimUse.Shared.
type claimTurns struct {
	mu    sync.Mutex
	turns map[uint64]*claimTurn // those with users
}

// joinClaims makes the pod one of those who write its claims. The owner calls it, before any of the
// writes, so that pods that share a claim find the same turn in whichever order their writes begin.
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

// leaveClaims takes the pod out. What is known of the newest state of a claim is forgotten with the
// last pod that writes it.
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

// awaitTurn waits for the turn to write; passTurn must follow if it is held. A pod that is stopped
// gives up at once, but not while its reservation is in another's hands: whether that is written
// decides what the pod has to give back.
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

// stopWaiting takes a reservation out of those who wait; false: a writer has taken it along.
func (t *claimTurn) stopWaiting(reserved *plugins.ReservedClaim) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.Index(t.waiting, reserved)
	if i >= 0 {
		t.waiting = slices.Delete(t.waiting, i, i+1)
	}
	return i >= 0
}

// takeWaiting takes along those who wait.
func (t *claimTurn) takeWaiting() (others []*plugins.ReservedClaim) {
	t.mu.Lock()
	defer t.mu.Unlock()
	others, t.waiting = t.waiting, nil
	return others
}

// passTurn lets the next one write.
func (t *claimTurn) passTurn() { t.turn <- struct{}{} }
