// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// addEvictions records the results of the Eviction API, and returns the pods that could not be
// evicted, in the form of pods held during a drain.
func (f *Forecast) addEvictions(list []simulate.Evicted) (held []simulate.Blocked) {
	f.Evictions = append(f.Evictions, list...)
	for _, e := range list {
		// A refused eviction counts like a pod held in a drain.
		if e.Refused != "" {
			held = append(held, simulate.Blocked{Namespace: e.Namespace, Name: e.Name, Node: e.Node, Budget: e.Budget, Message: e.Refused})
		}
	}
	return held
}

// findRoom finds the pods placed on the nodes of evicted pods. Leaving and Placed must be set.
func (f *Forecast) findRoom() {
	came := map[string][]string{}
	for _, l := range f.Leaving {
		if l.Next != nil {
			came[l.Next.Node] = append(came[l.Next.Node], l.Namespace+"/"+l.Next.Name)
		}
	}
	for _, p := range f.placedByThis() {
		came[p.Node] = append(came[p.Node], p.Namespace+"/"+p.Name)
	}
	for i := range f.Evictions {
		// Arrivals cannot be attributed to one of several evicted pods, so list all arrivals for
		// each.
		if e := &f.Evictions[i]; e.Refused == "" {
			e.Room = came[e.Node]
		}
	}
}

// printEvictions prints for each eviction the decisive budget and the pods taking the room.
func (p printer) printEvictions(list []simulate.Evicted) {
	for _, e := range list {
		if e.Refused != "" {
			p.Warning("\n%s/%s stays on %s: %s.", e.Namespace, e.Name, e.Node, e.Refused)
			continue
		}
		// The budget covering the pod, if any, and the pods taking its room.
		because, room := "no disruption budget holds it back", "stays free"
		if e.Budget != "" {
			because = "the disruption budget " + e.Budget + " allows it, and then " + answer.Count(int(e.Left), "more disruption")
		}
		if len(e.Room) > 0 {
			room = "goes to " + answer.List(len(e.Room), func(i int) string { return e.Room[i] })
		}
		p.Line("\n%s/%s: %s. Its room on %s %s.", e.Namespace, e.Name, because, e.Node, room)
	}
}
