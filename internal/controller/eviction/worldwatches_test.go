// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package eviction_test

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/eviction"
)

// CutPods and CutNodes break the watch of pods or of nodes; see virtual.Watch.Cut.
func (w *World) CutPods(wait time.Duration, lists bool)  { w.podFeed.Cut(wait, lists) }
func (w *World) CutNodes(wait time.Duration, lists bool) { w.nodeFeed.Cut(wait, lists) }

// DelayWatches sets the maximum delays of changes of pods and of nodes. Changes of devices are
// delayed like those of nodes.
func (w *World) DelayWatches(pods, nodes time.Duration) {
	w.podFeed.Jitter, w.nodeFeed.Jitter, w.Devices.feed.Jitter = pods, nodes, nodes
}

// HoldNodes delays changes of nodes until the given time.
func (w *World) HoldNodes(until time.Time) { w.nodeFeed.Hold(until) }

// listPods delivers all pods at one moment. A real API server's list may take longer; changes in
// the meantime follow in the watch.
func (w *World) listPods() {
	w.Controller.Step(eviction.PodsListing{})
	for _, p := range sortedValues(w.pods, byName) {
		w.Controller.Step(eviction.PodSeen{Pod: p.Pod})
	}
	w.Controller.Step(eviction.PodsListed{})
}

// listNodes delivers all nodes. A list may hide the real start of a taint from the controller; see
// becomesDoubtful.
func (w *World) listNodes() {
	w.Controller.Step(eviction.NodesListing{})
	for _, n := range sortedValues(w.nodes, cmp.Compare[string]) {
		n.becomesDoubtful(w.Now)
		n.unseen = false
		w.Controller.Step(eviction.NodeSeen{Node: n.Node})
	}
	w.Controller.Step(eviction.NodesListed{})
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
