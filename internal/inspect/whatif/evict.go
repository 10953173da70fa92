package whatif

import (
	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// addEvictions lists the Eviction API's answers, and returns the pods that budgets keep,
// as a drain does.
func (f *Forecast) addEvictions(list []simulate.Evicted) (held []simulate.Blocked) {
	f.Evictions = append(f.Evictions, list...)
	for _, e := range list {
		// An eviction that is refused holds a pod back as much as a drain that waits.
		if e.Refused != "" {
			held = append(held, simulate.Blocked{Namespace: e.Namespace, Name: e.Name, Node: e.Node, Budget: e.Budget, Message: e.Refused})
		}
	}
	return held
}

// findRoom finds who has come to the nodes that evicted pods have left. It needs to know
// Leaving and Placed.
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
		// Who comes to a node cannot be told apart by which of several pods made room, so
		// all are named.
		if e := &f.Evictions[i]; e.Refused == "" {
			e.Room = came[e.Node]
		}
	}
}

// printEvictions says which budget decided about each eviction, and who takes the room.
func (p printer) printEvictions(list []simulate.Evicted) {
	for _, e := range list {
		if e.Refused != "" {
			p.Warning("\n%s/%s stays on %s: %s.", e.Namespace, e.Name, e.Node, e.Refused)
			continue
		}
		// Whether a budget covers the pod, and who takes its room.
		because, room := "no disruption budget holds it", "stays free"
		if e.Budget != "" {
			because = "the disruption budget " + e.Budget + " allows it, and then " + answer.Count(int(e.Left), "more disruption")
		}
		if len(e.Room) > 0 {
			room = "goes to " + answer.List(len(e.Room), func(i int) string { return e.Room[i] })
		}
		p.Line("\n%s/%s: %s. Its room on %s %s.", e.Namespace, e.Name, because, e.Node, room)
	}
}
