// Package queue says which waiting pod is to be decided next, which must wait, and for what.
//
// A pod is in one of four places. Active pods are decided in order: priority, then who has waited
// longer. A pod that was rejected waits, with the names of the plugins that rejected it, until
// something happens that can help against one of these, and five minutes at the latest. A pod that
// wakes before its back-off is over, or whose attempt failed, backs off: one second after the first
// time and twice as long after each other, ten seconds at most. A pod that a gate keeps out is
// asked about again when something happens that the gate waits for, changes of the pod itself
// included.
//
// What can help is said by interests. They are also asked about what happened while a pod was under
// way. Waiting pods that are alike in all that matters, their class and the plugins that rejected
// them, form a group, and are asked about once for an event. Groups are found by what they wait for
// (Narrowing), so that an event is not held against all of them.
//
// The queue is plain data with one owner; it is told the time.
package queue
