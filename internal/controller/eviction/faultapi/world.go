package faultapi

import (
	"fmt"
	"math/rand/v2"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/world/agenda"
)

// Begin is when every World begins.
var Begin = time.Date(2026, 1, 1, 10, 0, 0, 0, time.UTC)

// World is the API, its controller, and the clock of both.
type World struct {
	Now    time.Time
	Rand   *rand.Rand
	Faults Faults
	// NewCore makes the controller's core, at first and after each crash.
	NewCore func() *eviction.Core
	// Ahead is how far the controller's wall clock is ahead of the API's; EarlyBy is how early a
	// test accepts evictions because of it.
	Ahead, EarlyBy time.Duration
	// Told, if set, is called with each of the controller's events and its actions.
	Told func(event eviction.Event, actions []eviction.Action)
	// Trace, if set, is called with everything that happens.
	Trace func(at time.Time, what string)

	nodes map[string]*Node
	pods  map[types.NamespacedName]*Pod
	devices
	seed   uint64
	rev    int
	uids   int
	agenda agenda.Agenda

	core     *eviction.Core // nil: crashed
	life     int            // number of the controller's life; what is meant for an earlier one is lost
	wakeAt   time.Time
	podFeed  feed
	nodeFeed feed

	deviceFeed feed

	Wrong     []string // what should not have happened
	Deleted   int      // deletes carried out
	Refusals  int      // requests that failed
	Cancelled int
}

// New returns a world without objects. Its controller is not started yet.
func New(seed uint64) *World {
	w := &World{
		Now:   Begin,
		Rand:  rand.New(rand.NewPCG(seed, 0xbe47)),
		nodes: map[string]*Node{},
		pods:  map[types.NamespacedName]*Pod{},
		seed:  seed,
		devices: devices{
			claims: map[types.NamespacedName]*eviction.Claim{}, slices: map[string]*eviction.Slice{}, rules: map[string]*eviction.Rule{},
			given: map[types.NamespacedName]time.Time{},
		},
	}
	w.NewCore = func() *eviction.Core { return eviction.New(eviction.Options{Wall: w.Wall}) }
	w.podFeed.world, w.nodeFeed.world, w.deviceFeed.world = w, w, w
	w.podFeed.list, w.nodeFeed.list, w.deviceFeed.list = w.listPods, w.listNodes, w.listDevices
	return w
}

// Wall is the controller's wall clock.
func (w *World) Wall(now time.Time) time.Time { return now.Add(w.Ahead) }

// After schedules a call.
func (w *World) After(wait time.Duration, do func()) {
	w.agenda.Add(w.Now.Add(wait), do)
}

// RunUntil lets time pass, with everything that happens in it.
func (w *World) RunUntil(end time.Time) {
	w.agenda.RunUntil(end, func(now time.Time) { w.Now = now })
	w.Now = end
}

// Run lets that much time pass.
func (w *World) Run(d time.Duration) { w.RunUntil(w.Now.Add(d)) }

// Start starts a controller without any state.
func (w *World) Start() {
	w.life++
	w.core, w.wakeAt = w.NewCore(), time.Time{}
	w.traceLine("controller started")
	w.podFeed.listAgain()
	w.nodeFeed.listAgain()
	w.deviceFeed.listAgain()
}

// Crash kills the controller. Its state, its queued events and the answers that it waits for are
// lost; its requests are carried out all the same.
func (w *World) Crash() {
	if w.core == nil {
		return
	}
	w.traceLine("controller killed")
	w.life++
	w.core = nil
	w.podFeed.loseUnshown()
	w.nodeFeed.loseUnshown()
	w.deviceFeed.loseUnshown()
	for _, n := range w.nodes {
		n.becomesDoubtful(w.Now)
	}
}

// Running reports whether there is a controller.
func (w *World) Running() bool { return w.core != nil }

// Core returns the controller's core, nil while there is none.
func (w *World) Core() *eviction.Core { return w.core }

// stepCore gives the controller an event and carries out its actions.
func (w *World) stepCore(event eviction.Event) {
	if w.core == nil {
		return
	}
	actions := w.core.Step(w.Now, event)
	if w.Told != nil {
		w.Told(event, actions)
	}

	for _, action := range actions {
		w.carryOut(action)
	}
	if at, ok := w.core.Wake(); ok && !at.Equal(w.wakeAt) {
		w.wakeAt = at
		life := w.life
		w.After(max(0, at.Sub(w.Now)), func() {
			if w.life == life && w.wakeAt.Equal(at) {
				w.wakeAt = time.Time{}
				w.stepCore(eviction.Tick{})
			}
		})
	}
}

func (w *World) traceLine(format string, args ...any) {
	if w.Trace != nil {
		w.Trace(w.Now, fmt.Sprintf(format, args...))
	}
}

func (w *World) reportWrong(format string, args ...any) {
	what := fmt.Sprintf("%s: ", w.Now.Sub(Begin)) + fmt.Sprintf(format, args...)
	w.traceLine("WRONG %s", what)
	w.Wrong = append(w.Wrong, what)
}

// drawBetween draws a duration.
func (w *World) drawBetween(least, most time.Duration) time.Duration {
	return least + time.Duration(w.Rand.Int64N(int64(most-least)+1))
}

func (w *World) withChance(p float64) bool { return p > 0 && w.Rand.Float64() < p }

func (w *World) nextUID(of string) types.UID {
	w.uids++
	return types.UID(fmt.Sprintf("%s#%d", of, w.uids))
}

// Tolerating is shorthand for the tolerations of a test's pod.
func Tolerating(tolerations ...v1.Toleration) []v1.Toleration { return tolerations }
