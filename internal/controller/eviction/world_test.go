// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package eviction_test

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/world/virtual"
)

// Begin is the start time of every World.
var Begin = time.Date(2026, 1, 1, 10, 0, 0, 0, time.UTC)

// World is an API server in virtual time that fails in all the ways of a real one, the controller,
// and their common clock. All randomness derives from one seed. World compares the evictions with
// the real state of the cluster, and detects pods deleted without a reason, early, late, or never.
//
// It owns the nodes and the pods;
// everything else has a separate type:
//
//   - [Devices]: claims, slices and rules, and their watch
//   - [Requests]: the controller's requests to the API, and their failures
//   - [virtual.Process]: the controller under test, its lives and its wall clock
//   - [Truth]: the expected behavior, and deviations from it
//
// A test makes a world, acts on it, and lets time pass:
//
//	w := New(seed)
//	w.AddNode("n1")
//	w.AddPod("p1", "n1", nil)
//	w.Controller.Start()
//	w.Taint("n1", "key", "value", false)
//	w.Run(10 * time.Second)
//	wrong := w.Truth.Check() // p1 must be gone
type World struct {
	*virtual.Time

	Devices    Devices
	Requests   Requests
	Controller *virtual.Process[eviction.Event, eviction.Action]
	Truth      Truth
	// NewCore makes the controller's core, initially and after each crash.
	NewCore func() *eviction.Core

	nodes    map[string]*Node
	pods     map[types.NamespacedName]*Pod
	podFeed  *virtual.Watch
	nodeFeed *virtual.Watch

	seed uint64 // also determines whether a life has devices, without drawing from Rand
	rev  int    // the last resource version
	uids int    // number of issued UIDs
}

// New returns a world without objects. Its controller is not started yet. Two worlds with the same
// seed and the same operations behave identically.
func New(seed uint64) *World {
	w := &World{
		Time: virtual.NewTime(Begin, seed, 0xbe47), nodes: map[string]*Node{}, pods: map[types.NamespacedName]*Pod{}, seed: seed,
	}
	w.Controller = &virtual.Process[eviction.Event, eviction.Action]{
		Time: w.Time, Tick: eviction.Tick{}, Ended: w.ended,
		New: func() virtual.Core[eviction.Event, eviction.Action] {
			w.Tracef("controller started")
			return w.NewCore()
		},
	}
	w.Controller.Add()
	w.NewCore = func() *eviction.Core { return eviction.New(eviction.Options{Wall: w.Controller.Wall}) }

	w.podFeed = virtual.NewWatch(w.Controller, time.Millisecond, w.listPods)
	w.nodeFeed = virtual.NewWatch(w.Controller, time.Millisecond, w.listNodes)
	w.Devices = Devices{
		world:  w,
		claims: map[types.NamespacedName]*eviction.Claim{}, slices: map[string]*eviction.Slice{}, rules: map[string]*eviction.Rule{},
		given: map[types.NamespacedName]time.Time{},
		feed:  virtual.NewWatch(w.Controller, time.Millisecond, func() { w.Devices.listDevices() }),
	}
	w.Truth.world = w
	w.Requests = newRequests(w)
	w.Controller.Do = w.Requests.carryOut
	return w
}

// ended follows the end of a life: without a controller, the start of each taint is doubtful.
func (w *World) ended() {
	w.Tracef("controller killed")
	for _, n := range w.nodes {
		n.becomesDoubtful(w.Now)
	}
}

// Core returns the controller's core. The controller must be running.
func (w *World) Core() *eviction.Core { return w.Controller.Core().(*eviction.Core) }

// Watches returns all watches of the controller.
func (w *World) Watches() []*virtual.Watch {
	return []*virtual.Watch{w.podFeed, w.nodeFeed, w.Devices.feed}
}

// nextUID returns a new UID. It contains the name, which makes traces readable.
func (w *World) nextUID(of string) types.UID {
	w.uids++
	return types.UID(fmt.Sprintf("%s#%d", of, w.uids))
}

// Tolerating is shorthand for the tolerations of a test's pod.
func Tolerating(tolerations ...v1.Toleration) []v1.Toleration { return tolerations }
