// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"maps"
	"sync"
	"time"
)

// Violation is a broken promise.
type Violation struct {
	At      time.Time
	After   time.Duration // time since the beginning of the campaign
	Promise string
	What    string
	About   []string // names of the affected objects and processes
	Lines   []string // log lines about them
}

// The promises.
const (
	boundOnce    = "no pod is bound to two nodes"
	roomKept     = "no node is given more than it can take"
	evictionDone = "no eviction is lost"
	evictionJust = "no eviction is wrongful"
	victimJust   = "no pod is preempted for a less important one"
	budgetsKept  = "no budget is broken where it was promised"
	noneForgot   = "no pod is forgotten"
	silenceSeen  = "no silent node is taken for a live one"
	comesToRest  = "the cluster comes to rest when faults end"
	stateKept    = "nothing that was acknowledged is lost"
	bounded      = "memory and goroutines are bounded"
	noPanic      = "no component panics or exits without reason"
	spaced       = "requests for an object are spaced, whatever the responses are"
	waitsEnd     = "every drain ends"
	nothingLeft  = "nothing that was written remains"
	cleanEnd     = "every component ends cleanly when asked to"
)

var promises = []string{boundOnce, roomKept, evictionDone, evictionJust, victimJust, budgetsKept, noneForgot, silenceSeen, comesToRest,
	stateKept, bounded, noPanic, spaced, waitsEnd, nothingLeft, cleanEnd}

// counts counts things by name.
type counts struct {
	mu     sync.Mutex
	byName map[string]int
}

func newCounts() *counts { return &counts{byName: map[string]int{}} }

func (c *counts) addOne(name string) { c.addMany(name, 1) }

func (c *counts) addMany(name string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.byName[name] += n
}

func (c *counts) all() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.byName)
}

func (c *counts) sum() (sum int) {
	for _, n := range c.all() {
		sum += n
	}
	return sum
}
