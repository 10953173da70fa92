package faultapi

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/eviction"
)

// feed is a watch: it shows every change in order, at once or late, until it is cut. Then it
// continues where it was, or lists again.
type feed struct {
	world *World
	list  func() // shows the controller everything that there is now

	cut       int       // how often it was cut: what was scheduled before a cut is dropped
	broken    bool      // between a cut and what follows it
	last      time.Time // when the last change is shown
	unshown   []change  // changes not shown yet
	Delay     time.Duration
	HoldUntil time.Time // nothing is shown before
}

// change is one change, with its object as it was then.
type change struct {
	show func()
}

// showChange shows the controller a change when its time comes. While there is no controller nobody
// watches.
func (f *feed) showChange(do func()) {
	if f.world.Controller.core == nil {
		return
	}
	f.unshown = append(f.unshown, change{do})
	if !f.broken {
		f.scheduleNext()
	}
}

// scheduleNext shows the next unshown change when its time comes.
func (f *feed) scheduleNext() {
	w := f.world
	at := w.Now.Add(time.Millisecond)
	if f.Delay > 0 {
		at = at.Add(w.drawBetween(0, f.Delay))
	}
	// Never before the change before it: a watch keeps the order.
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

// Cut breaks the watch. After a while it is back, with the changes that it missed or with a list. A
// watch that is broken already stays so. While it is broken, changes wait to be shown; a list makes
// them void, since it shows their outcome.
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

// loseUnshown drops what was not shown yet, and ends a cut.
func (f *feed) loseUnshown() {
	f.cut++
	f.unshown, f.last, f.broken = nil, time.Time{}, false
}

// listAgain begins anew with a list.
func (f *feed) listAgain() {
	f.loseUnshown()
	f.list()
}

// CutPods and CutNodes break a watch.
func (w *World) CutPods(wait time.Duration, lists bool)  { w.podFeed.Cut(wait, lists) }
func (w *World) CutNodes(wait time.Duration, lists bool) { w.nodeFeed.Cut(wait, lists) }

// DelayWatches delays each change by up to that much. Those of devices are like those of nodes.
func (w *World) DelayWatches(pods, nodes time.Duration) {
	w.podFeed.Delay, w.nodeFeed.Delay, w.Devices.feed.Delay = pods, nodes, nodes
}

// HoldNodes holds back changes of nodes until then.
func (w *World) HoldNodes(until time.Time) { w.nodeFeed.HoldUntil = until }

// listPods shows all pods at one moment. A list of a real API server may take longer; what changes
// meanwhile follows in the watch.
func (w *World) listPods() {
	w.Controller.stepCore(eviction.PodsListing{})
	for _, p := range sortedValues(w.pods, byName) {
		w.Controller.stepCore(eviction.PodSeen{Pod: p.Pod})
	}
	w.Controller.stepCore(eviction.PodsListed{})
}

// listNodes shows all nodes. What a controller knows from a list alone may be less than the truth;
// see becomesDoubtful.
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

// latestOf returns the latest of the times, of which there is at least one.
func latestOf(times ...time.Time) time.Time {
	return slices.MaxFunc(times, time.Time.Compare)
}
