// Package world holds a cluster that is not the live one: its API objects, whose pod each pod is,
// and the cluster that the engine decides on.
//
// Open takes the objects. Put, Delete, Place and Remove change the world, and after Mark, Undo puts
// back what was changed since. Fork begins a second course of events that shares what neither has
// changed. What follows from a change is not decided here but in the packages below this one
// (workload, disruption, quota, standin) and by those who ask them.
//
//	w := world.Open(objects)
//	mark := w.Mark()
//	w.Remove(p)                        // tried
//	d := decider.Decide(next)          // asked
//	w.Undo(mark)                       // as if it had never been
package world
