// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package evictiontest

import (
	"fmt"
	"math/rand/v2"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/world/agenda"
)

// Begin is the start time of every World.
var Begin = time.Date(2026, 1, 1, 10, 0, 0, 0, time.UTC)

// World is the API server, the controller, and their common clock. It owns the nodes, the pods and
// the time; everything else has a separate type:
//
//   - [Devices]: claims, slices and rules, and their watch
//   - [Requests]: the controller's requests to the API, and their failures
//   - [Controller]: the controller under test, its lives and its wall clock
//   - [Truth]: the expected behavior, and deviations from it
//
// A test makes a world, acts on it, and lets time pass:
//
//	w := evictiontest.New(seed)
//	w.AddNode("n1")
//	w.AddPod("p1", "n1", nil)
//	w.Controller.Start()
//	w.Taint("n1", "key", "value", false)
//	w.Run(10 * time.Second)
//	wrong := w.Truth.Check() // p1 must be gone
type World struct {
	Now  time.Time
	Rand *rand.Rand
	// Trace, if set, is called with every event.
	Trace func(at time.Time, what string)

	Devices    Devices
	Requests   Requests
	Controller Controller
	Truth      Truth

	nodes    map[string]*Node
	pods     map[types.NamespacedName]*Pod
	podFeed  feed
	nodeFeed feed

	seed   uint64        // also determines whether a life has devices, without drawing from Rand
	rev    int           // the last resource version
	uids   int           // number of issued UIDs
	agenda agenda.Agenda // future changes, by time
}

// New returns a world without objects. Its controller is not started yet. Two worlds with the same
// seed and the same operations behave identically.
func New(seed uint64) *World {
	w := &World{
		Now:   Begin,
		Rand:  rand.New(rand.NewPCG(seed, 0xbe47)),
		nodes: map[string]*Node{},
		pods:  map[types.NamespacedName]*Pod{},
		seed:  seed,
	}
	w.podFeed, w.nodeFeed = feed{world: w, list: w.listPods}, feed{world: w, list: w.listNodes}

	w.Devices = Devices{
		world:  w,
		claims: map[types.NamespacedName]*eviction.Claim{}, slices: map[string]*eviction.Slice{}, rules: map[string]*eviction.Rule{},
		given: map[types.NamespacedName]time.Time{},
	}
	w.Devices.feed = feed{world: w, list: w.Devices.listDevices}
	w.Requests.world, w.Controller.world, w.Truth.world = w, w, w
	w.Controller.NewCore = func() *eviction.Core { return eviction.New(eviction.Options{Wall: w.Controller.Wall}) }
	return w
}

// After schedules a call, which is made during Run or RunUntil, and never immediately.
func (w *World) After(wait time.Duration, do func()) {
	w.agenda.Add(w.Now.Add(wait), do)
}

// RunUntil lets time pass, including scheduled events.
func (w *World) RunUntil(end time.Time) {
	w.agenda.RunUntil(end, func(now time.Time) { w.Now = now })
	w.Now = end
}

// Run lets the duration d pass.
func (w *World) Run(d time.Duration) { w.RunUntil(w.Now.Add(d)) }

// traceLine adds an event to the trace.
func (w *World) traceLine(format string, args ...any) {
	if w.Trace != nil {
		w.Trace(w.Now, fmt.Sprintf(format, args...))
	}
}

// drawBetween draws a duration from least to most, both included.
func (w *World) drawBetween(least, most time.Duration) time.Duration {
	return least + time.Duration(w.Rand.Int64N(int64(most-least)+1))
}

// withChance draws true with that probability. If p is 0, it does not draw from Rand, so that a
// disabled fault does not change the rest of a life.
func (w *World) withChance(p float64) bool { return p > 0 && w.Rand.Float64() < p }

// nextUID returns a new UID. It contains the name, which makes traces readable.
func (w *World) nextUID(of string) types.UID {
	w.uids++
	return types.UID(fmt.Sprintf("%s#%d", of, w.uids))
}

// Tolerating is shorthand for the tolerations of a test's pod.
func Tolerating(tolerations ...v1.Toleration) []v1.Toleration { return tolerations }
