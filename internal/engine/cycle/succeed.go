// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// Resumed passes the state of a previous core, except for API objects, to a new core. It follows
// the events that show the objects, and precedes the first Tick. The state consists of the waits of
// pods, their reservations, the beginning of groups' waits, the victims not counted by a budget
// yet, the plugins' learnt data, and the time of the queue's last flush.
type Resumed struct {
	Pods     []queue.Saved
	Rooms    map[types.UID]string    `json:",omitempty"` // nominated nodes of pending pods
	Budgets  []Used                  `json:",omitempty"`
	Waits    map[types.UID]time.Time `json:",omitempty"` // groups.Set.Since
	Reserved *Reservation            `json:",omitempty"` // written by earlier versions instead of Held
	Held     []*Reservation          `json:",omitempty"`
	Next     types.UID               `json:",omitempty"` // group that gets the next reservation
	Rests    time.Time               `json:",omitzero"`  // earliest start of the next reservation
	Moves    map[types.UID]time.Time `json:",omitempty"` // deadlines of the reservations of [MoveLeases], by leaving pod
	// Learnt is the plugins' learnt data about arrived pods, by scheduler name.
	Learnt  map[string]*plugins.Learnt `json:",omitempty"`
	Flushed time.Time                  `json:",omitzero"` // zero: the first Tick flushes the queue
}

// Calm reports whether no work is pending: no outstanding action, no placement, no terminating
// victim, and no unfinished list required for decisions. A new core that receives the same objects,
// and then the result of Save, has the same state as this core, except for caches and
// Item.Continued, which depends on caches.
func (c *Core) Calm() bool {
	if !c.Synced() || len(c.placements.byPod)+len(c.handlers)+len(c.preemptions.rounds)+len(c.preemptions.leaving) > 0 ||
		len(c.claims.byName)+len(c.claims.releasing)+len(c.placements.conditions) > 0 {
		return false
	}
	for kind, m := range c.mirrors {
		if m.isListing() && kind != MoveLeases {
			return false
		}
	}
	return true
}

// Save returns the state of this core, except for API objects. The core must be calm. The core must
// not be stepped afterwards.
func (c *Core) Save() Resumed {
	// The next tick would make both calls, but this core receives no further tick.
	c.nominations.clearGated()
	c.events.flushEvents() // recorded events may help waiting pods
	r := Resumed{
		Pods: c.queue.Save(), Rooms: map[types.UID]string{}, Waits: c.groups.Since,
		Held: c.reserved.held, Next: c.reserved.next, Rests: c.reserved.rests, Moves: c.moveReservations.save(), Flushed: c.flushed,
	}
	for name, p := range c.profiles.byName {
		if learnt := p.Profile.Profile.Learnt(); learnt != nil {
			if r.Learnt == nil {
				r.Learnt = map[string]*plugins.Learnt{}
			}
			r.Learnt[name] = learnt
		}
	}
	for i := range r.Pods {
		if p := c.cluster.Nominated(r.Pods[i].UID); p != nil {
			r.Rooms[p.UID()] = p.Nominated
		}
	}
	for name, used := range c.preemptions.budgets {
		r.Budgets = append(r.Budgets, used.saveUsed(name))
	}
	slices.SortFunc(r.Budgets, func(a, b Used) int { return compareNames(a.Budget, b.Budget) })
	return r
}

// resume restores the state of the previous core. Nominations are restored before the queue:
// clearing a nomination may activate other pods, which Restore puts back into their places.
func (c *Core) resume(r Resumed) {
	c.flushed = r.Flushed
	c.moveReservations.resume(r.Moves)
	for name, learnt := range r.Learnt {
		if p := c.profiles.byName[name]; p != nil {
			p.Profile.Profile.Relearn(learnt)
		}
	}
	for i := range r.Pods {
		item := c.queue.Get(r.Pods[i].UID)
		if item == nil {
			continue
		}
		c.nominations.clearNomination(item.Pod.UID)
		if node := r.Rooms[item.Pod.UID]; node != "" {
			c.nominations.nominatePod(item, node)
		}
	}

	c.queue.Restore(r.Pods)
	c.preemptions.setAlarms()
	c.reserved.held, c.reserved.next, c.reserved.rests = r.Held, r.Next, r.Rests
	if r.Reserved != nil {
		c.reserved.held = []*Reservation{r.Reserved}
	}
	maps.Copy(c.groups.Since, r.Waits)
	for _, used := range r.Budgets {
		if budget, ok := c.cluster.Budgets.Get(used.Budget.Namespace, used.Budget.Name); ok {
			resumed := resumedBudget(budget, used)
			c.preemptions.budgets[used.Budget] = resumed
			c.preemptions.recountBudget(resumed)
		}
	}
	c.preemptions.countVictims("")
	c.events.dropEvents() // the events stem from the initial objects, not from changes
}

// Succeed replaces another core, whose state was saved, with this core. It adopts the recorded
// decisions, which do not influence scheduling. It retires the other core's queue, so that no pod
// is counted twice.
func (c *Core) Succeed(other *Core) {
	other.queue.Retire()
	c.decisions.adoptFrom(other.decisions)
}
