// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package evictiontest

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/eviction"
)

// feed is a watch: it delivers every change in order, immediately or late, until it is cut. After a
// cut, it resumes or lists again.
type feed struct {
	world *World
	list  func() // shows the controller all current objects

	cut       int       // number of cuts; changes scheduled before a cut are dropped
	broken    bool      // the feed is cut and has not been restored
	last      time.Time // delivery time of the last scheduled change
	unshown   []change  // changes not shown yet
	Delay     time.Duration
	HoldUntil time.Time // earliest time at which changes are shown
}

// change is one change; show delivers the object in the state after this change.
type change struct {
	show func()
}

// showChange schedules the delivery of a change to the controller. If no controller is running,
// there is no watch, and the change is dropped.
func (f *feed) showChange(do func()) {
	if f.world.Controller.core == nil {
		return
	}
	f.unshown = append(f.unshown, change{do})
	if !f.broken {
		f.scheduleNext()
	}
}

// scheduleNext schedules the delivery of the next change.
func (f *feed) scheduleNext() {
	w := f.world
	at := w.Now.Add(time.Millisecond)
	if f.Delay > 0 {
		at = at.Add(w.drawBetween(0, f.Delay))
	}
	// A watch keeps the order, so a change is never delivered before the previous one.
	at = latestOf(at, f.last, f.HoldUntil)
	f.last = at
	cut := f.cut
	w.After(at.Sub(w.Now), func() {
		if f.cut == cut && len(f.unshown) > 0 {
			next := f.unshown[0]
			f.unshown = f.unshown[1:]
			next.show()
		}
	})
}

// Cut breaks the watch. After wait, the watch resumes with the missed changes, or with a list.
// Until then, changes are queued; a list discards them, since it delivers their outcome. Cut has no
// effect on a watch that is already broken.
func (f *feed) Cut(wait time.Duration, lists bool) {
	w := f.world
	if w.Controller.core == nil || f.broken {
		return
	}

	f.broken = true
	f.cut++
	f.last = time.Time{}
	cut := f.cut
	w.After(wait, func() {
		if f.cut != cut || w.Controller.core == nil {
			return
		}
		if lists {
			f.listAgain()
			return
		}
		f.broken = false
		for range f.unshown {
			f.scheduleNext()
		}
	})
}

// loseUnshown drops undelivered changes, and ends a cut.
func (f *feed) loseUnshown() {
	f.cut++
	f.unshown, f.last, f.broken = nil, time.Time{}, false
}

// listAgain restarts with a list.
func (f *feed) listAgain() {
	f.loseUnshown()
	f.list()
}

// CutPods and CutNodes break the watch of pods or of nodes; see feed.Cut.
func (w *World) CutPods(wait time.Duration, lists bool)  { w.podFeed.Cut(wait, lists) }
func (w *World) CutNodes(wait time.Duration, lists bool) { w.nodeFeed.Cut(wait, lists) }

// DelayWatches sets the maximum delays of changes of pods and of nodes. Changes of devices are
// delayed like those of nodes.
func (w *World) DelayWatches(pods, nodes time.Duration) {
	w.podFeed.Delay, w.nodeFeed.Delay, w.Devices.feed.Delay = pods, nodes, nodes
}

// HoldNodes delays changes of nodes until the given time.
func (w *World) HoldNodes(until time.Time) { w.nodeFeed.HoldUntil = until }

// listPods delivers all pods at one moment. A real API server's list may take longer; changes in
// the meantime follow in the watch.
func (w *World) listPods() {
	w.Controller.stepCore(eviction.PodsListing{})
	for _, p := range sortedValues(w.pods, byName) {
		w.Controller.stepCore(eviction.PodSeen{Pod: p.Pod})
	}
	w.Controller.stepCore(eviction.PodsListed{})
}

// listNodes delivers all nodes. A list may hide the real start of a taint from the controller; see
// becomesDoubtful.
func (w *World) listNodes() {
	w.Controller.stepCore(eviction.NodesListing{})
	for _, n := range sortedValues(w.nodes, cmp.Compare[string]) {
		n.becomesDoubtful(w.Now)
		n.unseen = false
		w.Controller.stepCore(eviction.NodeSeen{Node: n.Node})
	}
	w.Controller.stepCore(eviction.NodesListed{})
}

// byName orders objects of all namespaces.
func byName(a, b types.NamespacedName) int { return cmp.Compare(a.String(), b.String()) }

// sortedValues makes iteration over a map deterministic.
func sortedValues[K comparable, V any](m map[K]V, order func(a, b K) int) []V {
	var values []V
	for _, k := range slices.SortedFunc(maps.Keys(m), order) {
		values = append(values, m[k])
	}
	return values
}

// latestOf returns the latest of at least one time.
func latestOf(times ...time.Time) time.Time {
	return slices.MaxFunc(times, time.Time.Compare)
}
